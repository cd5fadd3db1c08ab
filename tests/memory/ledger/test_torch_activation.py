"""What torch allocates in the PyTorch backend's profile, against what servers printed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.make_setups import B200, DEEPSEEK, GPT_OSS_120B, LLAMA_8B, make_setup
from trtdx.memory.ledger.plan import formula_activation
from trtdx.memory.nouns import GIB, Device, Setup

NVFP4 = {"weights": "NVFP4", "kv": "fp8", "device": B200, "moe_backend": "TRTLLM"}
FP8 = {"weights": "FP8_BLOCK_SCALES", "kv": "fp8", "device": B200, "moe_backend": "TRTLLM"}


def deepseek(kind: dict[str, Any], tokens: int, tp: int, ep: int, draft: int = 0, **running: Any) -> Setup:
    limits = {"max_batch_size": 2048, "max_num_tokens": tokens, "max_seq_len": 10240, "max_draft_len": draft}
    return make_setup(DEEPSEEK, limits=limits, layout={"tp": tp, "ep": ep}, **kind, **running)


@pytest.mark.parametrize(
    ("setup", "gib"),
    [
        pytest.param(deepseek(NVFP4, 8192, 4, 4), 2.60, id="NVFP4 on 4 GPUs"),
        pytest.param(deepseek(NVFP4, 8320, 4, 4), 2.76, id="NVFP4 on 4 GPUs, 8320 tokens"),
        pytest.param(deepseek(NVFP4, 8192, 8, 8), 2.60, id="NVFP4 on 8 GPUs: experts' rows are not fewer"),
        pytest.param(deepseek(FP8, 8192, 8, 1), 2.44, id="FP8 on 8 GPUs"),
        pytest.param(deepseek(FP8, 8192, 8, 1, draft=3), 2.46, id="FP8 with drafts"),
        pytest.param(deepseek(FP8, 8512, 8, 1, piecewise_graphs=True), 2.10, id="FP8 with piecewise graphs"),
    ],
)
def test_deepseek_is_near_what_servers_printed(setup: Setup, gib: float) -> None:
    figure = formula_activation(setup, 0).bytes
    assert figure.value == pytest.approx(gib * GIB, rel=0.06)
    assert figure.low < gib * GIB < figure.high


def test_gpt_oss_is_near_what_a_server_printed() -> None:
    spark = Device(name="GB10", total_bytes=round(119.7 * GIB), sm=121)
    setup = make_setup(GPT_OSS_120B, weights="W4A16_MXFP4", device=spark, moe_backend="CUTLASS", version="1.1.0rc3")
    figure = formula_activation(setup, 0).bytes
    assert figure.value == pytest.approx(0.85 * GIB, rel=0.10)
    assert figure.low < 0.85 * GIB < figure.high


def test_says_where_the_most_is() -> None:
    assert formula_activation(deepseek(NVFP4, 8192, 4, 4), 0).why == "8 192 tokens, most in experts"
    assert formula_activation(make_setup(LLAMA_8B), 0).why == "8 192 tokens, most in mlp"


def test_a_model_without_an_mlp_has_attention() -> None:
    assert formula_activation(make_setup(DEEPSEEK, layout={"tp": 1}), 0).bytes.value > 0


def test_a_huge_vocabulary_shows_in_the_last_step() -> None:
    tiny = msgspec.structs.replace(LLAMA_8B, hidden_size=64, intermediate_size=64, num_heads=1, num_kv_heads=1)
    assert formula_activation(make_setup(tiny, limits={"max_num_tokens": 64}), 0).why == "64 tokens, most in logits"


def test_attention_parallel_over_requests_brings_the_others_tokens_to_the_experts() -> None:
    alone = deepseek(NVFP4, 8192, 8, 8)
    spread = make_setup(
        DEEPSEEK, limits={"max_num_tokens": 8192}, layout={"tp": 8, "ep": 8, "attention_dp": True}, **NVFP4
    )
    assert formula_activation(spread, 0).bytes.value > 2 * formula_activation(alone, 0).bytes.value


@pytest.mark.parametrize("ep", [1, 8])
def test_with_attention_dp_the_experts_see_the_tokens_of_all_ranks(ep: int) -> None:
    """However the experts are spread: dp_size is tp_size (Mapping, mapping.py@v1.2.1)."""
    kind = {"weights": "FP8_BLOCK_SCALES", "moe_backend": "CUTLASS"}
    alone = make_setup(DEEPSEEK, layout={"tp": 8, "ep": ep}, **kind)
    spread = make_setup(DEEPSEEK, layout={"tp": 8, "ep": ep, "attention_dp": True}, **kind)

    assert formula_activation(spread, 0).bytes.value > 6 * formula_activation(alone, 0).bytes.value


def test_chunks_bound_what_the_experts_take() -> None:
    layout = {"tp": 8, "ep": 8, "attention_dp": True}
    whole = make_setup(DEEPSEEK, weights="NVFP4", moe_backend="CUTLASS", layout=layout)
    chunked = make_setup(DEEPSEEK, weights="NVFP4", moe_backend="CUTLASS", layout=layout, moe_max_tokens=8192)

    assert formula_activation(chunked, 0).bytes.value < formula_activation(whole, 0).bytes.value / 3


def test_piecewise_graphs_may_hold_most_of_a_step() -> None:
    plain, pieces = (formula_activation(make_setup(piecewise_graphs=on), 0).bytes for on in (False, True))

    assert pieces.low < plain.low / 2
