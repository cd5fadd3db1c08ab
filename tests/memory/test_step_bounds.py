"""Bounds of a step against hand calculations, and against throughput that was published (never above the bound)."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import median

import pytest

from trtdx.host import RealHost
from trtdx.memory.ledger.load_speed import RequestLoad, bound_load
from trtdx.memory.ledger.step_bounds import (
    bound_decode_step,
    bound_modules,
    bound_prefill_step,
    bound_step,
    speeds_of,
)
from trtdx.memory.ledger.step_work import StepLoad
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


# Of the tables of throughput in TensorRT-LLM's own perf-overview.md, 0.10 to 1.2.1; under docs/source/performance/, from
# 1.1 on docs/source/developer-guide/, each at the tag of the release. Left out: GPUs that gpu_speeds.toml does not have
# (GH200, GB300, A100 on PCIe) and Falcon 180B. The batch is not published: of any, the bound of a huge one is the highest.
PUBLISHED = Path(__file__).parent / "published_throughput.csv"
# 4.3 times what an H100 can read: a misprint; the H200 beside it is at 9,040, and 0.11 has 7,643 for the same.
MISPRINT = ("v0.10.0", "gpt-j-6b", "H100", "FP8", "1", "1", "0", "128/2048=54939.48")


def published_shares():
    """Yield each published figure, with what it was measured on, and the share of its bound that it reaches."""
    for release, model, gpu, weights, tp, pp, attention_dp, figures in csv.reader(
        PUBLISHED.read_text().splitlines()[1:]
    ):
        flags = {"tp_size": int(tp), "pp_size": int(pp)}
        flags |= {} if weights == "16-bit" else {"kv_cache_dtype": "fp8"}
        flags |= {"quantization": weights} if weights in ("FP8", "NVFP4") else {}
        flags |= {"enable_attention_dp": True, "ep_size": int(tp)} if attention_dp == "1" else {}
        setup = setup_of(model, gpu, **flags)
        for figure in figures.split():
            prompt, output, rate = re.split("[/=]", figure)
            best = bound_load(setup, RequestLoad(8192, int(prompt), int(output), 8192))
            yield (release, model, gpu, weights, tp, pp, attention_dp, figure), float(rate) / best.tokens_per_s


def test_published_throughput_is_below_the_bound():
    shares = dict(published_shares())
    assert len(shares) == 3696
    assert [row for row, share in shares.items() if share >= 1] == [MISPRINT]
    assert 0.2 < median(shares.values()) < 0.5


FP8 = {"quantization": "FP8", "kv_cache_dtype": "fp8"}
# (batch, input, output, output tokens in a second of one GPU): docs/source/performance.md of TensorRT-LLM 0.7.1.
PUBLISHED_BATCHES = [
    ("GPT-J-6B", "H100", FP8, [(1024, 128, 128, 26150), (120, 128, 2048, 8011), (64, 2048, 128, 2551), (64, 2048, 2048, 3327)]),
    ("Llama-2-7B", "H100", FP8, [(768, 128, 128, 19694), (112, 128, 2048, 6818), (80, 2048, 128, 2244), (48, 2048, 2048, 2740)]),
    ("Llama-2-70B", "H100", FP8 | {"tp_size": 2}, [(1024, 128, 128, 2657), (96, 2048, 128, 306), (64, 2048, 2048, 547)]),
    ("GPT-J-6B", "L40S", FP8, [(64, 128, 128, 3630), (64, 128, 2048, 1859), (32, 2048, 128, 616), (32, 2048, 2048, 757)]),
    ("Llama-2-7B", "L40S", FP8, [(64, 128, 128, 3240), (64, 128, 2048, 1622), (32, 2048, 128, 581), (16, 2048, 2048, 531)]),
    ("Llama-2-7B", "A100", {}, [(384, 128, 128, 5586), (60, 128, 2048, 1928), (52, 2048, 128, 591)]),
    ("Llama-2-70B", "A100", {"tp_size": 4}, [(1280, 128, 128, 670), (240, 128, 2048, 525), (120, 2048, 128, 79)]),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "flags", "rows"), PUBLISHED_BATCHES)
def test_published_batches_are_slower_than_the_bound(model, gpu, flags, rows):
    setup = setup_of(model, gpu, **flags)
    for batch, prompt, output, published in rows:
        assert published * setup.layout.world < bound_load(setup, RequestLoad(batch, prompt, output, 8192)).tokens_per_s


# Milliseconds to the first token of one request of 128 and of 2048 tokens, from the same page.
FIRST_TOKENS = [
    ("GPT-J-6B", "H100", FP8, (7, 29)),
    ("Llama-2-70B", "H100", FP8 | {"tp_size": 4}, (26, 109)),
    ("Llama-2-7B", "L40S", FP8, (14, 73)),
    ("Llama-2-7B", "A100", {}, (16, 133)),
    ("Llama-2-70B", "A100", {"tp_size": 4}, (47, 377)),
]


@pytest.mark.parametrize(("model", "gpu", "flags", "published"), FIRST_TOKENS)
def test_published_first_tokens_come_later_than_the_bound(model, gpu, flags, published):
    setup = setup_of(model, gpu, **flags)
    for prompt, milliseconds in zip((128, 2048), published, strict=True):
        assert bound_load(setup, RequestLoad(1, prompt, 1, 8192)).ttft_ms < milliseconds


# Requests at once, ms to the first token, ms between tokens, tokens/s: Llama-3.3-70B in FP8 on two H100, 5000 tokens in
# and 500 out, docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance.
@pytest.mark.parametrize(
    ("batch", "first", "between", "rate"),
    [(1, 406.77, 18.58, 51.67), (5, 546.7, 21.83, 218.48), (25, 688.69, 38.75, 623.4), (50, 834.51, 59.73, 814.37)],
)
def test_a_published_service_is_slower_than_the_bound(batch, first, between, rate):
    speed = bound_load(
        setup_of("Llama-3.3-70B", "H100", tp_size=2, quantization="FP8"), RequestLoad(batch, 5000, 500, 8192)
    )
    assert speed.ttft_ms < first
    assert speed.tpot_ms < between
    assert speed.tokens_per_s > rate


def test_a_load_by_hand():
    """Llama-3.1-8B on an H100, 64 requests of 1000 and 500 tokens: what is read binds, prompts hide behind it."""
    speed = bound_load(setup_of("Llama-3.1-8B", "H100"), RequestLoad(64, 1000, 500, 8192))
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    read = (layers + 128256 * 4096) * 2 + 64 * 1250 * 2 * 32 * 8 * 128 * 2
    assert speed.tpot_ms == pytest.approx(read / 3350e9 * 1e3, rel=0.02)
    assert speed.tokens_per_s == pytest.approx(64 / (read / 3350e9), rel=0.02)
    # The prompt with 63 tokens of others, whose cache is read meanwhile; pairs of tokens and those before them.
    products = 2 * layers * (1000 + 63) + 2 * 128256 * 4096 * 64
    attention = 4 * 32 * 32 * 128 * (1000 * 500 + 63 * 1250)
    in_steps = max((products + attention) / 989e12, (read - 1250 * 2 * 32 * 8 * 128 * 2) / 3350e9)
    assert speed.ttft_ms == pytest.approx(in_steps * 1e3, rel=0.02)


def test_a_prompt_in_small_steps_is_never_sooner():
    setup = setup_of("Llama-3.1-8B", "H100")
    times = [bound_load(setup, RequestLoad(8, 30000, 100, step)).ttft_ms for step in (32768, 8192, 2048, 512)]
    assert times == sorted(times)


def test_without_figures_of_the_gpu_nothing_is_guessed():
    assert bound_load(setup_of("Qwen2.5-7B", "A40"), RequestLoad(1, 100, 100, 8192)) is None


def test_int8_products_run_at_their_own_peak():
    """An A100 has no FP8, and INT8 at twice the rate of 16 bit."""
    plain, int8 = (
        setup_of("Llama-3.1-8B", "A100 80GB"),
        setup_of("Llama-3.1-8B", "A100 80GB", quantization="W8A8_SQ_PER_CHANNEL"),
    )
    times = [bound_prefill_step(setup, speeds_of(setup), 4096).compute_s for setup in (plain, int8)]
    assert times[0] == pytest.approx(2 * times[1])


def test_bounds_of_modules_add_up_to_what_the_step_does():
    setup = setup_of("Qwen3-30B-A3B", "H100", tp_size=2)
    load = StepLoad(prompt_tokens=1000, prompts=1, ends=1, decoding=16, context=2000)
    modules, step = bound_modules(setup, speeds_of(setup), load), bound_step(setup, speeds_of(setup), load)
    assert set(modules) == {"attention", "moe", "lm_head", "all-reduce", "other"}
    assert sum(bound.flops for bound in modules.values()) == pytest.approx(step.flops)
    assert sum(bound.seconds for bound in modules.values()) >= step.seconds
