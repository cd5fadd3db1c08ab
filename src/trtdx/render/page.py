"""One rule's page for a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtdx.rule import Rule


def render_page(rule: Rule, *, color: bool, width: int | None) -> str:
    """Return the page: as it is written where there is no terminal, laid out where there is one."""
    front = rule.front
    head = f"{front.code} {front.slug}: {front.severity.value} at the {front.stage.value} stage"
    if front.holds_for:
        head += f", TensorRT-LLM {front.holds_for}"
    if not color:
        return f"{head}\n\n{rule.body}"
    from rich.console import Console
    from rich.markdown import Markdown

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width)
    console.print(head, style="bold")
    console.print(Markdown(rule.body))
    return stream.getvalue()
