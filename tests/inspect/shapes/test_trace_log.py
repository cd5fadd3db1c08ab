"""Tables of shapes at run time, from logs at level TRACE."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.make_engine import make_engine
from support.make_settings import engine
from support.make_trace_log import (
    LAYOUTS,
    Tensor,
    context_table,
    engine_table,
    glm_profile,
    glm_shapes,
    glm_tensors,
    lines,
    log_bytes,
)
from trtdx.errors import InputError
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.run import InspectQuestion, inspect_artifacts
from trtdx.inspect.shapes.distribution import SizeHistogram
from trtdx.inspect.shapes.trace_log import artifact_from_log, read_shape_log, shape_tables
from trtdx.knowledge.load import load_book
from trtdx.model import Severity

TENSORS, PROFILE = glm_tensors(), glm_profile()


def read(*parts, name="rank.log"):
    data = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else log_bytes(*parts)
    return read_shape_log(RecordedHost({name: data}), name)


def loaded(**options):
    return lines(engine_table(TENSORS, [PROFILE]), **options)


def ran(tokens, sequences, *, profile=0, **options):
    return lines(context_table(TENSORS, glm_shapes(tokens, sequences), profile), **options)


def section(log, key, given=None):
    return next(section for section in shape_tables(log, given) if section.key == key)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_of_the_log_are_read(layout):
    log = read(loaded(layout=layout), ran(300, 3, layout=layout), ran(3, 3, layout=layout))
    (logged,) = log.engines
    assert logged.executions == 2
    assert dict(zip(logged.names, logged.first[0].shapes, strict=True)) == glm_shapes(300, 3)
    assert log.notes == ()


def test_inputs_outputs_and_profiles_are_an_artifact():
    artifact = artifact_from_log(read(lines(["something else"]), loaded()))
    assert [(tensor.name, tensor.mode) for tensor in artifact.tensors][-2:] == [
        ("cache_indirection", "in"),
        ("logits", "out"),
    ]
    assert artifact.tensors[3].shape == (1, "?", 2, "?")
    (profile,) = artifact.profiles
    assert profile.source == "read from rank.log:25"
    assert {span.tensor: (span.min, span.opt, span.max) for span in profile.ranges} == {
        name: bounds for name, bounds in PROFILE.items() if name != "logits"
    }


def test_what_tensorrt_llm_prints_in_its_guide_is_read():
    """Rows as they stand in docs/source/reference/troubleshooting.md of v0.20.0."""
    text = b"""\
[TensorRT-LLM][TRACE] Information of context input / output.
[TensorRT-LLM][TRACE] Using Optimization Profile: 0
[TensorRT-LLM][TRACE] =================================================
[TensorRT-LLM][TRACE]              Name              |I/O|   Shape    |
[TensorRT-LLM][TRACE] -------------------------------------------------
[TensorRT-LLM][TRACE] input_ids                      | I |    (33)    |
[TensorRT-LLM][TRACE] kv_cache_block_offsets         | I |(1, 3, 2, 4)|
[TensorRT-LLM][TRACE] cache_indirection              | I |(3, 2, 256) |
[TensorRT-LLM][TRACE] logits                         | O | (3, 65024) |
[TensorRT-LLM][TRACE] =================================================
"""
    (logged,) = read(text).engines
    assert logged.first[0].shapes == ((33,), (1, 3, 2, 4), (3, 2, 256), (3, 65024))


def test_other_lines_colours_and_windows_ends_are_passed_over():
    noise = "[TensorRT-LLM][TRACE] void tensorrt_llm::runtime::TllmRuntime::setInputTensors(...) start | stop"
    table = list(ran(300, 3))
    mixed = [each for line in table for each in (noise, f"\x1b[32m{line}\x1b[0m\r", "[TensorRT-LLM][INFO] a|b|")]
    assert read(loaded(), mixed).executions == 1


def test_ranks_that_write_into_each_other_are_told_apart():
    first, second = list(ran(300, 3, tag="[1,0]<stdout>:")), list(ran(200, 2, tag="[1,1]<stdout>:"))
    woven = [line for pair in zip(first, second, strict=True) for line in pair]
    (logged,) = read(woven).engines
    assert dict(logged.by_rank) == {0: 1, 1: 1}
    assert {each.rank: each.shapes[0] for each in logged.first} == {0: (300,), 1: (200,)}


@pytest.mark.parametrize("tag", ["[1,3]<stdout>:", " 3: ", "[rank3]:", "2026-10-01T10:00:00Z [1,3]<stderr>:"])
def test_the_rank_is_in_what_the_launcher_puts_before(tag):
    (logged,) = read(ran(300, 3, tag=tag)).engines
    assert dict(logged.by_rank) == {3: 1}


def test_ranks_that_nothing_tells_apart_are_left_out_and_said():
    first, second = list(ran(300, 3)), list(ran(200, 2))
    log = read([line for pair in zip(first, second, strict=True) for line in pair])
    assert log.executions == 0
    assert "mpirun --tag-output" in log.notes[0]


def test_a_table_that_is_cut_off_is_left_out_and_said():
    log = read(ran(300, 3), list(ran(3, 3))[:-4])
    assert log.executions == 1
    assert log.notes == ("1 table cut off and left out",)


def test_the_python_session_prints_no_sizes():
    """`print_context_info` of runtime/generation.py (0.19 to 1.2.1) prints the engine's shapes, -1 and all."""
    shapes = {each.name: each.shape for each in TENSORS}
    table = [line.replace("(-1)", "(-1,)") for line in context_table(TENSORS, shapes)]
    log = read([f"[11/16/2025-10:00:00] [TRT-LLM] [V] {line}" for line in table])
    assert log.executions == 0
    assert "Python session" in log.notes[0]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_logs_are_read(pack):
    assert read(pack(log_bytes(loaded(), ran(300, 3)))).executions == 1


def test_a_folder_has_a_log_for_each_rank(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_bytes(log_bytes(loaded(), ran(300 + rank, 3)))
    (tmp_path / "rank0.engine").write_bytes(log_bytes(ran(300, 3)))
    (logged,) = read_shape_log(RealHost(), str(tmp_path)).engines
    assert dict(logged.by_rank) == {0: 1, 1: 1}
    assert len(logged.profiles) == 1


def test_a_log_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InputError):
        read_shape_log(RealHost(), str(tmp_path / "no.log"))


def test_two_engines_in_one_process_are_told_apart():
    draft = [Tensor("input_ids", "I", "int32", (-1,)), Tensor("logits", "O", "float32", (-1, 9))]
    table = lines(context_table(draft, {"input_ids": (5,), "logits": (1, 9)}))
    log = read(loaded(), ran(300, 3), table, ran(3, 3))
    assert [each.executions for each in log.engines] == [2, 1]
    assert [section.title.endswith("(engine 2)") for section in shape_tables(log)] == [False] * 4 + [True] * 4


def test_executions_show_what_changed_from_step_to_step():
    log = read(loaded(), ran(300, 3), ran(3, 3), ran(3, 3), ran(2, 2))
    found = section(log, "shape-executions")
    rows = [(row[0], row[4], row[5], row[6]) for row in found.rows]
    assert (1, "input_ids, position_ids", "(300)", "") in rows
    assert (2, "input_ids, position_ids", "(3)", "(300)") in rows
    assert (4, "input_ids, position_ids and 6 more", "(2)", "(3)") in rows
    assert not [row for row in rows if row[0] == 3]
    assert found.note.startswith("4 executions; shapes changed 2 times (input_ids 2 times")


def test_ranges_show_the_room_left_in_the_profile():
    log = read(loaded(), ran(4096, 3), ran(8, 8))
    rows = {row[1]: row for row in section(log, "shape-ranges").rows}
    tokens = rows["tokens of one step, all requests packed"]
    assert tokens[3:] == (8, 4096, "1 to 8192", "4096 (50 %)", "fits")
    assert rows["sequences, requests times beams"][7] == "full"
    assert rows["prompt and answer together"][7].startswith("always of full size")


def test_shapes_outside_the_profile_are_said_with_the_flag():
    log = read(loaded(), ran(9000, 3))
    rows = {row[1]: row for row in section(log, "shape-ranges").rows}
    verdict = rows["tokens of one step, all requests packed"][7]
    assert verdict == "outside the profile, rebuild with --max_num_tokens"


def test_an_engine_lends_its_profile_to_a_log_without_one():
    given = engine(max_batch_size=8, max_seq_len=2048, version="0.14.0", num_layers=28, tokens_per_block=64)
    log = read(ran(4096, 3))
    assert section(log, "shape-ranges").note == "The log holds no profiles, and no engine was given."
    found = section(log, "shape-ranges", given)
    assert found.note == "Profiles derived from build settings of 0.14.0."
    assert "1 to 8192" in {row[5] for row in found.rows}


def test_the_distribution_suggests_another_optimum():
    executions = [list(ran(64, 8))] * 90 + [list(ran(7000, 8))] * 10
    log = read(loaded(), *executions)
    rows = {row[1]: row for row in section(log, "shape-distribution").rows}
    tokens = rows["tokens of one step, all requests packed"]
    assert tokens[2:7] == (64, 64, 7000, 7000, 8)
    assert tokens[7] == "--opt_num_tokens 64, or --multiple_profiles enable: prompts and answers differ much"


def test_an_optimum_for_batches_is_moved_by_their_bound():
    big = {name: tuple(tuple(256 if size == 8 and name != "input_ids" else size for size in shape) for shape in bounds)
           for name, bounds in PROFILE.items()}  # fmt: skip
    big = {
        name: (low, tuple(128 if size == 4 else size for size in best), high) for name, (low, best, high) in big.items()
    }
    log = read(lines(engine_table(TENSORS, [big])), *(list(ran(6, 6)) for _ in range(5)))
    rows = {row[1]: row for row in section(log, "shape-distribution").rows}
    assert rows["sequences, requests times beams"][7] == "--max_batch_size 11, whose optimum is 6"


def test_profiles_show_how_many_executions_each_served():
    two = lines(engine_table(TENSORS, [PROFILE, PROFILE]))
    log = read(two, ran(300, 3), ran(3, 3, profile=1), ran(3, 3, profile=1), ran(3, 3, profile=1))
    assert section(log, "shape-profiles").rows == (
        (0, 1, "25.0 %", "1 to 8192"),
        (1, 3, "75.0 %", "1 to 8192"),
    )


@pytest.mark.heavy
def test_a_long_log_takes_little_memory(tmp_path):
    path = tmp_path / "trace.log"
    with path.open("wb") as file:
        file.write(log_bytes(loaded()))
        for number in range(6000):
            file.write(log_bytes(ran(1 + number % 5000, 1 + number % 8)))
    code = (
        "import resource, sys\n"
        "from trtdx.host import RealHost\n"
        "from trtdx.inspect.shapes.trace_log import read_shape_log, shape_tables\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "log = read_shape_log(RealHost(), sys.argv[1]); shape_tables(log)\n"
        "print(log.executions, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=100, check=True)
    executions, grown_kib = map(int, done.stdout.split())
    assert executions == 6000
    assert grown_kib < 40 << 10


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=300))
def test_percentiles_are_those_of_the_values(values):
    histogram = SizeHistogram()
    for value in values:
        histogram.add(value, 1)
    assert (histogram.low, histogram.high) == (min(values), max(values))
    assert histogram.percentile(0.5) == sorted(values)[(len(values) + 1) // 2 - 1]


def test_many_distinct_sizes_are_kept_to_within_one_percent():
    histogram = SizeHistogram()
    for value in range(1, 200_001):
        histogram.add(value, 1)
    assert histogram.distinct < 4096
    assert abs(histogram.percentile(0.9) - 180_000) < 1800


SHAPES = st.lists(st.integers(0, 10**6), max_size=5).map(tuple)
TENSOR_LISTS = st.lists(
    st.builds(
        Tensor,
        st.from_regex(r"[a-z][a-z_0-9]{0,30}", fullmatch=True),
        st.sampled_from("IO"),
        st.sampled_from(["int32", "int64", "float16", "bool"]),
        SHAPES,
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each.name,
)


@pytest.mark.heavy
@given(TENSOR_LISTS, st.data(), st.sampled_from(LAYOUTS))
def test_tables_that_were_written_are_read_back(tensors, data, layout):
    shapes = [data.draw(st.tuples(*(SHAPES for _ in tensors))) for _ in range(3)]
    profile = {tensor.name: (tensor.shape, tensor.shape, tensor.shape) for tensor in tensors}
    written = [engine_table(tensors, [profile])]
    written += [context_table(tensors, dict(zip((t.name for t in tensors), each, strict=True)), 0) for each in shapes]
    (logged,) = read(*(lines(part, layout) for part in written)).engines
    assert [each.shapes for each in logged.first] == shapes
    assert [(tensor.name, tensor.mode, tensor.dtype, tensor.shape) for tensor in logged.tensors] == [
        (tensor.name, "in" if tensor.mode == "I" else "out", tensor.dtype, tensor.shape) for tensor in tensors
    ]


PIECES = [line.encode() + b"\n" for line in [*loaded(), *ran(300, 3), *ran(3, 3, layout="1.3.0rc21")]]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=60)), max_size=40))
def test_any_bytes_are_a_log_of_some_kind_or_refused_in_words(parts):
    with contextlib.suppress(InputError):
        log = read(b"".join(parts))
        assert shape_tables(log)
        assert artifact_from_log(log).kind == "profiles"


@given(st.binary(max_size=300), st.sampled_from([b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"]))
def test_damaged_compressed_logs_are_refused_in_words(data, magic):
    with pytest.raises(InputError, match="no table of shapes was found"):
        read(magic + data)


@pytest.mark.parametrize(
    "text", [b"", b"nothing of the kind\n", b"[TensorRT-LLM][TRACE] Information of us\n| a | b |\n"]
)
def test_a_log_without_a_table_is_an_error_that_says_how_to_get_them(text):
    with pytest.raises(InputError, match="no table of shapes was found") as caught:
        read_shape_log(RecordedHost({"serve.log": text}), "serve.log")
    assert "TLLM_LOG_LEVEL=TRACE" in caught.value.fix


def judged(path, *parts, engine_path=()):
    path.write_bytes(log_bytes(*parts))
    question = InspectQuestion(paths=tuple(map(str, engine_path)), shape_logs=(str(path),))
    return inspect_artifacts(RealHost(), question, load_book(RealHost()))


def test_shapes_outside_the_profile_are_an_error_with_the_limit_that_would_do(tmp_path):
    report = judged(tmp_path / "rank.log", loaded(), ran(300, 3), ran(30000, 3))
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("DX275", Severity.ERROR)
    assert "30000 (allowed 1 to 8192)" in finding.message
    assert finding.fixes[0].command.endswith("--max_num_tokens 30000")
    assert "error; first: DX275" in report.summary.text


def test_several_dimensions_outside_are_one_finding_and_an_engine_keeps_its_other_flags(tmp_path):
    make_engine(tmp_path / "engine", max_batch_size=2, max_num_tokens=256, gemm_plugin="auto")
    report = judged(tmp_path / "rank.log", ran(300, 3), engine_path=[tmp_path / "engine"])
    (finding,) = report.findings
    command = finding.fixes[0].command
    assert "--max_batch_size" in command
    assert "--max_num_tokens 300" in command
    assert "--gemm_plugin auto" in command


def test_shapes_inside_the_profile_are_judged_and_without_one_they_are_not(tmp_path):
    fits = judged(tmp_path / "rank.log", loaded(), ran(300, 3))
    assert not fits.findings
    assert "nothing disagrees (1 agreement judged)" in fits.summary.text
    without = judged(tmp_path / "bare.log", ran(300, 3))
    assert without.summary.text == "nothing could be judged"
    assert "holds no optimization profiles" in without.summary.unjudged[0].reason
