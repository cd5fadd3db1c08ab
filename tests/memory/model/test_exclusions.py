"""A pattern that names a module leaves out all that is below it, whoever wrote the pattern."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.make_setups import GPT_OSS_120B, make_setup
from trtdx.host import RealHost
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.model.exclusions import LAYER_MODULES, Exclusions
from trtdx.memory.question.setup import MemoryRequest, resolve_setup

if TYPE_CHECKING:
    from pathlib import Path

ATTENTION = {name for name in LAYER_MODULES if name.startswith("self_attn.")}


@pytest.mark.parametrize(
    "pattern",
    [
        "model.layers.*.self_attn",
        "model.layers.3.self_attn",
        "model.layers.*.self_attn*",
        "model.layers.3.self_attn.*",
        "*self_attn*",
        "re:.*self_attn.*",
        r"re:.*layers\.\d+\.self_attn$",
    ],
)
def test_a_pattern_that_names_the_attention_keeps_every_projection(pattern: str) -> None:
    asked = Exclusions((pattern,))

    assert {name for name in LAYER_MODULES if asked.is_excluded(3, name)} == ATTENTION


def test_a_pattern_of_one_layer_says_nothing_of_another() -> None:
    assert not Exclusions(("model.layers.3.self_attn",)).is_excluded(13, "self_attn.q_proj")


def test_the_attention_of_gpt_oss_is_in_16_bit() -> None:
    """openai/gpt-oss-120b states these; with the attention in four bits it would be 2 % short."""
    kept = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")
    setup = make_setup(GPT_OSS_120B, weights="W4A16_MXFP4", excluded=kept, moe_backend="TRITON", version="1.2.1")

    weights = plan_memory(setup).ranks[0].find_component("weights")

    assert weights is not None
    numbers = 2880 * (64 * 64 + 2 * 8 * 64) + 64 * 64 * 2880
    assert weights.parts["attention"] == pytest.approx(36 * 2 * numbers, rel=0.002)


def test_patterns_of_compressed_tensors_are_read_from_a_checkpoint(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 32000, "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"],
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "tensor"},
                                          "input_activations": {"strategy": "tensor"}}},
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))

    weights = (
        plan_memory(resolve_setup(RealHost(), MemoryRequest(model=str(tmp_path))).setup)
        .ranks[0]
        .find_component("weights")
    )

    assert weights is not None
    assert weights.parts["attention"] == 4 * 4 * 1024 * 1024 * 2
    assert weights.parts["mlp"] == pytest.approx(4 * 3 * 1024 * 4096, rel=0.001)
