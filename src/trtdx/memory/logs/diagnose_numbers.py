"""Numbers for the findings of `diagnose`: what was wanted, free and missing, and the smallest change that fits.

Nothing is found here, and nothing taken away but a warning about a temporary cache. A finding that the log's words led to keeps its code, its words and its fixes;
evidence is added, and the fix with numbers comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.memory.logs.ledger import find_shortened_sequences
from trtdx.memory.logs.oom import explain_memory_failure
from trtdx.memory.logs.read import memory_from_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.diagnose.nouns import SourceFacts
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.logs.verdict import MemoryVerdict
    from trtdx.model import Finding

MOST_EVIDENCE = 8


def add_log_numbers(findings: Sequence[Finding], facts: Sequence[SourceFacts]) -> list[Finding]:
    """Return the findings, the first that is about memory with what the log's numbers tell."""
    log = memory_from_facts(facts)
    return add_verdicts(drop_temporary_warnings(findings, log), explain_memory_failure(log).verdicts)


def drop_temporary_warnings(findings: Sequence[Finding], log: LogMemory) -> list[Finding]:
    """Return the findings without a warning that was only about the temporary cache of a profile."""
    only_temporary = (
        bool(log.select("kv.shortened")) and find_shortened_sequences(log) is None and bool(log.last("torch.peak"))
    )
    return [finding for finding in findings if not (only_temporary and finding.code == "DX356")]


def add_verdicts(findings: Sequence[Finding], verdicts: Sequence[MemoryVerdict]) -> list[Finding]:
    """Return the findings with each verdict put to the first finding it is about."""
    result = list(findings)
    for verdict in verdicts:
        at = finding_index(result, verdict)
        if at is not None:
            result[at] = _add_verdict(result[at], verdict)
    return result


def finding_index(findings: Sequence[Finding], verdict: MemoryVerdict) -> int | None:
    """Return which finding a verdict is about: the one with its own code, else the first of its kin."""
    same_code = [at for at, finding in enumerate(findings) if finding.code == verdict.code]
    kin = [at for at, finding in enumerate(findings) if finding.code in verdict.related_codes]
    return next(iter(same_code + kin), None)


def _add_verdict(finding: Finding, verdict: MemoryVerdict) -> Finding:
    if finding.code in verdict.replaced_codes:
        evidence = (*verdict.evidence, *(item for item in finding.evidence if item not in verdict.evidence))
        fixes = (*verdict.fixes, *finding.fixes)
        return replace(finding, message=verdict.message, fixes=fixes, evidence=evidence[:MOST_EVIDENCE])
    numbers = verdict.numbers
    new = numbers and not all(word in finding.message for word in _words_with_digits(numbers) or [numbers])
    known_lines = {(item.where, item.text) for item in finding.evidence}
    added = tuple(item for item in verdict.evidence if (item.where, item.text) not in known_lines)
    return replace(
        finding,
        message=f"{finding.message}; {numbers}" if new else finding.message,
        why=f"{finding.why} {verdict.why}".strip() if verdict.why else finding.why,
        fixes=(*verdict.fixes, *finding.fixes, *((verdict.next_step,) if verdict.next_step else ())),
        evidence=(finding.evidence + added)[:MOST_EVIDENCE],
    )


def _words_with_digits(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if any(sign.isdigit() for sign in word)]
