"""Adds memory figures to the findings of `diagnose`. Imported before any log is read, so it is light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.diagnose.memory_lines import HOST_FIGURES, HOST_MEMORY, OUT_OF_MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.diagnose.facts import SourceFacts
    from trtdx.model import Finding


def with_memory_figures(findings: list[Finding], facts: Sequence[SourceFacts]) -> list[Finding]:
    """Return the findings with figures where memory ran out and the log tells some."""
    codes = {finding.code for finding in findings}
    lines = [event.text for source in facts for event in source.memory]
    on_host = not codes.isdisjoint(HOST_MEMORY) and any(
        text in line for line in lines for text in HOST_FIGURES
    )
    if not lines or not (on_host or codes & OUT_OF_MEMORY):
        return findings
    from trtdx.memory.logs.diagnose_numbers import with_numbers  # only then: most logs need none of it

    return with_numbers(findings, facts)
