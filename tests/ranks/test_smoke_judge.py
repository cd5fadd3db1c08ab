"""Who is blamed in smoke tests that did not pass; what the ranks said is made up, as a broken network would make it."""

from __future__ import annotations

import pytest

from trtdx.ranks.collect import Launch
from trtdx.ranks.launchers import RankLauncher
from trtdx.ranks.remote.collectives import list_rounds, list_tournament, numbers, pattern, summed
from trtdx.ranks.smoke.judge import judge_smoke
from trtdx.ranks.smoke.nouns import SmokeEvent, SmokeQuestion, SmokeRun


def make_run(*events, ranks=4, status=1, output="", cpus=64):
    starts = [
        SmokeEvent(event="start", rank=rank, size=ranks, host=f"n{rank // 2}", library="Open MPI v4.1.4", cpus=cpus)
        for rank in range(ranks)
    ]
    question = SmokeQuestion(RankLauncher(("mpirun",), "mpirun", ranks), ranks)
    return SmokeRun(question, (*starts, *events), Launch(("mpirun",), status, output, ""))


def stuck(rank, kind, number, peers, size=8):
    return SmokeEvent(event="stuck", rank=rank, kind=kind, number=number, peers=peers, size=size)


def done(ranks=4):
    return [SmokeEvent(event="done", rank=rank) for rank in range(ranks)]


def pair(one, other, speed):
    return SmokeEvent(event="pair", rank=one, pair=(one, other), bytes_per_s=speed)


def only(run):
    (violation,) = judge_smoke(run)
    return violation


def test_the_pair_that_waits_for_each_other_is_named_and_not_those_that_wait_for_one_of_them():
    run = make_run(
        stuck(0, "contact", 1, (0, 2)), stuck(2, "contact", 1, (0, 2)), stuck(1, "contact", 2, (0, 1)), stuck(3, "contact", 2, (2, 3))
    )  # fmt: skip
    assert (only(run).code, only(run).ranks) == ("DX406", (0, 2))


def test_a_rank_that_does_not_come_is_named():
    run = make_run(*(stuck(rank, "all_reduce", 9, (0, 1, 2, 3)) for rank in (0, 1, 3)))
    assert (only(run).code, only(run).ranks) == ("DX416", (2,))


def test_wrong_data_names_who_received_it_and_who_sent_it():
    failed = SmokeEvent(
        event="failed",
        rank=3,
        kind="contact",
        number=2,
        peers=(1, 3),
        is_data=True,
        error="WrongDataError: byte 5 of 8 differs",
    )
    assert (only(make_run(failed)).code, only(make_run(failed)).ranks) == ("DX1312", (3,))
    assert "from rank 1" in only(make_run(failed)).message


def test_an_error_in_a_step_names_the_first_rank():
    failed = [
        SmokeEvent(event="failed", rank=2, kind="all_reduce", number=5, error="Exception: MPI_ERR_OTHER"),
        SmokeEvent(event="failed", rank=0, kind="broadcast", number=6, error="Exception: MPI_ERR_PROC"),
    ]
    assert (only(make_run(*failed)).code, only(make_run(*failed)).ranks) == ("DX1314", (2,))


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        ("mpirun noticed that process rank 2 with PID 0 on node n1 exited on signal 9 (Killed).", 2),
        ("srun: error: n1: task 1: Segmentation fault", 1),
        ("failed (exitcode: -9) local_rank: 3 (pid: 77) of binary", 3),
    ],
)
def test_the_rank_a_launcher_names_is_believed(words, rank):
    assert (only(make_run(output=words)).code, only(make_run(output=words)).ranks) == ("DX445", (rank,))


def test_a_slow_pair_is_told_where_cores_are_enough():
    speeds = [pair(0, 1, 5e9), pair(0, 2, 1e9), pair(0, 3, 1.1e9), pair(1, 2, 1e8), pair(1, 3, 0.9e9), pair(2, 3, 5e9)]
    violation = only(make_run(*speeds, *done(), status=0))
    assert (violation.code, violation.ranks) == ("DX1313", (1, 2))
    assert list(judge_smoke(make_run(*speeds, *done(), status=0, cpus=1))) == []
    even = [pair(0, 1, 5e9), *(pair(one, other, 1e9) for one, other in ((0, 2), (0, 3), (1, 2), (1, 3)))]
    assert list(judge_smoke(make_run(*even, *done(), status=0))) == []


@pytest.mark.parametrize("size", [*range(1, 14), 32])
def test_every_pair_meets_once_and_nobody_is_in_two_places(size):
    for rounds in (list_rounds(size), list_tournament(size)):
        pairs = [pair for members in rounds for pair in members]
        assert sorted(pairs) == [(one, other) for one in range(size) for other in range(one + 1, size)]
        for members in rounds:
            assert len({rank for pair in members for rank in pair}) == 2 * len(members)


@pytest.mark.parametrize("count", [1, 7, 1024, 5000])
def test_sums_are_what_the_ranks_add_up_to(count):
    parts = [numbers(rank, count) for rank in range(5)]
    assert summed(5, count) == type(parts[0])("q", [sum(column) for column in zip(*parts, strict=True)]).tobytes()
    assert len(pattern(3, count)) == count


def test_an_mpi4py_that_takes_open_mpi_for_mpich_is_told_with_the_variable_that_mends_it():
    error = "ImportError: libmpi.so.12: cannot open shared object file: No such file or directory"
    run = make_run(*(SmokeEvent(event="failed", rank=rank, kind="start", error=error) for rank in range(4)))
    assert only(run).code == "DX023"
    assert "MPI4PY_MPIABI=openmpi" in only(run).fixes[0].command
