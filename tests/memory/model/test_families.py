"""Real families whose config.json says things in its own way: layers that differ, latent experts, mixed formats."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from trtdx.errors import TrtdxError
from trtdx.host import RealHost
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.ledger.weights import count_parameters
from trtdx.memory.question.flags import artifact_from_flags
from trtdx.memory.question.setup import MemoryRequest, resolve_setup

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.memory.nouns import Setup

NEMOTRON_3 = {
    "model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 2688, "vocab_size": 131072,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 128,
    "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 512,
    "num_experts_per_tok": 22, "n_shared_experts": 1, "moe_intermediate_size": 2688, "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
PATTERN = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
WORDS = {"M": "mamba", "E": "moe", "*": "attention"}
GEMMA_4 = {
    "model_type": "gemma4_text", "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704,
    "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
    "head_dim": 256, "global_head_dim": 512, "num_experts": 128, "top_k_experts": 8, "enable_moe_block": True,
    "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
    "vocab_size": 262144, "tie_word_embeddings": True, "sliding_window": 1024,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5, "dtype": "bfloat16",
}  # fmt: skip
DENSE = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 32000,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip


def setup_of(folder: Path, config: dict[str, Any], quantization: dict[str, Any] | None = None) -> Setup:
    (folder / "config.json").write_text(json.dumps(config))
    if quantization:
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    return resolve_setup(RealHost(), MemoryRequest(model=str(folder), gpu="B200")).setup


@pytest.mark.parametrize(
    "layers",
    [
        {"hybrid_override_pattern": PATTERN, "num_hidden_layers": len(PATTERN)},
        {"layers_block_type": [WORDS[kind] for kind in PATTERN]},  # the newer one does not say how many
    ],
)
def test_latent_experts_of_nemotron_3_super(tmp_path: Path, layers: dict[str, Any]) -> None:
    dims = setup_of(tmp_path, NEMOTRON_3 | layers).dims

    assert round(count_parameters(dims) / 1e9) == 121
    assert (dims.num_layers, dims.attention_layers, dims.state_layers, dims.mlp_layers) == (88, 8, 40, 0)
    assert dims.shared_intermediate_size == 5376


@pytest.mark.parametrize(
    ("stated", "version", "asked", "width"),
    [
        ({"mamba_ssm_cache_dtype": "float32"}, "1.3.0rc21", "auto", 4),
        ({"mamba_ssm_cache_dtype": "float32"}, "1.2.1", "auto", 2),
        ({"mamba_ssm_cache_dtype": None}, "1.3.0rc21", "auto", 2),
        ({"mamba_ssm_cache_dtype": None, "mamba_ssm_dtype": "float32"}, "1.3.0rc21", "auto", 2),
        ({"mamba_ssm_cache_dtype": None}, "1.2.1", "float32", 4),
        ({"mamba_ssm_cache_dtype": "float32"}, "1.3.0rc21", "bfloat16", 2),
    ],
)
def test_recurrent_state_is_kept_as_the_release_takes_it(
    tmp_path: Path, stated: dict[str, Any], version: str, asked: str, width: int
) -> None:
    """validate_and_set_mamba_ssm_cache_dtype, _torch/pyexecutor/model_loader.py@v1.2.1, @v1.3.0rc5 and @v1.3.0rc21."""
    config = NEMOTRON_3 | {"hybrid_override_pattern": PATTERN, "num_hidden_layers": len(PATTERN)}
    (tmp_path / "config.json").write_text(json.dumps(config | stated))
    flags = artifact_from_flags({"kv_cache_config.mamba_ssm_cache_dtype": asked})
    dims = resolve_setup(
        RealHost(), MemoryRequest(model=str(tmp_path), gpu="B200", version=version, flags=flags)
    ).setup.dims

    conv = (128 * 64 + 2 * 8 * 128) * 3 * 2
    assert dims.state_bytes_per_sequence == 40 * (128 * 64 * 128 * width + conv)


def test_searched_layers_have_heads_and_mlps_of_their_own(tmp_path: Path) -> None:
    def block(group: int | None, ratio: float | None) -> dict[str, Any]:
        return {
            "attention": {"n_heads_in_group": group, "no_op": group is None},
            "ffn": {"ffn_mult": ratio, "no_op": ratio is None},
        }

    blocks = [block(2, 4.5), block(None, 4.5), block(4, 1.5), block(2, None)]
    config = DENSE | {
        "model_type": "nemotron-nas", "block_configs": blocks, "num_key_value_heads": None, "intermediate_size": None,
    }  # fmt: skip
    setup = setup_of(tmp_path, config)

    assert setup.dims.kv_heads_per_layer == (8, 0, 4, 8)
    assert setup.dims.inner_per_layer == (3072, 3072, 1024, 0)
    assert plan_memory(setup).ranks[0].kv_bytes_per_token.value == 2 * (8 + 4 + 8) * 64 * 2
    queries, pairs = 3 * 2 * 1024 * 1024, 2 * (8 + 4 + 8) * 64 * 1024
    inner, norms = 3 * (3072 + 3072 + 1024) * 1024, (2 + 1 + 2 + 1 + 1) * 1024
    assert count_parameters(setup.dims) == queries + pairs + inner + norms + 2 * 32000 * 1024


def test_gemma_4_has_wider_heads_where_attention_is_full(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, GEMMA_4)

    sliding, full = 25 * 2 * 8 * 256, 5 * 2 * 2 * 512
    assert plan_memory(setup).ranks[0].kv_bytes_per_token.value == 2 * (sliding + full)
    assert count_parameters(setup.dims) / 1e9 == pytest.approx(25.2, abs=0.1)


def test_experts_beside_the_mlp_are_quantised_though_the_mlp_is_not(tmp_path: Path) -> None:
    kept = [f"model.language_model.layers.{at}.{name}*" for at in range(30) for name in ("mlp", "self_attn")]
    setup = setup_of(tmp_path, GEMMA_4, {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", *kept]})

    experts = plan_memory(setup).ranks[0].find_component("weights")
    assert experts is not None
    assert experts.parts["experts"] == pytest.approx(30 * 128 * 3 * 704 * 2816 * 9 / 16, rel=0.1)


def test_lists_with_the_same_number_for_every_layer_are_that_number(tmp_path: Path) -> None:
    """HunYuan states so its experts of a token, their inner size and the shared ones."""
    config = DENSE | {
        "model_type": "hunyuan_v1_moe", "num_experts": 16, "moe_topk": [8] * 4, "moe_intermediate_size": [512] * 4,
        "num_shared_expert": [1] * 4,
    }  # fmt: skip

    dims = setup_of(tmp_path, config).dims

    assert (dims.experts_per_token, dims.moe_intermediate_size, dims.shared_experts) == (8, 512, 1)


def test_a_list_says_which_layers_have_experts(tmp_path: Path) -> None:
    config = DENSE | {
        "model_type": "mimo_v2_flash", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "moe_layer_freq": [0, 0, 0, 1],
    }  # fmt: skip

    assert setup_of(tmp_path, config).dims.dense_layers == 3


def test_mixed_formats_are_told_module_by_module(tmp_path: Path) -> None:
    layers: dict[str, Any] = {"lm_head": {"quant_algo": "W4A16_NVFP4"}}
    for at in range(4):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            layers[f"model.layers.{at}.self_attn.{name}"] = {"quant_algo": "FP8"}
        for name in ("gate_proj", "up_proj", "down_proj"):
            layers[f"model.layers.{at}.mlp.{name}"] = {"quant_algo": "NVFP4"}
    setup = setup_of(tmp_path, DENSE, {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})

    parts = getattr(plan_memory(setup).ranks[0].find_component("weights"), "parts", {})
    assert parts["attention"] == pytest.approx(4 * 1024 * 64 * (16 + 8 + 8 + 16), rel=0.01)
    assert parts["mlp"] == pytest.approx(4 * 3 * 1024 * 3072 * 9 / 16, rel=0.01)
    assert parts["lm_head"] == pytest.approx(32000 * 1024 * 9 / 16, rel=0.01)
    assert parts["embedding"] == 32000 * 1024 * 2


def test_a_mixture_that_changes_from_layer_to_layer_keeps_its_wide_band(tmp_path: Path) -> None:
    layers = {f"model.layers.{at}.mlp.up_proj": {"quant_algo": ("FP8", "NVFP4")[at % 2]} for at in range(4)}
    setup = setup_of(tmp_path, DENSE, {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    weights = plan_memory(setup).ranks[0].find_component("weights")

    assert weights is not None
    assert weights.bytes.high > 1.3 * weights.bytes.value


def test_integers_of_compressed_tensors_are_not_taken_for_sixteen_bits(tmp_path: Path) -> None:
    group = {
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
        "targets": ["Linear"],
    }
    packed = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group},
        "ignore": ["lm_head", r"re:.*self_attn.*"],
    }  # fmt: skip
    setup = setup_of(tmp_path, DENSE | {"quantization_config": packed})

    parts = getattr(plan_memory(setup).ranks[0].find_component("weights"), "parts", {})
    assert parts["mlp"] == pytest.approx(4 * 3 * 1024 * 3072 * (0.5 + 2 / 32), rel=0.01)
    assert parts["attention"] == 4 * 1024 * 64 * (16 + 8 + 8 + 16) * 2


def test_kimi_states_its_image_encoder_by_other_names(tmp_path: Path) -> None:
    vision = {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "vt_intermediate_size": 4304, "text_hidden_size": 1024,
              "merge_kernel_size": [2, 2]}  # fmt: skip
    dims = setup_of(tmp_path, {"model_type": "kimi_k25", "text_config": DENSE, "vision_config": vision}).dims

    assert dims.encoder_params == pytest.approx(0.44e9, rel=0.05)


def test_formats_that_are_mixed_are_named(tmp_path: Path) -> None:
    layers = {f"model.layers.{at}.mlp.up_proj": {"quant_algo": "NVFP4"} for at in range(4)}
    layers |= {f"model.layers.{at}.self_attn.q_proj": {"quant_algo": "FP8"} for at in range(4)}
    setup = setup_of(tmp_path, DENSE, {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    weights = plan_memory(setup).ranks[0].find_component("weights")

    assert weights is not None
    assert weights.why == "FP8 and NVFP4, the rest bfloat16"


@pytest.mark.parametrize(
    "odd",
    [
        {"rope_scaling": {"type": ["yarn"], "factor": 2.0}, "model_type": "llama"},
        {"model_type": ["llama"], "auto_map": {"AutoConfig": "configuration.Config"}},
        {"block_configs": [{"attention": {"n_heads_in_group": "8"}, "ffn": {"ffn_mult": None}}, {}]},
        {"layer_types": [None, 3], "global_head_dim": 512, "num_global_key_value_heads": "4"},
        {"moe_layer_freq": [], "num_experts": 8, "num_experts_per_tok": 2},
    ],
)
def test_values_of_the_wrong_kind_are_left_out_or_told(tmp_path: Path, odd: dict[str, Any]) -> None:
    with contextlib.suppress(TrtdxError):
        assert plan_memory(setup_of(tmp_path, DENSE | odd)).ranks
