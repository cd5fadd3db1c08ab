"""`trtdx view` and `trtdx report`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from trtdx.ui.shelves import CaseShelf


def write_report(
    case: Annotated[str, typer.Argument(metavar="CASE", help="A case: a folder, or a .trtdx file.")],
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page if it exists.")] = False,
) -> None:
    """Write a case as one page that needs no server and no network, without secrets."""
    from trtdx.ui.run import page_from_case

    host = RealHost()
    if host.kind(out) != "absent" and not force:
        raise InputError(f"{out} already exists", fix="name another file with --out, or add --force")
    host.write(out, page_from_case(host, case).encode())


def view_cases(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CASE...", help="Cases, or folders that hold cases; by default the store.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")
    ] = 0,
    tui: Annotated[bool, typer.Option("--tui", help="Show them in this terminal instead.")] = False,
) -> None:
    """Show cases in a browser, from a server on this machine that only the printed address opens, or in a terminal."""
    from trtdx.ui.pages import CasePages
    from trtdx.ui.server import serve_cases
    from trtdx.ui.shelves import FolderShelf, StoreShelf

    host = RealHost()
    if tui and port:
        raise InputError("--port is of no use with --tui", fix="leave one of them out")
    shelf = FolderShelf(host, paths) if paths else StoreShelf(host)
    if tui:
        _show_in_terminal(shelf)
        return
    pages = CasePages(host, shelf)
    serve_cases(pages, port, announce=lambda address: print(address, file=sys.stderr, flush=True))  # noqa: T201


def _show_in_terminal(shelf: CaseShelf) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("--tui needs a terminal", fix="leave --tui out, or write a page: trtdx report CASE -o FILE")
    import_optional("textual", extra="ui", purpose="show cases in a terminal")
    from trtdx.ui.terminal import CaseTerminal

    CaseTerminal(shelf).run()
