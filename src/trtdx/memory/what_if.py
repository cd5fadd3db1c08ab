"""A plan asked again with other limits: the same set-up, ledger and frontier, recomputed from what a report keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.memory.advice.gpu_changes import valid_tp_sizes
from trtdx.memory.advice.memory_change import replace_part
from trtdx.memory.ledger.frontier import compute_frontier
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import Setup
from trtdx.memory.question.contradictions import find_setup_contradictions
from trtdx.memory.report.frontier_table import frontier_section
from trtdx.memory.report.plan import (
    MemoryReport,
    capacity_findings,
    ledger_section,
    memory_json,
    ranks_section,
    render_verdict,
)
from trtdx.model import Severity, Summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.memory.ledger.calibration import CalibrationConstants
    from trtdx.memory.nouns import MemoryLedger
    from trtdx.rule import RuleBook

LIMITS = ("max_batch_size", "max_seq_len", "max_num_tokens")
SETTINGS = (*LIMITS, "tp")
LARGEST = {"max_batch_size": 1 << 14, "max_seq_len": 1 << 22, "max_num_tokens": 1 << 18, "tp": 64}
LONGEST_SLIDER = 1 << 20


def setup_from_report(report: MemoryReport) -> Setup | None:
    """Return the set-up that a report was made of; None where it holds none, as the report of a log may."""
    data = (report.memory or {}).get("setup")
    try:
        return msgspec.convert(data, Setup, strict=False) if data else None
    except msgspec.ValidationError:
        return None


def read_settings(setup: Setup) -> dict[str, int]:
    """Return what can be changed of a set-up, as it is now."""
    return {name: getattr(setup.limits, name) for name in LIMITS} | {"tp": setup.layout.tp}


def list_choices(setup: Setup) -> dict[str, list[int]]:
    """Return the values that a slider of each setting offers: powers of two, sizes the model can be cut by, and its own."""
    longest = min(setup.dims.max_positions or 8 * setup.limits.max_seq_len, LONGEST_SLIDER)
    spans = {
        "max_batch_size": _powers_of_two(1, 4096),
        "max_seq_len": _powers_of_two(256, longest),
        "max_num_tokens": _powers_of_two(256, 65536),
        "tp": valid_tp_sizes(setup),
    }
    own = read_settings(setup)
    return {name: sorted({*values, own[name]}) for name, values in spans.items()}


def _powers_of_two(first: int, last: int) -> list[int]:
    return [value for bit in range(24) if first <= (value := 1 << bit) <= last]


def change_setup(setup: Setup, settings: Mapping[str, int]) -> Setup:
    """Return the set-up with other settings; what was measured of the old one is forgotten where it no longer holds."""
    own = read_settings(setup)
    changed = {name: value for name, value in settings.items() if own[name] != value}
    limits = {name: value for name, value in changed.items() if name != "tp"}
    if limits:
        setup = replace_part("limits", **limits)(setup)
    if "tp" in changed:
        setup = replace_part("layout", tp=changed["tp"], ep=0, moe_tp=0)(setup)
    return msgspec.structs.replace(setup, said=setup.said | dict.fromkeys(changed, "the sliders"))


def plan_setup(setup: Setup, book: RuleBook, constants: CalibrationConstants | None = None) -> MemoryReport:
    """Return the ledger and frontier of a set-up, and what is wrong with it, without advice."""

    def plan(one: Setup) -> MemoryLedger:
        return plan_memory(one, constants=constants)

    ledger = plan(setup)
    wrong = tuple(sorted(find_setup_contradictions(setup, book), key=lambda finding: -finding.severity.badness))
    if wrong and wrong[0].severity is Severity.ERROR:  # as `trtdx memory` says it: whether it fits is not the question
        summary = Summary(f"cannot run as asked: {wrong[0].message}")
        return MemoryReport(summary=summary, findings=wrong, memory=memory_json(ledger))
    points = compute_frontier(setup, planner=plan) if setup.device is not None else ()
    frontier = (frontier_section(points),) if points else ()
    return MemoryReport(
        summary=Summary(render_verdict(ledger)),
        findings=(*capacity_findings(ledger, (), book, "trtdx memory MODEL --gpu GPU"), *wrong),
        sections=(ledger_section(ledger), *ranks_section(ledger), *frontier),
        memory=memory_json(ledger),
        frontier=points,
    )
