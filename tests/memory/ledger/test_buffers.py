"""Buffers beside weights, activations and cache, against what logs printed."""

from __future__ import annotations

from typing import Any

import pytest

from support.make_setups import B200, DEEPSEEK, GPT_OSS_120B, LLAMA_7B, LLAMA_8B, make_setup
from trtdx.memory.ledger.buffers import late_logits, rank_buffers
from trtdx.memory.ledger.cuda_graphs import count_captured_graphs
from trtdx.memory.nouns import GIB, MIB, Component, Dims, Setup, sum_figures

GPT_J = Dims(
    num_layers=28, hidden_size=4096, num_heads=16, num_kv_heads=16, head_dim=256, intermediate_size=16384,
    vocab_size=50400, gated=False,
)  # fmt: skip
QWEN_05B = Dims(
    num_layers=24, hidden_size=896, num_heads=14, num_kv_heads=2, head_dim=64, intermediate_size=4864, vocab_size=151936
)  # fmt: skip


def component(setup: Setup, name: str, rank: int = 0) -> Component:
    return next(each for each in rank_buffers(setup, rank) if each.name == name)


def engine(dims: Dims, batch: int, length: int, **more: Any) -> Setup:
    limits = {"max_batch_size": batch, "max_num_tokens": 8192, "max_seq_len": length}
    return make_setup(dims, limits=limits, backend="tensorrt", **more)


@pytest.mark.parametrize(
    ("setup", "runtime", "decoder"),
    [
        pytest.param(engine(GPT_J, 4096, 4098, version="0.12.0"), 1.14 * GIB, 4.35 * GIB, id="4096 sequences"),
        pytest.param(engine(LLAMA_7B, 256, 2048, version="0.11.0"), 43.29 * MIB, 180.30 * MIB, id="the documentation's example"),
        pytest.param(engine(QWEN_05B, 2048, 32768, version="0.14.0"), 2.66 * GIB, 5.76 * GIB, id="a small model, long"),
    ],
)  # fmt: skip
def test_the_runtime_of_engines_is_what_logs_printed(setup: Setup, runtime: float, decoder: float) -> None:
    assert component(setup, "runtime_buffers").bytes.value == pytest.approx(runtime, rel=0.01)
    assert component(setup, "decoder_buffers").bytes.value == pytest.approx(decoder, rel=0.01)


def test_logits_of_prompts_are_not_kept_by_the_runtime() -> None:
    setup = make_setup(
        LLAMA_8B, limits={"max_batch_size": 1, "max_num_tokens": 128_000, "max_seq_len": 131_072}, dtype="float16",
        backend="tensorrt", gather_context_logits=True, gather_generation_logits=True,
    )  # fmt: skip
    setup = _with_logits(setup, "float16")
    assert component(setup, "runtime_buffers").bytes.value == pytest.approx(7.40 * MIB, rel=0.01)
    assert late_logits(setup, 0).bytes.value == 128_000 * 128_256 * 2


def _with_logits(setup: Setup, dtype: str) -> Setup:
    import msgspec

    return msgspec.structs.replace(setup, formats=msgspec.structs.replace(setup.formats, logits_dtype=dtype))


def test_only_the_last_stage_samples() -> None:
    setup = engine(LLAMA_8B, 256, 4096, layout={"pp": 2})
    assert "decoder_buffers" not in {each.name for each in rank_buffers(setup, 0)}
    assert component(setup, "decoder_buffers", 1).bytes.value > 256 * 128_256


def deepseek(tp: int, ep: int, graphs: int, **running: Any) -> Setup:
    return make_setup(
        DEEPSEEK, weights="NVFP4", kv="fp8", device=B200, layout={"tp": tp, "ep": ep}, limits={"max_batch_size": 2048},
        cuda_graph_max_batch=graphs, **running,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("setup", "gib"),
    [
        pytest.param(deepseek(4, 4, 64), 7.29, id="4 GPUs, graphs to 64"),
        pytest.param(deepseek(8, 8, 128), 10.05, id="8 GPUs, graphs to 128"),
        pytest.param(deepseek(8, 8, 256), 10.21, id="8 GPUs, graphs to 256"),
        pytest.param(deepseek(8, 1, 1), 7.19, id="8 GPUs, one graph"),
        pytest.param(deepseek(8, 1, 256, piecewise_graphs=True), 12.67, id="8 GPUs, piecewise graphs too"),
    ],
)
def test_memory_outside_of_torch_is_near_what_servers_printed(setup: Setup, gib: float) -> None:
    outside = ("cuda_context", "communication", "cuda_graphs")
    figure = sum_figures(each.bytes for each in rank_buffers(setup, 0) if each.name in outside)
    assert figure.value == pytest.approx(gib * GIB, rel=0.05)
    assert figure.low < gib * GIB < figure.high


def test_the_attention_workspace_is_what_warnings_printed() -> None:
    qwen = Dims(
        num_layers=36, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, intermediate_size=12288, vocab_size=151936
    )  # fmt: skip
    setup = make_setup(qwen, weights="FP8", kv="fp8", limits={"max_num_tokens": 8192})
    assert component(setup, "runtime_buffers").parts["attention_workspace"] == pytest.approx(67_175_936, rel=1e-3)
    plain = make_setup(GPT_OSS_120B, limits={"max_num_tokens": 8192})
    assert component(plain, "runtime_buffers").parts["attention_workspace"] == pytest.approx(100_738_816, rel=1e-3)
    latent = make_setup(DEEPSEEK, kv="fp8", layout={"tp": 4}, limits={"max_num_tokens": 8320})
    assert component(latent, "runtime_buffers").parts["attention_workspace"] == pytest.approx(476_932_096, rel=1e-3)


def test_the_all_reduce_workspace_is_four_buffers_for_each_peer() -> None:
    setup = deepseek(8, 1, 1)
    assert component(setup, "communication").parts["all_reduce"] == 2 * GIB
    smaller = deepseek(8, 1, 1, env={"TRTLLM_ALLREDUCE_FUSION_WORKSPACE_SIZE": str(16 * MIB)})
    assert component(smaller, "communication").parts["all_reduce"] == GIB // 2


@pytest.mark.parametrize(("most", "graphs"), [(0, 0), (1, 1), (4, 3), (5, 4), (64, 11), (128, 19), (256, 21)])
def test_graphs_are_captured_for_some_batch_sizes(most: int, graphs: int) -> None:
    assert count_captured_graphs(most) == graphs


def test_what_is_not_there_is_left_out() -> None:
    assert [each.name for each in rank_buffers(make_setup(cuda_graphs=False), 0)] == [
        "cuda_context", "runtime_buffers", "decoder_buffers",
    ]  # fmt: skip


def test_what_is_asked_for_is_there() -> None:
    setup = make_setup(
        lora=True, max_loras=4, max_lora_rank=16, disaggregated_tokens=4096, other_process_bytes=GIB, kv="fp8"
    )
    assert component(setup, "lora").why == "4 adapters of rank 16"
    assert component(setup, "kv_transfer").bytes.value == 2 * (4096 + 32) * 65_536
    assert component(setup, "other_process").bytes.source == "given"


def test_a_full_batch_of_logits_comes_late_in_the_pytorch_backend() -> None:
    gemma = Dims(
        num_layers=62, hidden_size=5376, num_heads=32, num_kv_heads=16, head_dim=128, intermediate_size=21504, vocab_size=262144
    )  # fmt: skip
    late = late_logits(make_setup(gemma, limits={"max_batch_size": 128}), 0)
    assert late.bytes.value >= 128 * 262_144 * 4
    assert late.bytes.low == 0
