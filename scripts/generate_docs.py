"""Writes what is made from code: the pages of rules and command line, the JSON schema, the README's diagnosis.

`--check` writes nothing and exits with 1 when a page is not what the code says.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.cli.main import app
from trtdx.compare.report.comparison_report import ComparisonReport
from trtdx.diagnose.logs.sources import open_sources as find_sources
from trtdx.diagnose.run import diagnose_sources
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreement_table
from trtdx.knowledge.load import load_book
from trtdx.memory.logs.diagnose_hook import with_memory_figures
from trtdx.memory.report.schema import MemoryDocument
from trtdx.model import Report
from trtdx.render import render_text
from trtdx.render.json import schema_of_report
from trtdx.rule import Rule, RuleHarm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.agreements.agreement import Agreement

ROOT = Path(__file__).parent.parent
REPORTS = {"report": Report, "memory": MemoryDocument, "compare": ComparisonReport}
NOTE = "<!-- Made by scripts/generate_docs.py. Do not edit. -->"


def rules_page() -> str:
    by_area: defaultdict[str, list[str]] = defaultdict(list)
    book = load_book(RealHost())
    for rule in book:
        page = f"../src/trtdx/rules/{rule.front.area}/{rule.code}-{rule.slug}.md"
        by_area[rule.front.area].append(
            f"| [{rule.code}]({page}) | {rule.front.slug} | {rule.kind.value} | {rule.title} |"
        )
    parts = [
        NOTE,
        "# The rules",
        f"{len(book)} causes, symptoms and harmless lines that `trtdx` knows. `trtdx explain CODE` prints a page.",
    ]
    for area in sorted(by_area):
        parts.append(f"## {area} ({len(by_area[area])})")
        parts.append("\n".join(["| code | slug | kind | what is wrong |", "|---|---|---|---|", *by_area[area]]))
    return "\n\n".join(parts) + "\n"


HARMS = {
    RuleHarm.SILENT: "wrong output, in silence",
    RuleHarm.LOAD: "fails to convert, build or load",
    RuleHarm.REQUEST: "a request fails",
    RuleHarm.SLOW: "slow, or wastes memory",
}


def agreements_page() -> str:
    book = load_book(RealHost())
    parts = [
        NOTE,
        "# What must agree",
        f"The {len(agreement_table())} agreements that `trtdx inspect` checks, by what breaks when one is violated. `trtdx explain CODE` says which side to change.",
    ]
    for harm, words in HARMS.items():
        rows = [row for row in agreement_table() if book.get(row.code).front.harm is harm]
        parts.append(f"## {words.capitalize()} ({len(rows)})")
        parts.append(
            "\n".join(
                [
                    "| code | what must agree | between |",
                    "|---|---|---|",
                    *(_agreement_row(row, book.get(row.code)) for row in rows),
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def _agreement_row(row: Agreement, rule: Rule) -> str:
    about = (row.check.__doc__ or "").strip().splitlines()[0].rstrip(".")
    page = f"../src/trtdx/rules/{rule.front.area}/{rule.code}-{rule.slug}.md"
    return f"| [{rule.code}]({page}) | {about} | {', '.join(row.sides)} |"


def cli_page() -> str:
    import typer.main

    parts = [
        NOTE,
        "# The command line",
        "Exit status: 0 nothing at or above `--fail-on`, 1 findings, 2 the tool could not do its work.",
    ]
    parts += list(_help("trtdx", typer.main.get_command(app), None))
    return "\n\n".join(parts) + "\n"


def _help(name: str, command: Any, parent: Any) -> Iterator[str]:
    """Yield the help of a command and of all below it."""
    with command.make_context(
        name.split()[-1], [], parent=parent, resilient_parsing=True, terminal_width=100, max_content_width=100
    ) as context:
        yield f"## `{name}`"
        yield f"```text\n{command.get_help(context).strip()}\n```"
        for child, subcommand in sorted(getattr(command, "commands", {}).items()):
            if not subcommand.hidden:
                yield from _help(f"{name} {child}", subcommand, context)


def schema_pages() -> dict[str, str]:
    """Return the JSON schema of each type of report, by file."""
    return {
        f"docs/{name}.schema.json": msgspec.json.format(
            msgspec.json.encode(schema_of_report(kind), order="sorted"), indent=2
        ).decode()
        + "\n"
        for name, kind in REPORTS.items()
    }


def readme() -> str:
    """Return the README with its diagnosis as the tool gives it now."""

    def real(found: re.Match[str]) -> str:
        sources, _ = find_sources(RealHost(), [found[2]])
        return f"{found[1]}{render_text(diagnose_sources(sources, load_book(RealHost()), refine=with_memory_figures)).strip()}\n```"

    old = (ROOT / "README.md").read_text()
    return re.sub(r"(\$ trtdx diagnose (\S+)\n).*?```", real, old, count=1, flags=re.DOTALL)


def main() -> int:
    os.chdir(ROOT)  # the README names its example from here
    made = {
        "README.md": readme(),
        "docs/rules.md": rules_page(),
        "docs/agreements.md": agreements_page(),
        "docs/cli.md": cli_page(),
        **schema_pages(),
    }
    checking = "--check" in sys.argv
    stale = [name for name, text in made.items() if not Path(name).exists() or Path(name).read_text() != text]
    for name in stale:
        if not checking:
            Path(name).write_text(made[name])
        print(f"{name} {'is stale: run scripts/generate_docs.py' if checking else 'written'}")
    return 1 if stale and checking else 0


if __name__ == "__main__":
    sys.exit(main())
