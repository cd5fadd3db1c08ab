"""Numbers for the findings of `diagnose`: what was wanted, free and missing, and the smallest change that fits.

Nothing is found here, and nothing taken away but a warning about a temporary cache. A finding that the log's words led to keeps its code, its words and its fixes;
evidence is added, and the fix with numbers comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.memory.logs.ledger import shortened
from trtdx.memory.logs.oom import post_mortem
from trtdx.memory.logs.read import memory_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.diagnose.facts import SourceFacts
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.logs.verdict import Verdict
    from trtdx.model import Finding

MOST_EVIDENCE = 8


def with_numbers(findings: Sequence[Finding], facts: Sequence[SourceFacts]) -> list[Finding]:
    """Return the findings, the first that is about memory with what the log's numbers tell."""
    log = memory_in(facts)
    return explained(without_temporary(findings, log), post_mortem(log).verdicts)


def without_temporary(findings: Sequence[Finding], log: LogMemory) -> list[Finding]:
    """Return the findings without a warning that was only about the temporary cache of a profile."""
    only_temporary = bool(log.all("kv.shortened")) and shortened(log) is None and bool(log.last("torch.peak"))
    return [finding for finding in findings if not (only_temporary and finding.code == "DX356")]


def explained(findings: Sequence[Finding], verdicts: Sequence[Verdict]) -> list[Finding]:
    """Return the findings with each verdict put to the first finding it is about."""
    result = list(findings)
    for verdict in verdicts:
        at = index_of(result, verdict)
        if at is not None:
            result[at] = _with(result[at], verdict)
    return result


def index_of(findings: Sequence[Finding], verdict: Verdict) -> int | None:
    """Return which finding a verdict is about: the one with its own code, else the first of its kin."""
    same_code = [at for at, finding in enumerate(findings) if finding.code == verdict.code]
    kin = [at for at, finding in enumerate(findings) if finding.code in verdict.about]
    return next(iter(same_code + kin), None)


def _with(finding: Finding, verdict: Verdict) -> Finding:
    if finding.code in verdict.replaces:
        evidence = (*verdict.evidence, *(item for item in finding.evidence if item not in verdict.evidence))
        fixes = (*verdict.fixes, *finding.fixes)
        return replace(finding, message=verdict.message, fixes=fixes, evidence=evidence[:MOST_EVIDENCE])
    numbers = verdict.short
    new = numbers and not all(word in finding.message for word in _figures(numbers) or [numbers])
    known_lines = {(item.where, item.text) for item in finding.evidence}
    added = tuple(item for item in verdict.evidence if (item.where, item.text) not in known_lines)
    return replace(
        finding,
        message=f"{finding.message}; {numbers}" if new else finding.message,
        why=f"{finding.why} {verdict.why}".strip() if verdict.why else finding.why,
        fixes=(*verdict.fixes, *finding.fixes, *((verdict.next_step,) if verdict.next_step else ())),
        evidence=(finding.evidence + added)[:MOST_EVIDENCE],
    )


def _figures(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if any(sign.isdigit() for sign in word)]
