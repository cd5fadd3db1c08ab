"""`trtdx explain`: the page of one cause."""

from __future__ import annotations

from typing import Annotated

import typer

from trtdx.cli.output import Color, terminal_width, wants_color, write_output
from trtdx.host import RealHost


def explain_rule(
    name: Annotated[
        str,
        typer.Argument(metavar="CODE", help="A code such as DX012, or a slug such as world-size-mismatch."),
    ],
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="DIR", help="Also look in this folder of rule pages."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", "-v", help="Also show the examples the page is tested with.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the page as JSON.")] = False,
    color: Annotated[Color, typer.Option("--color", help="When to colour.")] = Color.AUTO,
) -> None:
    """Explain a cause: why it happens, what to do, how to verify."""
    import msgspec

    from trtdx.cli.project import load_project_defaults
    from trtdx.knowledge.load import load_book
    from trtdx.render.page import render_page

    host = RealHost()
    rule = load_book(host, [*load_project_defaults(host).rules, *(rules or ())]).get(name)
    if json:
        write_output(msgspec.json.format(msgspec.json.encode(rule), indent=2).decode() + "\n")
    else:
        write_output(render_page(rule, color=wants_color(color), width=terminal_width(), details=details))
