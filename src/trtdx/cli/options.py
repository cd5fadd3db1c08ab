"""Options that several commands share: one wording, one default."""

from __future__ import annotations

from typing import Annotated

import typer

from trtdx.cli.output import Color, FailOn

RulesOption = Annotated[
    list[str] | None,
    typer.Option("--rules", metavar="DIR", help="Also use the rule pages in this folder. May be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
MarkdownOption = Annotated[
    bool, typer.Option("--markdown", help="Print a block that pastes well into a GitHub issue.")
]
FailOnOption = Annotated[
    FailOn, typer.Option("--fail-on", help="Exit with 1 when a finding is at least this severe.")
]
ColorOption = Annotated[Color, typer.Option("--color", help="When to colour.")]
AllOption = Annotated[bool, typer.Option("--all", help="Show every row.")]
