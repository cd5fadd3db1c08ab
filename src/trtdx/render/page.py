"""One rule's page for a terminal."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from trtdx.render.text import WIDTH
from trtdx.rule import EXAMPLE_SECTIONS
from trtdx.words import describe_holds_for

if TYPE_CHECKING:
    from trtdx.rule import Rule


def render_page(rule: Rule, *, color: bool, width: int | None, details: bool = False) -> str:
    """Return the page: laid out where there is colour or a terminal's width, else as it is written.

    The examples that the page is tested with are shown with `details` only.
    """
    front = rule.front
    head = f"{front.code} {front.slug}: {front.severity.value} at the {front.stage.value} stage"
    if front.holds_for:
        head += f", {describe_holds_for(front.holds_for)}"
    if front.retired:
        head += f"; retired in {front.retired}" + (f", see {front.replaced_by}" if front.replaced_by else "")
    body = _with_commands(rule, rule.body if details else without_examples(rule.body)) + _render_sources(rule)
    if not color and width is None:
        return f"{head}\n\n{body}"
    from rich.console import Console
    from rich.markdown import Markdown

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=color, no_color=not color, width=width or WIDTH)
    console.print(head, style="bold")
    console.print(Markdown(body))
    return stream.getvalue()


def _with_commands(rule: Rule, body: str) -> str:
    """Return a page's text with the commands of its fixes below what to do."""
    rows: list[str] = []
    for fix in rule.front.fix:
        rows.append(f"- {fix.stage.value}: {fix.statement}")
        rows += ["", *(f"      {line}" for line in (fix.command or "").splitlines()), ""] if fix.command else []
    if not rows or "## How to verify" not in body:
        return body
    before, heading, after = body.partition("## How to verify")
    return before + "\n".join(["## Commands", *rows]).rstrip() + "\n" + heading + after


def _render_sources(rule: Rule) -> str:
    """Return where the page's claims were read, and when that was last done."""
    rows = [f"- {place}" for place in rule.front.source]
    rows += [f"- checked {rule.front.checked}"] if rule.front.checked else []
    return "\n".join(["## Sources", *rows]) + "\n" if rows else ""


def without_examples(body: str) -> str:
    """Return a page's text without the sections that hold what it is tested with."""
    names = "|".join(EXAMPLE_SECTIONS)
    return re.sub(rf"(?ms)^## (?:{names})[ \t]*\n.*?(?=^## |\Z)", "", body).rstrip() + "\n"
