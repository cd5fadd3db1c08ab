"""Bounds of a step against hand calculations, and against throughput that was published (never above the bound)."""

from __future__ import annotations

import pytest

from trtdx.host import RealHost
from trtdx.memory.ledger.step_bounds import bound_decode_step, bound_prefill_step, bound_throughput, speeds_of
from trtdx.memory.question.flags import artifact_from_flags
from trtdx.memory.question.setup import MemoryRequest, resolve_setup


def setup_of(model, gpu, **flags):
    request = MemoryRequest(model=model, gpu=gpu, flags=artifact_from_flags(flags))
    return resolve_setup(RealHost(), request).setup


# By hand: weights without the input table, in bytes; cache of a token in bytes (2 x layers x kv heads x head size x 2);
# parameters that a token is multiplied with. From the models' published config.json files.
BY_HAND = [
    # 32 layers of 4096: q, o 4096x4096, k, v 4096x1024, three of 4096x14336; head 128256x4096
    ("Llama-3.1-8B", "H100", {}, (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096) * 2, 2 * 32 * 8 * 128 * 2, 3350e9),
    ("Llama-3.1-8B", "A100 80GB", {}, (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096) * 2, 2 * 32 * 8 * 128 * 2, 2039e9),
    ("Llama-3.1-70B", "H200", {"tp_size": 4}, (80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 128256 * 8192) * 2 / 4, 2 * 80 * 2 * 128 * 2, 4800e9),
    ("Qwen2.5-7B", "L40S", {}, (28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944) + 152064 * 3584) * 2, 2 * 28 * 4 * 128 * 2, 864e9),
    # experts of Mixtral: with 64 tokens and 2 of 8, all are touched (1 - 0.75^64)
    ("Mixtral-8x7B", "H200", {}, (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 8 * 3 * 4096 * 14336 + 8 * 4096) + 32000 * 4096) * 2, 2 * 32 * 8 * 128 * 2, 4800e9),
    ("Mistral-7B", "B200", {}, (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 32000 * 4096) * 2, 2 * 32 * 8 * 128 * 2, 8000e9),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "gpu", "flags", "weights", "cache", "bandwidth"), BY_HAND, ids=lambda value: str(value)[:14]
)
def test_a_decode_step_reads_weights_and_cache(model, gpu, flags, weights, cache, bandwidth):
    setup = setup_of(model, gpu, **flags)
    bound = bound_decode_step(setup, speeds_of(setup), 64, 1000)
    assert bound.memory_s == pytest.approx((weights + 64 * 1000 * cache) / bandwidth, rel=0.02)
    assert bound.binding == "memory bandwidth"


def test_a_prompt_is_bound_by_compute():
    setup = setup_of("Llama-3.1-8B", "H100")
    bound = bound_prefill_step(setup, speeds_of(setup), 4096)
    parameters = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    flops = 2 * parameters * 4096 + 2 * 128256 * 4096 + 4 * 32 * 32 * 128 * 4096 * 2048
    assert bound.compute_s == pytest.approx(flops / 989e12, rel=0.02)
    assert bound.binding == "compute"


def test_all_reduces_are_counted_twice_a_layer():
    setup = setup_of("Llama-3.1-70B", "H100", tp_size=8)
    bound = bound_decode_step(setup, speeds_of(setup), 64, 10)
    assert bound.link_s == pytest.approx(2 * 80 * 2 * 7 / 8 * 64 * 8192 * 2 / 450e9, rel=0.01)


def test_larger_steps_are_never_bound_lower():
    setup = setup_of("Qwen3-30B-A3B", "H100")
    speeds = speeds_of(setup)
    times = [bound_decode_step(setup, speeds, batch, 2000).seconds for batch in (1, 2, 8, 32, 128, 512)]
    assert times == sorted(times)


# Output tokens in a second of one GPU: docs/source/developer-guide/perf-overview.md of TensorRT-LLM 1.2.1.
PUBLISHED = [
    ("Llama-3.1-70B", "H200", {"tp_size": 2, "quantization": "FP8"}, (1024, 1024), 2637),
    ("Llama-3.1-70B", "H200", {"tp_size": 2, "quantization": "FP8"}, (8192, 1024), 544),
    ("Llama-3.1-70B", "B200", {"quantization": "NVFP4"}, (1024, 1024), 6943),
    ("Llama-3.1-70B", "GB200", {"quantization": "NVFP4"}, (32768, 1024), 315),
    ("Qwen3-30B-A3B", "B200", {"quantization": "NVFP4"}, (1024, 1024), 26431),
    ("Qwen3-30B-A3B", "GB200", {"quantization": "NVFP4"}, (32768, 1024), 1398),
    ("Qwen3-235B-A22B", "H200", {"tp_size": 4, "enable_attention_dp": True, "ep_size": 4, "quantization": "FP8"}, (1024, 1024), 3494),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "flags", "lengths", "published"), PUBLISHED)
def test_published_throughput_is_below_the_bound(model, gpu, flags, lengths, published):
    setup = setup_of(model, gpu, **flags)
    speeds = speeds_of(setup)
    best = max(bound_throughput(setup, speeds, batch, lengths) for batch in (64, 256, 1024, 4096))
    assert published * setup.layout.world < best
