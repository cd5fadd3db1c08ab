"""Files of other tools: whole, compressed, cut off, damaged."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.traces import kernel_step, span, write_kineto, write_nsight
from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.trace.readers.chrome import read_chrome_trace
from trtdx.trace.readers.chrome_events import EventStream
from trtdx.trace.readers.iteration_log import parse_iteration_line
from trtdx.trace.readers.open_trace import read_recordings
from trtdx.trace.run import analyse_files

TRAP = 'a name with "quotes" and },{ braces \\ and [brackets]'


def events_of(data, block):
    stream = EventStream(data[at : at + block] for at in range(0, len(data), block))
    return [event for events in stream for event in events], stream


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("as_list", [False, True])
def test_every_event_is_read_however_the_blocks_fall(indent, as_list, monkeypatch):
    monkeypatch.setattr("trtdx.trace.readers.chrome_events.BLOCK_BYTES", 2000)
    events = [span(TRAP, at, 1, nested=[{"a": 1}, {"b": 2}], text="},{") for at in range(300)]
    data = json.dumps(events if as_list else {"a": 1, "traceEvents": events, "z": [1]}, indent=indent).encode()
    for block in (97, 1000, len(data)):
        read, stream = events_of(data, block)
        assert [event.ts for event in read] == [event["ts"] for event in events]
        assert (stream.is_cut_off, stream.skipped) == (False, 0)


def test_a_trace_that_is_cut_off_gives_what_is_there(tmp_path):
    path = write_kineto(tmp_path / "trace.json", [span("aten::mm", at, 1, "cpu_op") for at in range(100)])
    path.write_bytes(path.read_bytes()[:-700])
    table = read_chrome_trace(RealHost(), str(path))
    assert 80 < len(table) < 100
    assert "is cut off" in table.problems[0]


def test_a_damaged_event_is_left_out_and_counted(tmp_path):
    path = write_kineto(tmp_path / "trace.json", [span("aten::mm", at, 1, "cpu_op") for at in range(100)])
    path.write_bytes(path.read_bytes().replace(b'"ts": 50,', b'"ts": 5x0,'))
    table = read_chrome_trace(RealHost(), str(path))
    assert len(table) == 99
    assert table.skipped == 1


def test_names_that_are_not_utf8_are_read(tmp_path):
    path = write_kineto(tmp_path / "trace.json", [span("kernel_X", at, 1, "kernel") for at in range(20)])
    path.write_bytes(path.read_bytes().replace(b"kernel_X", b"kernel_\xff"))
    assert len(read_chrome_trace(RealHost(), str(path))) == 20


def test_gzip_and_ranks_by_their_own_word(tmp_path):
    data = {
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "traceEvents": [span("aten::mm", 0, 5, "cpu_op")],
    }
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(data).encode()))
    table = read_chrome_trace(RealHost(), str(tmp_path / "t.json.gz"))
    assert (table.rank, table.world_size, len(table)) == (3, 8, 1)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader_of_events(data):
    events_of(b'{"traceEvents": [' + data, 64)


@pytest.mark.parametrize(
    ("line", "host_ms", "device_ms"),
    [
        ("[TRT-LLM] [I] iter = 198, global_rank = 0, rank = 0, currank_total_requests = 0/0, elapsed_time = 0.005060911178588867s, timestamp = 2025-04-28 09:56:44, num_scheduled_requests: 10, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 16}", 5.06, -1),
        ("iter = 198, global_rank = 0, rank = 0, currank_total_requests = 1/2, host_step_time = 6.5ms, prev_device_step_time = 6.1ms, timestamp = 2026-01-01 00:00:00, num_scheduled_requests: 10, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 16}", 6.5, 6.1),
        ("iter = 198, global_rank = 0, rank = 0, num_scheduled_requests = 10, kv_cache_util = 0.5, currank_total_requests = 1/2, host_step_time = 6.5ms, prev_device_step_time = N/A, timestamp = x, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 16, 'cached_kv_tokens': 3}", 6.5, -1),
    ],
    ids=["0.20", "1.2", "1.3"],
)  # fmt: skip
def test_iteration_lines_of_every_era(line, host_ms, device_ms):
    iteration = parse_iteration_line(line, "log:1")
    assert (iteration.index, iteration.scheduled, iteration.generation_tokens) == (198, 10, 16)
    assert iteration.host_ms == pytest.approx(host_ms, abs=0.01)
    assert iteration.device_ms == device_ms


def test_tritons_lines():
    line = 'I1218 03:35:37.688135 20559 libtensorrtllm.cc:1205] {"Active Request Count":1,"Iteration Counter":7,"Max Request Count":64,"Used KV cache blocks":1,"Max KV cache blocks":513}'
    iteration = parse_iteration_line(line, "log:1")
    assert (iteration.index, iteration.active, iteration.kv_max) == (7, 1, 513)


def test_a_benchmark_report(tmp_path):
    report = {
        "world_info": {"tp_size": 2, "max_batch_size": 64},
        "request_info": {"num_requests": 100, "avg_input_length": 128, "avg_output_length": 64},
        "performance": {"total_latency_ms": 1000, "avg_request_latency_ms": 80, "system_output_throughput_tok_s": 6400},
        "streaming_metrics": {"avg_ttft_ms": 12, "avg_tpot_ms": 4},
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    figures = read_recordings(RealHost(), [str(tmp_path / "report.json")]).benchmarks[0]
    assert (figures.ttft_ms, figures.tpot_ms, figures.concurrency, figures.tp) == (12, 4, 8, 2)


def test_a_file_without_times_is_refused_with_what_would_do(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="nothing that has times"):
        read_recordings(RealHost(), [str(tmp_path / "x.json")])


def test_an_nsight_export_in_the_documented_schema(tmp_path):
    steps = [
        (at, at + 900_000, f"[Executor] _forward_step {at // 1_000_000}: 0 ctx reqs, 4 gen reqs")
        for at in range(0, 6_000_000, 1_000_000)
    ]
    calls = [(at + 1000, at + 6000, "cudaLaunchKernel_v7000", at + 1) for at, _, _ in steps]
    kernels = [(at + 10_000, at + 800_000, "gemm", at + 1) for at, _, _ in steps]
    path = write_nsight(tmp_path / "report.sqlite", kernels=kernels, calls=calls, ranges=steps)
    analysis = analyse_files(RealHost(), [str(path)])
    (timeline,) = analysis.timelines
    assert len(timeline.steps) == 6
    assert timeline.kernels == 6
    compute = analysis.ledger.by_category()
    assert sum(compute.values()) == pytest.approx(analysis.ledger.wall, rel=0.001)
    assert {context.phase for context in analysis.ledger.by_context if context.name == "gemm"} == {"decode"}


def test_times_add_up_on_any_spans(tmp_path):
    """Also where spans overlap without order, as no profiler should write them."""
    numbers = random.Random(7)
    for number in range(20):
        events = [
            span(
                numbers.choice(["aten::mm", "gloo:all_reduce", "Python GC", "module:layers.1.mlp"]),
                numbers.uniform(0, 900),
                numbers.uniform(0, 200),
                numbers.choice(["cpu_op", "user_annotation", "kernel", "gpu_memcpy", "cuda_runtime"]),
                thread=numbers.choice([1, 2]),
                correlation=numbers.randrange(9),
            )
            for _ in range(60)
        ]
        analysis = analyse_files(RealHost(), [str(write_kineto(tmp_path / f"{number}.json", events))])
        assert sum(analysis.ledger.by_context.values()) == pytest.approx(analysis.ledger.wall, rel=1e-6)


def test_steps_of_a_device_trace(tmp_path):
    events, at = [], 0.0
    for step in range(6):
        more, at = kernel_step(step, at, kernels=20, kernel_us=10, gap_us=1)
        events += more
    (timeline,) = analyse_files(RealHost(), [str(write_kineto(tmp_path / "t.json", events))]).timelines
    assert timeline.has_device
    assert [step.phase for step in timeline.steps] == ["decode"] * 6


def test_a_view_that_never_ends_is_not_asked(tmp_path):
    """A view or a virtual table of an export is a program of whoever wrote the file."""
    path = write_nsight(tmp_path / "report.sqlite", kernels=[(0, 5_000, "gemm", 1)])
    with closing(sqlite3.connect(path)) as base:
        base.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
        base.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) "
            "SELECT n AS start, n AS end, n AS globalTid, n AS correlationId, 1 AS nameId FROM c"
        )
        base.commit()
    (table,) = read_recordings(RealHost(), [str(path)]).tables
    assert len(table) == 1


@pytest.mark.parametrize("value", [None, "x", b"\xff", 9.9e300])
def test_times_that_are_none_are_left_out_of_an_export_and_counted(tmp_path, value):
    path = write_nsight(tmp_path / "report.sqlite", kernels=[(0, 5_000, "gemm", 1), (9_000, 9_500, "gemm", 2)])
    with closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = ? WHERE rowid = 1", (value,))
        base.commit()
    recordings = read_recordings(RealHost(), [str(path)])
    assert len(recordings.tables[0]) == 1
    assert "1 damaged" in recordings.problems[0]


@pytest.mark.parametrize(
    "document",
    [
        [{"computeMs": 1, "startEnqMs": "x"}],
        [{"name": "gemm", "averageMs": {}}],
        {"performance": 1, "request_info": []},
        [{"iterLatencyMS": 1, "iter": "x", "kvCacheStats": 7}],
    ],
)
def test_records_of_the_wrong_kind_break_nothing(tmp_path, document):
    (tmp_path / "x.json").write_text(json.dumps(document))
    read_recordings(RealHost(), [str(tmp_path / "x.json")])
