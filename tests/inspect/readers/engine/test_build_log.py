"""Verbose build logs tell kernels, tensors, profiles and memory, whoever wrote their prefixes."""

from __future__ import annotations

import itertools
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import make_build_log as make
from support.make_onnx import CONTEXT, GENERATION, exported_llama
from trtdx.formats.tensorrt.kernels import parse_kernel_line, parse_kernel_nodes
from trtdx.formats.tensorrt.nouns import Kernel
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.facts.artifact import Artifact, Deployment
from trtdx.inspect.readers import probe_path
from trtdx.inspect.readers.engine.build_log import READER, iterate_lines_with, read_build_log
from trtdx.inspect.readers.onnx.onnx_file import read_onnx_file as read_onnx
from trtdx.inspect.sections.kernels import common_module, kernel_list_section, kernel_sections

HOST = RealHost()


def told(text):
    return read_build_log(RecordedHost({"build.log": text.encode()}), "build.log")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The log of a real build by TensorRT-RTX, with detailed verbosity and two profiles."""
    return make.build_log(exported_llama(), tmp_path_factory.mktemp("build"), [CONTEXT, GENERATION])


@pytest.fixture(scope="module")
def log(real):
    return read_build_log(HOST, str(real))


@pytest.mark.heavy
def test_a_real_log_is_recognised(real):
    assert READER.recognise(HOST, probe_path(HOST, str(real)))


@pytest.mark.heavy
def test_kernels_of_a_real_log(log):
    kinds = {kernel.kind for kernel in log.kernels}
    assert {"kgen", "gemm"} <= kinds
    assert log.get("log.layers") == len(log.kernels) > 20
    assert {kernel.profile for kernel in log.kernels} == {0, 1}
    (head, *_) = [kernel for kernel in log.kernels if kernel.nodes == ("node_linear_7",)]
    assert (head.kind, head.tactic) == ("gemm", "__myelin_CASK_STUB")


def test_kernels_of_one_graph_have_one_profile(log):
    by_graph = {}
    for kernel in log.kernels:
        if graph := re.search(r"_myl(\d+)_\d+$", kernel.name):
            by_graph.setdefault(graph[1], set()).add(kernel.profile)
    assert sorted(by_graph.values(), key=str) == [{0}, {1}]


def test_tensors_and_profiles_of_a_real_log(log):
    assert [(tensor.name, tensor.mode, tensor.dtype, tensor.shape) for tensor in log.tensors][3:6] == [
        ("past_key_values.0.key", "in", "float32", ("?", 2, "?", 8)),
        ("past_key_values.0.value", "in", "float32", ("?", 2, "?", 8)),
        ("logits", "out", "float32", ("?", "?", 100)),
    ]
    for profile, shapes in zip(log.profiles, (CONTEXT, GENERATION), strict=True):
        assert {
            span.tensor: {"min": [*span.min], "opt": [*span.opt], "max": [*span.max]} for span in profile.ranges
        } == shapes


def test_memory_of_a_real_log(log):
    assert len(log.get("log.activation_bytes")) == len(log.get("log.scratch_bytes")) == 2
    assert all(size > 8_000_000 for size in log.get("log.activation_bytes"))
    assert log.get("log.weights_bytes") > 50_000
    assert 0 < log.get("log.build_seconds") < 60


def test_the_model_is_named_where_it_lies(log):
    assert log.refers_to == (str(exported_llama()),)


def test_kernels_are_traced_to_modules(log):
    scopes = read_onnx(HOST, str(exported_llama())).table("onnx.modules")
    modules = {kernel.nodes: common_module(kernel, scopes) for kernel in log.kernels}
    assert modules["node_linear_7",] == "llama.lm_head"
    assert modules["node_linear_5", "node_linear_4"] == "llama.model.layers.0.mlp"
    section = kernel_list_section(log, scopes)
    (row, *_) = [row for row in section.rows if row[4] == "node_linear_6"]
    assert row[5] == "llama.model.layers.0.mlp.down_proj"


def test_summaries_have_the_most_kernels_first(log):
    onnx = read_onnx(HOST, str(exported_llama()))
    by_type, by_module, listing = kernel_sections(log, Deployment((log, onnx)))
    assert by_type.columns == ("type", "kernels", "in profile 0", "in profile 1")
    for section in (by_type, by_module):
        counts = [row[1] for row in section.rows]
        assert counts == sorted(counts, reverse=True)
        assert sum(counts) == len(log.kernels) == len(listing.rows)
    assert "llama.model.layers.*.self_attn" in [row[0] for row in by_module.rows]
    assert all(row[1] == sum(row[2:]) for row in by_type.rows)


def test_without_the_model_the_nodes_are_still_told(log):
    _, by_module, listing = kernel_sections(log, Deployment((log,)))
    assert "give the ONNX file" in by_module.note
    assert [row[0] for row in by_module.rows] == ["(unknown)"]
    assert any(row[4] == "node_linear_7" for row in listing.rows)


@pytest.mark.heavy
def test_a_real_log_with_names_only(tmp_path):
    log = read_build_log(HOST, str(make.build_log(exported_llama(), tmp_path, [GENERATION], "LAYER_NAMES_ONLY")))
    (foreign,) = [kernel for kernel in log.kernels if kernel.kind == "Myelin"]
    assert foreign.name.startswith("{ForeignNode[")
    assert "node_linear_7" in foreign.nodes
    assert [tensor.name for tensor in log.tensors if tensor.mode == "out"] == [
        "logits",
        "present.0.key",
        "present.0.value",
    ]


def test_a_log_of_tensorrt_llm():
    log = told(make.TENSORRT_LLM_LOG)
    assert log.get("version") == "0.21.0"
    assert log.get("log.activation_bytes") == [399360000, 499360000]
    assert log.get("log.scratch_bytes") == [184320000]
    assert log.get("log.weights_bytes") == 157136256
    assert log.get("log.build_seconds") == 76.0
    assert log.get("log.peak_bytes") == 4851 << 20
    assert log.get("log.peak_gpu_bytes") == 150 << 20
    assert log.get("log.memory_changes")[1] == {
        "what": "Init builder kernel library",
        "cpu_change_mib": 1799,
        "gpu_change_mib": 312,
        "cpu_mib": 2061,
        "gpu_mib": 574,
    }
    assert [[(span.tensor, span.min, span.max) for span in profile.ranges] for profile in log.profiles] == [
        [("input_ids", (1,), (256,)), ("host_past_key_value_lengths", (1,), (16,))],
        [("input_ids", (256,), (8192,)), ("host_past_key_value_lengths", (1,), (16,))],
    ]
    assert [(kernel.kind, kernel.profile) for kernel in log.kernels] == [
        ("PluginV2", 0),
        ("PluginV2", 1),
        ("Myelin", 0),
    ]
    assert common_module(log.kernels[0], {}) == "LLaMAForCausalLM.transformer.layers.0.attention.qkv"


def test_dimension_names_of_tensorrt_llm():
    assert [(tensor.name, tensor.mode, tensor.shape) for tensor in told(make.TENSORRT_LLM_LOG).tensors] == [
        ("input_ids", "in", ("num_tokens",)),
        ("host_past_key_value_lengths", "in", ("batch_size",)),
    ]
    assert [tensor.shape for tensor in told(make.TRTEXEC_LOG).tensors] == [("?", 3, 64, 64)]


def test_a_log_of_an_old_release():
    log = told(make.OLD_LOG)
    assert log.get("log.activation_bytes") == [6308236288]
    assert log.get("log.weights_bytes") == 26529804072
    assert log.kernels == (
        Kernel("Conv_0 + PWN(Relu_1)", "CaskConvolution", ("Conv_0", "Relu_1"), "0x4727434768e46395"),
        Kernel("Reformatting CopyNode for Input Tensor 0 to Conv_2", "Reformat", (), "0"),
    )


def test_a_log_of_trtexec():
    log = told(make.TRTEXEC_LOG)
    assert [profile.ranges[0].max for profile in log.profiles] == [(10, 3, 64, 64), (1, 3, 64, 64)]
    assert log.get("log.plan_bytes") == 12.5 * (1 << 20)
    assert log.get("tensorrt") == "10.12.0"


def test_a_log_of_polygraphy():
    first, second = told(make.POLYGRAPHY_LOG).profiles
    assert [(span.tensor, span.max) for span in first.ranges] == [
        ("input_ids", (4, 32)),
        ("attention_mask", (4, 32)),
    ]
    assert [(span.tensor, span.opt) for span in second.ranges] == [
        ("input_ids", (2, 1)),
        ("attention_mask", (2, 9)),
    ]


@pytest.mark.parametrize("text", [make.TENSORRT_LLM_LOG, make.OLD_LOG, make.TRTEXEC_LOG, make.POLYGRAPHY_LOG])
def test_logs_are_recognised(tmp_path, text):
    (tmp_path / "x.log").write_text(text)
    assert READER.recognise(HOST, probe_path(HOST, str(tmp_path / "x.log")))


@pytest.mark.parametrize("data", [b"hello\n", b"", b"[TRT] [V]\0binary", b"name: tensorrt_llm\n", b'{"a": 1}'])
def test_other_files_are_not(tmp_path, data):
    (tmp_path / "x.log").write_bytes(data)
    assert not READER.recognise(HOST, probe_path(HOST, str(tmp_path / "x.log")))


def test_a_prefix_on_every_line_does_no_harm():
    lines = make.TENSORRT_LLM_LOG.splitlines()
    prefixed = "\n".join(f"2025-05-03T10:30:31.123Z stdout F {line}" for line in lines)
    assert told(prefixed).kernels == told(make.TENSORRT_LLM_LOG).kernels


def test_node_names_with_brackets():
    assert parse_kernel_nodes("[ONNX Layer: /m/Gather[0]]\x1f[ONNX Layer: b]\r") == ("/m/Gather[0]", "b")
    assert parse_kernel_nodes(" layers.0.fc\x1elayers.0.act\x1elayers.0.fc\r") == (
        "layers.0.fc",
        "layers.0.act",
    )


def test_nothing_is_said_of_an_empty_log():
    assert told("").facts == {}


def test_a_log_that_vanishes_is_a_note():
    assert "No such file" in read_build_log(HOST, "/nowhere/build.log").unread[0]


class Endless:
    """A stream of a verbose log as long as asked for."""

    def __init__(self, size):
        self._left = size
        line = b"[05/03/2025-10:30:43] [TRT] [V] Tactic: 0x00000000000003e8 Time: 0.00507949\n"
        self._block = line * 20_000

    def read(self, size):
        block = self._block[: min(size, self._left)]
        self._left -= len(block)
        return block


def test_a_long_log_needs_little_memory():
    tracemalloc.start()
    try:
        assert list(iterate_lines_with(Endless(300 << 20), (b"LayerType",))) == []
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.heavy
def test_a_long_log_is_read_to_its_end():
    host = RecordedHost({"x.log": make.TENSORRT_LLM_LOG.encode()})
    host.open = lambda _: EndlessFile(200 << 20)
    assert read_build_log(host, "x.log").kind == "build-log"


class EndlessFile(Endless):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_lines_across_blocks_are_whole(monkeypatch):
    text = b"".join(b"line %d LayerType end\nother\n" % number for number in range(200))
    for size in (7, 64, 1000):
        monkeypatch.setattr("trtdx.inspect.readers.engine.build_log.BLOCK_BYTES", size)
        with RecordedHost({"x": text}).open("x") as stream:
            assert [line.split()[1] for line in iterate_lines_with(stream, (b"LayerType",))] == [
                str(n) for n in range(200)
            ]


def test_a_line_without_end_is_cut():
    with RecordedHost({"x": b"Name: a, LayerType: b, " + b"x" * (9 << 20)}).open("x") as stream:
        assert max(map(len, iterate_lines_with(stream, (b"LayerType",))), default=0) <= 1 << 20


def test_many_kernels_are_counted_and_not_all_kept():
    line = "Name: k, LayerType: kgen, Inputs: [], TacticName: , StreamId: 0, Metadata:\n"
    log = told(line * 50_010)
    assert log.get("log.layers") == 50_010
    assert log.unread == ("10 kernels were left out",)


def test_sections_of_many_kernels_are_cut():
    kernels = tuple(Kernel(f"k{number}", "kgen") for number in range(1500))
    section = kernel_list_section(Artifact("build-log", "x.log", kernels=kernels), {})
    assert len(section.rows) == 1000
    assert section.note == "1500 kgen; 500 more are not shown"


WORDS = st.sampled_from(
    ["Name: ", ", LayerType: ", "Metadata:", "[ONNX Layer: ", "Layer(", "Total Activation Memory: ", "9" * 30, "[MemUsageChange] ",
     ", IOMode: ", " [min=", "Input build shape", ", dimension names: ", "Total time of building ", "\n", "]", "[profile ", "x"]
)  # fmt: skip


@pytest.mark.heavy
@settings(max_examples=300, deadline=2000)
@given(st.lists(WORDS | st.text(max_size=10), max_size=40))
def test_any_text_is_read(words):
    assert told("".join(words).encode("utf-8", "replace").decode("utf-8", "replace")).kind == "build-log"


def test_a_hostile_line_takes_no_time():
    for word in (
        "Name: a, IOMode: ",
        "Input build shape: ",
        "x, min: [",
        "{a [min=[",
        "Total time of building ",
    ):
        for filler in ("1" * 100_000, "a, " * 30_000, "[" * 100_000, "(1, " * 20_000):
            told(f"[TRT] [V] {word}{filler}")
    assert parse_kernel_line("Name: " * 10_000) is None


def test_kernels_belong_to_the_log_order():
    log = told("\n".join(f"Name: k{number}, LayerType: t, x" for number in itertools.islice(itertools.count(), 5)))
    assert [kernel.name for kernel in log.kernels] == ["k0", "k1", "k2", "k3", "k4"]


FAILED_LOG = """\
[TensorRT-LLM] TensorRT-LLM version: 0.10.0.dev2024041600
[04/22/2024-12:18:18] [TRT-LLM] [I] Set gemm_plugin to float32.
[04/22/2024-12:19:18] [TRT] [W] Unused Input: position_ids
[04/22/2024-12:19:18] [TRT] [E] 9: attention/PLUGIN_V2_GPTAttention_0: could not find any supported formats
[04/22/2024-12:19:18] [TRT] [E] 9: [pluginV2Builder.cpp::reportPluginError::24] Error Code 9: Internal Error
Traceback (most recent call last):
TypeError: a bytes-like object is required, not 'NoneType'
"""


def test_a_build_that_failed_has_its_first_errors():
    errors = told(FAILED_LOG).get("log.errors")
    assert len(errors) == 3
    assert errors[0].startswith("[04/22/2024-12:19:18] [TRT] [E] 9: attention/PLUGIN_V2_GPTAttention_0: could not")
    assert errors[2] == "TypeError: a bytes-like object is required, not 'NoneType'"


@pytest.mark.parametrize(
    "text",
    [
        make.TENSORRT_LLM_LOG,
        make.OLD_LOG,
        make.TRTEXEC_LOG,
        make.POLYGRAPHY_LOG,
        "[TRT] [I] Checking the [E] marks\n[TRT] [V] Error: none of these lines is one\n",
        "[TRT] [E] Skipping tactic 3 due to memory\n[TRT] [I] Engine generation completed in 3.1 seconds.\n",
    ],
)
def test_a_build_that_made_an_engine_has_no_errors(text):
    assert not told(text).has("log.errors")


@pytest.mark.parametrize(
    "line",
    [
        "[E] [TRT] 4: broadcast dimensions must be conformable",
        "[01/02/2025-10:00:00] [E] Engine could not be created from network",
        "[TensorRT] ERROR: Network must have at least one output",
        "[TensorRT-LLM][ERROR] Assertion failed",
        "[TRT-LLM] [RANK 1] [E] Failed to build",
        "tensorrt_llm.builder.BuildError: no",
    ],
)
def test_errors_of_all_eras_are_known(line):
    assert told(f"[TRT] [I] x\n{line}\n").get("log.errors") == [line]


def test_errors_are_few_and_short():
    errors = told("[TRT] [E] " + "\n[TRT] [E] x".join("y" * 1000 for _ in range(100))).get("log.errors")
    assert (len(errors), max(map(len, errors))) == (20, 300)
