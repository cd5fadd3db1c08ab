"""All checks of a trace, and the findings they become: one cause one finding, the largest share first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.knowledge.violation import Violation, finding_from
from trtdx.trace.causes.cause import render_share
from trtdx.trace.causes.device import device_waits
from trtdx.trace.causes.host import named_host_causes, scalar_reads, tiny_operators, unnamed_gaps
from trtdx.trace.causes.operators import skewed_experts, slow_layers, wasteful_operators
from trtdx.trace.causes.ranks import costly_collectives, idle_time, late_ranks
from trtdx.trace.causes.serving import executor_causes
from trtdx.trace.causes.steps import course_of_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.model import Finding
    from trtdx.rule import RuleBook
    from trtdx.trace.causes.cause import TimeCause, TraceAnalysis

TIMELINE_CHECKS: tuple[Callable[[TraceAnalysis], Iterator[TimeCause]], ...] = (
    named_host_causes,
    unnamed_gaps,
    tiny_operators,
    scalar_reads,
    wasteful_operators,
    slow_layers,
    skewed_experts,
    course_of_steps,
    device_waits,
    late_ranks,
    costly_collectives,
    idle_time,
)
# What another cause explains: the gap of the rank that comes late is that rank's lateness.
EXPLAINS = {
    "DX1541": {"DX1500"},
    "DX1542": {"DX1524"},
    "DX1570": {"DX1500", "DX1572"},
    "DX1571": {"DX1500", "DX1529", "DX1572"},
    "DX1572": {"DX1500"},
    "DX1573": {"DX1500"},
    "DX1528": {"DX1503"},
    "DX1581": {"DX1500"},
    "DX1516": {"DX1522", "DX1526"},
    "DX1522": {"DX1525", "DX1526"},
    "DX1523": {"DX1500"},
    "DX1526": {"DX1521"},
}


def find_causes(analysis: TraceAnalysis) -> list[TimeCause]:
    """Return what costs time, the largest share first."""
    causes = list(executor_causes(analysis))
    if analysis.timelines:
        causes += [cause for check in TIMELINE_CHECKS for cause in check(analysis)]
    causes.sort(key=lambda cause: -cause.share)
    return [cause for cause in causes if not _is_explained(cause, causes)]


def _is_explained(cause: TimeCause, causes: Sequence[TimeCause]) -> bool:
    """Whether another cause of about the same size or more says the same more precisely."""
    return any(cause.code in EXPLAINS.get(other.code, ()) and other.share > cause.share / 2 for other in causes)


def findings_from(causes: Sequence[TimeCause], book: RuleBook) -> tuple[Finding, ...]:
    """Return the findings of causes in the words of their pages."""
    return tuple(_finding(cause, book) for cause in causes)


def _finding(cause: TimeCause, book: RuleBook) -> Finding:
    share = min(cause.share, 0.99)
    values = {"share": render_share(cause.share), "gain": f"{1 / (1 - share):.2f}", **cause.values}
    violation = Violation(cause.evidence, values, cause.severity, cause.confidence)
    finding = finding_from(book.get(cause.code), violation)
    return msgspec.structs.replace(finding, ranks=cause.ranks)
