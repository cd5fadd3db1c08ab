"""Slownesses that were made for real: the right cause comes first, its share agrees with a clock, nothing else is said."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from support.slow_loops import FAULTS, HEALTHY, run_fault  # noqa: E402
from support.slow_rank_jobs import RANK_FAULTS, run_ranks  # noqa: E402
from trtdx.host import RealHost  # noqa: E402
from trtdx.trace.causes.table import find_causes  # noqa: E402
from trtdx.trace.run import analyse_files  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of torch's profiler
    pytest.mark.heavy,
]
UNDISTURBED = 0.95  # the share of the time in which a loop had a processor
LEAST_JUDGED = 20
MOST_WRONG = 0.1  # of the faults; a busy machine adds slownesses of its own


def causes_in(*paths):
    analysis = analyse_files(RealHost(), [str(path) for path in paths])
    assert abs(sum(analysis.ledger.by_context.values()) / analysis.ledger.wall - 1) < 0.01
    return find_causes(analysis)


def judge_fault(code, share, causes):
    """Return what is wrong with the answer; nothing where the cause is first and its share is right."""
    if not causes or causes[0].code != code:
        return f"{[cause.code for cause in causes]} instead of {code}"
    return "" if abs(causes[0].share - share) <= 0.1 else f"{causes[0].share:.0%} instead of {share:.0%}"


def test_the_planted_cause_comes_first_with_its_share(tmp_path):
    problems = {name: problem_with_fault(*fault, tmp_path / "trace.json") for name, fault in FAULTS.items()}
    judged = {name: problem for name, problem in problems.items() if problem is not None}
    wrong = {name: problem for name, problem in judged.items() if problem}
    if len(judged) < LEAST_JUDGED:
        pytest.skip("other processes disturbed most of the runs")
    assert len(wrong) <= MOST_WRONG * len(FAULTS), wrong


def problem_with_fault(code, plant, path):
    """Return what is wrong with the answer to a fault, "" for nothing; None where no run was left in peace."""
    problems = []
    for _ in range(3):
        share, undisturbed = run_fault(plant, path)
        problem = judge_fault(code, share, causes_in(path))
        if not problem:
            return ""
        problems += [problem] if undisturbed > UNDISTURBED else []
    return problems[0] if problems else None


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_reported_of_a_healthy_loop(name, tmp_path):
    for _ in range(4):  # a busy machine disturbs any loop now and then
        _, undisturbed = run_fault(HEALTHY[name], tmp_path / "trace.json")
        causes = causes_in(tmp_path / "trace.json")
        if not causes:
            return
    if undisturbed < UNDISTURBED:
        pytest.skip("other processes disturbed the loop")
    assert causes == []


@pytest.mark.parametrize("fault", list(RANK_FAULTS)[:5])  # benchmarks/trace_zoo.py tries them all
def test_the_rank_or_the_transfer_is_named(fault, tmp_path):
    (code, *_), world = RANK_FAULTS[fault]
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        share, undisturbed = run_ranks(fault, world, folder)
        problem = judge_fault(code, share, causes_in(folder))
        if not problem:
            return
    if undisturbed < UNDISTURBED:
        pytest.skip(f"the ranks had to wait for processors: {problem}")
    assert problem == ""
