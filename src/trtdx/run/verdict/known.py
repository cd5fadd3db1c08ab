"""What the rule book knows about the words that a rank or the launcher printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.model import Evidence, Finding
    from trtdx.run.verdict.findings import JobView

LEAST_CONFIDENCE = 0.7
NO_CAUSE = ("DX000",)


def known_causes(view: JobView, texts: Mapping[str, str]) -> list[Finding]:
    """Return what `diagnose` finds in texts; nothing where there is no text."""
    sources = [source_from_text(text, name) for name, text in texts.items() if text.strip()]
    return list(diagnose_sources(sources, view.book).findings) if sources else []


def surest_cause(view: JobView, texts: Mapping[str, str], least: float = LEAST_CONFIDENCE) -> Finding | None:
    """Return the first cause that a text names beyond doubt."""
    for finding in known_causes(view, texts):
        is_cause = view.book.get(finding.code).kind.value == "cause" and finding.code not in NO_CAUSE
        if is_cause and finding.severity is Severity.ERROR and finding.confidence >= least:
            return finding
    return None


def with_blame(finding: Finding, ranks: Sequence[int], evidence: Sequence[Evidence]) -> Finding:
    """Return a finding of the rule book with the ranks to blame and how they were seen to fail."""
    return msgspec.structs.replace(finding, ranks=tuple(ranks), evidence=(*evidence, *finding.evidence))
