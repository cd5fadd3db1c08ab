"""Causes on a GPU, in traces that the tests write in Kineto's schema, since no GPU is here to make them."""

from __future__ import annotations

import pytest

from support.traces import kernel_step, span, write_kineto
from trtdx.host import RealHost
from trtdx.trace.causes.table import find_causes
from trtdx.trace.run import analyse_files


def causes_of(path, events):
    return find_causes(analyse_files(RealHost(), [str(write_kineto(path, events))]))


def steps(count, extra=None, **how):
    events, at = [], 0.0
    for step in range(count):
        more, end = kernel_step(step, at, **how)
        events += more
        if extra:
            added, end = extra(step, at, end)
            events += added
        at = end
    return events


def test_graphs_that_keep_the_device_busy_are_healthy(tmp_path):
    assert causes_of(tmp_path / "t.json", steps(12, kernels=100, kernel_us=10, gap_us=0, graph=True)) == []


def test_kernels_launched_one_by_one(tmp_path):
    causes = causes_of(tmp_path / "t.json", steps(12, kernels=100, kernel_us=6, gap_us=6))
    assert causes[0].code == "DX1570"
    assert causes[0].share == pytest.approx(0.5, abs=0.05)


def test_batches_without_their_graph_are_named(tmp_path):
    events, at, lost, total = [], 0.0, 0.0, 0.0
    for step in range(16):
        graph = step % 4 != 1
        more, end = kernel_step(
            step, at, kernels=100, kernel_us=10, gap_us=15, graph=graph, requests=32 if graph else 37
        )
        events += more
        lost += 0 if graph else end - at - 1020
        total, at = total + end - at, end
    causes = causes_of(tmp_path / "t.json", events)
    assert causes[0].code == "DX1571"
    assert causes[0].values["sizes"] == "37"
    assert causes[0].share == pytest.approx(lost / total, abs=0.05)


def test_a_synchronisation_before_the_next_launch(tmp_path):
    def sync(step, begin, end):
        return [
            span("cudaStreamSynchronize", begin + 20, end - begin + 10, "cuda_runtime", correlation=900_000 + step)
        ], end + 400

    causes = causes_of(tmp_path / "t.json", steps(12, sync, kernels=80, kernel_us=10, gap_us=0, graph=True))
    assert causes[0].code == "DX1572"
    assert causes[0].share == pytest.approx(400 / 1220, abs=0.06)


def test_memory_allocated_in_steps(tmp_path):
    def allocate(step, begin, end):
        return [span("cudaMalloc", end, 300, "cuda_runtime", correlation=0)], end + 300

    causes = causes_of(tmp_path / "t.json", steps(12, allocate, kernels=80, kernel_us=10, gap_us=0, graph=True))
    assert causes[0].code == "DX1573"


def test_copies_beside_nothing(tmp_path):
    def copy(step, begin, end):
        return [
            span("Memcpy HtoD (Pageable -> Device)", end, 300, "gpu_memcpy", process=0, thread=7, bytes=1e6)
        ], end + 300

    causes = causes_of(tmp_path / "t.json", steps(12, copy, kernels=80, kernel_us=10, gap_us=0, graph=True))
    assert causes[0].code == "DX1575"
    assert causes[0].share == pytest.approx(300 / 1120, abs=0.05)


def test_weights_dequantised_by_kernels_of_their_own(tmp_path):
    causes = causes_of(
        tmp_path / "t.json", steps(12, kernels=80, kernel_us=10, gap_us=0, graph=True, prefix="dequantize_int4_")
    )
    assert causes[0].code == "DX1576"


def test_clocks_of_two_machines_are_aligned_by_collectives(tmp_path):
    """The same job twice: one rank's clock is an hour off, and the answer is the same."""
    for offset in (0.0, 3.6e9):
        for rank in (0, 1):
            events = []
            for step in range(12):
                at = step * 1000.0 + (offset if rank else 0)
                compute = 700 if rank else 300
                events.append(span(f"ProfilerStep#{step}", at, 990))
                events.append(span("aten::mm", at + 1, compute, "cpu_op"))
                events.append(span("gloo:all_reduce", at + 1 + compute, 989 - compute, thread=2))
            write_kineto(tmp_path / f"rank-{rank}.json", events)
        analysis = analyse_files(RealHost(), [str(tmp_path)])
        (cause,) = [cause for cause in find_causes(analysis) if cause.code == "DX1540"]
        assert cause.ranks == (1,)
        assert cause.share == pytest.approx(0.4, abs=0.03)
