"""Adds memory figures to the findings of `diagnose`. Imported before any log is read, so it is light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.diagnose.memory_lines import HOST_MEMORY_CODES, HOST_MEMORY_TEXTS, OUT_OF_MEMORY_CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.diagnose.nouns import SourceFacts
    from trtdx.model import Finding


def with_memory_figures(findings: list[Finding], facts: Sequence[SourceFacts]) -> list[Finding]:
    """Return the findings with figures where memory ran out and the log tells some."""
    codes = {finding.code for finding in findings}
    lines = [event.text for source in facts for event in source.memory_events]
    on_host = not codes.isdisjoint(HOST_MEMORY_CODES) and any(
        text in line for line in lines for text in HOST_MEMORY_TEXTS
    )
    if not lines or not (on_host or codes & OUT_OF_MEMORY_CODES):
        return findings
    from trtdx.memory.logs.diagnose_numbers import add_log_numbers  # only then: most logs need none of it

    return add_log_numbers(findings, facts)
