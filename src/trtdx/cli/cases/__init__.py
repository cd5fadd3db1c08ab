"""`trtdx cases` and its subcommands."""

from __future__ import annotations

import typer

from trtdx.cli.cases import commands, transfer
from trtdx.cli.groups import expand_groups

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Past cases: keep, search, resolve, send and take in."
)
app.command("list", epilog="Example: trtdx cases list --status open")(expand_groups(commands.list_cases))
app.command("show", epilog="Example: trtdx cases show 7k3q9xfm2")(expand_groups(commands.show_case))
app.command("search", epilog="Example: trtdx cases search server.log")(expand_groups(commands.search_past))
app.command("note", epilog="Example: trtdx cases note 7k3q9xfm2 'only with the new driver'")(commands.add_note)
app.command(
    "resolve", epilog="Example: trtdx cases resolve 7k3q9xfm2 --cause 'shm of 64 MB' --fix 'docker run --ipc=host'"
)(commands.resolve_case)
app.command("link", epilog="Example: trtdx cases link 7k3q9xfm2 2f8dk0q1z")(commands.link_case)
app.command("export", epilog="Example: trtdx cases export 7k3q9xfm2 -o for-the-issue.trtdx")(
    expand_groups(transfer.export_file)
)
app.command("import", epilog="Example: trtdx cases import from-a-colleague.trtdx")(expand_groups(transfer.import_files))
app.command("stats", epilog="Example: trtdx cases stats")(expand_groups(commands.show_statistics))
