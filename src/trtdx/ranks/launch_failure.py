"""What a launcher printed when it could not start its ranks, diagnosed like any log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.model import Finding
    from trtdx.ranks.collect import Launch
    from trtdx.rule import RuleBook

MOST_TEXT = 1 << 20
UNKNOWN = "DX000"


def findings_from_launch(launches: Sequence[Launch], book: RuleBook) -> list[Finding]:
    """Return the causes that launchers name; empty where they say nothing that is known."""
    from trtdx.diagnose.run import diagnose_sources, source_from_text

    texts = [launch.output + (f"\n{launch.problem}" if launch.status is None else "") for launch in launches]
    sources = [
        source_from_text(cleaned, f"launcher {number}" if len(texts) > 1 else "launcher")
        for number, text in enumerate(texts)
        if (cleaned := drop_marked_lines(text).strip())
    ]
    if not sources:
        return []
    return [finding for finding in diagnose_sources(sources, book).findings if finding.code != UNKNOWN]


def drop_marked_lines(text: str) -> str:
    """Return a launcher's output without the lines that are for trtdx."""
    return re.sub(r"^.*@trtdx-\w+ .*$\n?", "", text[-MOST_TEXT:], flags=re.MULTILINE)
