"""What weights take on a rank: how they are cut, stored and padded, against what deployments printed."""

from __future__ import annotations

import msgspec
import pytest

from support.make_setups import B200, DEEPSEEK, GPT_OSS_120B, LLAMA_7B, LLAMA_8B, make_setup
from trtdx.memory.ledger.draft_weights import draft_weights
from trtdx.memory.ledger.weights import encoder_weights, rank_weights, resolve_moe_backend
from trtdx.memory.nouns import GIB, MIB, Dims, Setup

BAICHUAN_13B = msgspec.structs.replace(
    LLAMA_7B, num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=40, intermediate_size=13696, vocab_size=64000,
    model_type="baichuan",
)  # fmt: skip
GPTJ = Dims(
    num_layers=28, hidden_size=4096, num_heads=16, num_kv_heads=16, head_dim=256, intermediate_size=16384,
    vocab_size=50400, gated=False, mlp_bias=True, norm_bias=True, max_positions=2048, model_type="gptj",
)  # fmt: skip
LONG_LLAMA = msgspec.structs.replace(LLAMA_8B, max_positions=131072)
QWEN3_235B = Dims(
    num_layers=94, hidden_size=4096, num_heads=64, num_kv_heads=4, head_dim=128, intermediate_size=12288,
    vocab_size=151936, num_experts=128, moe_intermediate_size=1536, model_type="qwen3_moe",
)  # fmt: skip


def engine(dims: Dims, version: str = "0.18.0", **more: object) -> Setup:
    return make_setup(dims, backend="tensorrt", version=version, **more)  # type: ignore[arg-type]


def deepseek(algo: str, tp: int, ep: int, **more: object) -> Setup:
    return make_setup(DEEPSEEK, weights=algo, kv="fp8", device=B200, layout={"tp": tp, "ep": ep}, **more)  # type: ignore[arg-type]


# What TensorRT-LLM printed: of engines what TensorRT allocated for them, of the PyTorch flow "... GB for model
# weights", or what torch had allocated once the model was loaded (some buffers with it: 1 %).
PRINTED = {
    "Baichuan-13B float16, 0.5": (engine(BAICHUAN_13B, "0.5.0", dtype="float16"), 26_529_804_072, 1e-6),
    "Llama-3-8B bfloat16, 0.8": (engine(LLAMA_8B, "0.8.0"), 15316 * MIB, 1e-4),
    "Llama-3.1-8B float16, 0.18: a table of 131,072 positions": (engine(LONG_LLAMA), 15380 * MIB, 1e-4),
    "7B SmoothQuant, 0.8": (
        engine(LLAMA_7B, "0.8.0", weights="W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"), 6683 * MIB, 1e-3
    ),
    "7B FP8": (engine(LLAMA_7B, weights="FP8"), 6678 * MIB, 1e-3),
    "GPT-J FP8": (engine(GPTJ, weights="FP8"), 6166 * MIB, 1e-3),
    "8B, tp 4: each rank has the whole embedding": (engine(LLAMA_8B, "0.12.0", layout={"tp": 4}), 4585 * MIB, 1e-3),
    "Llama-3.1-8B FP8": (make_setup(LONG_LLAMA, weights="FP8", version="0.20.0"), 8.46 * GIB, 1e-3),
    "DeepSeek-R1 NVFP4, tp 4": (deepseek("NVFP4", 4, 4, moe_backend="TRTLLM"), 93.17 * GIB, 1e-4),
    "DeepSeek-R1 NVFP4, tp 8": (deepseek("NVFP4", 8, 8, moe_backend="TRTLLM"), 48.70 * GIB, 0.01),
    "DeepSeek-R1 FP8, tp 8": (deepseek("FP8_BLOCK_SCALES", 8, 1, moe_backend="TRTLLM"), 81.86 * GIB, 0.01),
    "the same with DeepGEMM, whose buffers are larger than half the weights": (
        deepseek("FP8_BLOCK_SCALES", 8, 1, moe_backend="DEEPGEMM"), 124.8 * GIB, 0.01
    ),
    "the same with a layer of multi-token prediction": (
        deepseek("FP8_BLOCK_SCALES", 8, 1, moe_backend="TRTLLM", limits={"max_draft_len": 3}), 83.36 * GIB, 0.01
    ),
    "gpt-oss-120b, CUTLASS": (
        make_setup(GPT_OSS_120B, weights="W4A8_MXFP4_MXFP8", device=B200, moe_backend="CUTLASS"), 64.1 * GIB, 0.015
    ),
    "gpt-oss-120b, TRTLLM": (
        make_setup(GPT_OSS_120B, weights="W4A8_MXFP4_MXFP8", device=B200, moe_backend="TRTLLM"), 65.4 * GIB, 0.015
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PRINTED)
def test_weights_are_what_deployments_printed(case: str) -> None:
    setup, printed, off = PRINTED[case]

    found = rank_weights(setup, 0)

    assert found.bytes.value == pytest.approx(printed, rel=off)
    assert found.bytes.low <= printed <= found.bytes.high
    assert sum(found.parts.values()) == found.bytes.value


def parts(setup: Setup, rank: int = 0) -> dict[str, int]:
    return rank_weights(setup, rank).parts


def test_embeddings_and_head_stay_in_sixteen_bits() -> None:
    whole, quantised = parts(make_setup()), parts(make_setup(weights="FP8"))

    for part in ("embedding", "lm_head", "norms"):
        assert quantised[part] == whole[part]
    assert quantised["mlp"] == pytest.approx(whole["mlp"] / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("algo", "bytes_a_number"),
    [
        ("FP8", 1),
        ("FP8_BLOCK_SCALES", 1 + 4 / 128**2),
        ("FP8_PER_CHANNEL_PER_TOKEN", 1 + 4 / 4096),
        ("MXFP8", 1 + 1 / 32),
        ("NVFP4", 0.5 + 1 / 16),
        ("W4A8_NVFP4_FP8", 0.5 + 1 / 32),
        ("W8A16", 1),
        ("W4A16", 0.5),
        ("W4A16_AWQ", 0.5 + 2 / 128),
        ("W4A16_GPTQ", 0.5 + 4 / 128),
        ("W8A8_SQ_PER_CHANNEL", 1),
    ],
)
def test_each_format_takes_its_bytes_and_its_scales(algo: str, bytes_a_number: float) -> None:
    numbers = 32 * 3 * 4096 * 14336

    assert parts(make_setup(weights=algo))["mlp"] / numbers == pytest.approx(bytes_a_number, rel=2e-3)


def test_a_format_nobody_knows_has_a_wide_band() -> None:
    known, unknown = (rank_weights(make_setup(weights=algo), 0).bytes for algo in ("FP8", "W3A16_NEW"))

    assert unknown.high - unknown.low > 5 * (known.high - known.low)


def test_excluded_modules_stay_in_sixteen_bits() -> None:
    whole = parts(make_setup())["attention"]

    assert parts(make_setup(weights="FP8", excluded=("*self_attn*",)))["attention"] == whole
    half = parts(make_setup(weights="FP8", excluded=tuple(f"model.layers.{n}.self_attn" for n in range(16))))
    assert half["attention"] == pytest.approx(0.75 * whole, rel=1e-4)


def test_the_router_of_a_mixture_is_not_the_gate_of_an_mlp() -> None:
    dense = parts(make_setup(weights="NVFP4", excluded=("lm_head", "*.mlp.gate")))

    assert dense["mlp"] == parts(make_setup(weights="NVFP4", excluded=("lm_head",)))["mlp"]


def test_the_pytorch_flow_cuts_the_embedding_of_most_families_and_engines_do_not() -> None:
    table = 128256 * 4096 * 2

    assert parts(make_setup(layout={"tp": 4}))["embedding"] == table // 4
    assert parts(engine(LLAMA_8B, layout={"tp": 4}))["embedding"] == table
    assert parts(engine(LLAMA_8B, layout={"tp": 4, "parallel_embedding": True}))["embedding"] == table // 4
    assert parts(deepseek("", 4, 4))["embedding"] == 129280 * 7168 * 2  # its class never does


def test_under_attention_dp_each_rank_has_attention_embedding_and_head_whole() -> None:
    one, dp = (
        parts(make_setup(DEEPSEEK)),
        parts(make_setup(DEEPSEEK, layout={"tp": 8, "ep": 8, "attention_dp": True})),
    )

    for part in ("attention", "embedding", "lm_head", "mlp", "shared_experts"):
        assert dp[part] == one[part]
    assert dp["experts"] == one["experts"] // 8


def test_experts_are_cut_by_number_or_each_by_width() -> None:
    whole = parts(make_setup(QWEN3_235B))["experts"]

    for layout in ({"tp": 8, "ep": 8}, {"tp": 8, "ep": 1}, {"tp": 8, "ep": 2, "moe_tp": 4}):
        assert parts(make_setup(QWEN3_235B, layout=layout))["experts"] == whole // 8


def test_fewer_key_heads_than_ranks_are_kept_whole_by_each() -> None:
    """Four heads on eight ranks: half of the ranks' keys and values are copies."""
    eight = parts(make_setup(QWEN3_235B, layout={"tp": 8}))["attention"]

    queries = 94 * 2 * 4096 * 64 * 128 // 8 * 2
    assert eight - queries == 94 * 2 * 4096 * 128 * 2


def test_a_vocabulary_that_does_not_divide_is_padded() -> None:
    odd = msgspec.structs.replace(LLAMA_8B, vocab_size=32001)

    assert parts(make_setup(odd, layout={"tp": 4}))["lm_head"] == 8001 * 4096 * 2


def test_stages_of_a_pipeline_have_their_layers_and_ends() -> None:
    first, second = (parts(make_setup(layout={"pp": 2}), rank) for rank in (0, 1))

    assert "lm_head" not in first
    assert "embedding" not in second
    assert first["mlp"] == second["mlp"]
    uneven = [parts(make_setup(layout={"pp": 3}), rank)["mlp"] for rank in range(3)]
    assert uneven[0] == uneven[1] > uneven[2]  # 11, 11, 10
    asked = [parts(make_setup(layout={"pp": 2, "pp_partition": (20, 12)}), rank)["mlp"] for rank in (0, 1)]
    assert asked[0] * 12 == asked[1] * 20


def test_a_tied_head_costs_nothing_in_pytorch_and_a_table_in_engines() -> None:
    tied = msgspec.structs.replace(LLAMA_8B, tied=True)

    assert "lm_head" not in parts(make_setup(tied))
    assert parts(engine(tied))["lm_head"] == 128256 * 4096 * 2
    gemma = msgspec.structs.replace(tied, model_type="gemma2")
    assert "lm_head" not in parts(engine(gemma))
    assert parts(make_setup(tied, layout={"pp": 2}), 1)["lm_head"]  # the last stage has no embedding


def test_layers_of_multi_token_prediction_are_on_the_last_stage_only_when_asked_for() -> None:
    draft = {"limits": {"max_draft_len": 3}}

    assert "mtp" not in parts(deepseek("FP8_BLOCK_SCALES", 8, 8))
    assert "mtp" in parts(deepseek("FP8_BLOCK_SCALES", 8, 8, **draft))
    split = make_setup(DEEPSEEK, layout={"tp": 8, "pp": 2}, **draft)  # type: ignore[arg-type]
    assert "mtp" not in parts(split, 0)
    assert "mtp" in parts(split, 8)


def test_which_kernels_compute_experts_depends_on_release_and_gpu() -> None:
    def backend(algo: str, version: str, **more: object) -> str:
        return resolve_moe_backend(make_setup(DEEPSEEK, weights=algo, version=version, device=B200, **more))  # type: ignore[arg-type]

    assert backend("FP8_BLOCK_SCALES", "1.2.1") == "CUTLASS"
    assert backend("FP8_BLOCK_SCALES", "1.3.0rc10") == "TRTLLM"
    assert backend("NVFP4", "1.3.0rc10") == "CUTLASS"
    assert backend("NVFP4", "1.3.0rc10", moe_backend="trtllm") == "TRTLLM"


def test_a_draft_head_is_whole_on_the_last_stage_and_a_draft_model_is_spread() -> None:
    head = msgspec.structs.replace(LLAMA_8B, num_layers=1)
    split = {"pp": 2, "tp": 2}

    assert draft_weights(make_setup(layout=split, draft=head), 0) is None
    last = draft_weights(make_setup(layout=split, draft=head), 2)
    assert last is not None
    assert last.parts["embedding"]
    model = msgspec.structs.replace(LLAMA_8B, num_layers=16)
    first = draft_weights(make_setup(layout=split, draft=model), 0)
    assert first is not None
    assert "lm_head" not in first.parts
    assert draft_weights(make_setup(), 0) is None


def test_an_encoder_of_images_is_in_sixteen_bits() -> None:
    seeing = msgspec.structs.replace(LLAMA_8B, encoder_params=1_000_000)

    found = encoder_weights(make_setup(seeing, weights="NVFP4"))

    assert found is not None
    assert found.bytes.value == 2_000_000
    assert encoder_weights(make_setup()) is None
