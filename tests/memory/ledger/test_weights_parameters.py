"""Formulas count exactly the parameters that the published files of each model hold.

The counts are those of the models' own safetensors files, as their pages on the Hugging Face hub and
`model.num_parameters()` of transformers give them.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.make_setups import DEEPSEEK, GPT_OSS_120B, LLAMA_7B, LLAMA_8B
from trtdx.memory.ledger.weights import count_parameters
from trtdx.memory.nouns import Dims


def sizes(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, inner: int, vocab: int, **more: Any
) -> Dims:
    return Dims(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=vocab,
        **more,
    )


def plain(*args: int, **more: Any) -> Dims:
    """A model of the GPT-2 kind: biases everywhere, an MLP without gate."""
    biases = dict.fromkeys(("attention_bias", "output_bias", "mlp_bias", "norm_bias"), True)
    return sizes(*args, gated=False, **(biases | more))


def mixture(*args: int, experts: int, inner: int, **more: Any) -> Dims:
    return sizes(*args, num_experts=experts, moe_intermediate_size=inner, **more)


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
MODELS = {
    "Llama 2 7B": (LLAMA_7B, 6_738_415_616),
    "Llama 2 13B": (sizes(40, 5120, 40, 40, 128, 13824, 32000), 13_015_864_320),
    "Llama 2 70B": (sizes(80, 8192, 64, 8, 128, 28672, 32000), 68_976_648_192),
    "Llama 3 8B": (LLAMA_8B, 8_030_261_248),
    "Llama 3 70B": (sizes(80, 8192, 64, 8, 128, 28672, 128256), 70_553_706_496),
    "Llama 3.1 405B": (sizes(126, 16384, 128, 8, 128, 53248, 128256), 405_853_388_800),
    "Llama 3.2 1B": (sizes(16, 2048, 32, 8, 64, 8192, 128256, tied=True), 1_235_814_400),
    "Llama 3.2 3B": (sizes(28, 3072, 24, 8, 128, 8192, 128256, tied=True), 3_212_749_824),
    "TinyLlama 1.1B": (sizes(22, 2048, 32, 4, 64, 5632, 32000), 1_100_048_384),
    "Yi 34B": (sizes(60, 7168, 56, 8, 128, 20480, 64000), 34_388_917_248),
    "Mistral 7B": (sizes(32, 4096, 32, 8, 128, 14336, 32000), 7_241_732_096),
    "Mixtral 8x7B": (mixture(32, 4096, 32, 8, 128, 14336, 32000, experts=8, inner=14336), 46_702_792_704),
    "Mixtral 8x22B": (mixture(56, 6144, 48, 8, 128, 16384, 32000, experts=8, inner=16384), 140_620_634_112),
    "Qwen2 7B": (sizes(28, 3584, 28, 4, 128, 18944, 152064, attention_bias=True), 7_615_616_512),
    "Qwen2.5 0.5B": (sizes(24, 896, 14, 2, 64, 4864, 151936, attention_bias=True, tied=True), 494_032_768),
    "Qwen2.5 72B": (sizes(80, 8192, 64, 8, 128, 29568, 152064, attention_bias=True), 72_706_203_648),
    "Qwen3 0.6B": (sizes(28, 1024, 16, 8, 128, 3072, 151936, tied=True, model_type="qwen3"), 596_049_920),
    "Qwen3 8B": (sizes(36, 4096, 32, 8, 128, 12288, 151936, model_type="qwen3"), 8_190_735_360),
    "Qwen3 30B-A3B": (
        mixture(48, 2048, 32, 4, 128, 6144, 151936, experts=128, inner=768, model_type="qwen3_moe"),
        30_532_122_624,
    ),
    "Qwen3 235B-A22B": (
        mixture(94, 4096, 64, 4, 128, 12288, 151936, experts=128, inner=1536, model_type="qwen3_moe"),
        235_093_634_560,
    ),
    "Qwen1.5 MoE A2.7B": (
        mixture(
            24, 2048, 16, 16, 128, 5632, 151936, experts=60, inner=1408, attention_bias=True, model_type="qwen2_moe",
            shared_experts=1, shared_intermediate_size=5632,
        ),
        14_315_784_192,
    ),
    "Gemma 7B": (sizes(28, 3072, 16, 16, 256, 24576, 256000, tied=True, model_type="gemma"), 8_537_680_896),
    "Gemma 2 9B": (sizes(42, 3584, 16, 8, 256, 14336, 256000, tied=True, model_type="gemma2"), 9_241_705_984),
    "Gemma 2 27B": (sizes(46, 4608, 32, 16, 128, 36864, 256000, tied=True, model_type="gemma2"), 27_227_128_320),
    "Gemma 3 1B": (sizes(26, 1152, 4, 1, 256, 6912, 262144, tied=True, model_type="gemma3_text"), 999_885_952),
    "Phi-3 mini": (sizes(32, 3072, 32, 32, 96, 8192, 32064, model_type="phi3"), 3_821_079_552),
    "Phi-4": (sizes(40, 5120, 40, 10, 128, 17920, 100352, model_type="phi3"), 14_659_507_200),
    "Phi-2": (plain(32, 2560, 32, 32, 80, 10240, 51200, model_type="phi"), 2_779_683_840),
    "GPT-2": (
        plain(12, 768, 12, 12, 64, 3072, 50257, tied=True, position_embeddings=1024, model_type="gpt2"), 124_439_808
    ),
    "GPT-2 XL": (
        plain(48, 1600, 25, 25, 64, 6400, 50257, tied=True, position_embeddings=1024, model_type="gpt2"), 1_557_611_200
    ),
    "GPT-J 6B": (
        plain(28, 4096, 16, 16, 256, 16384, 50400, attention_bias=False, output_bias=False, model_type="gptj"),
        6_050_882_784,
    ),
    "OPT 6.7B": (plain(32, 4096, 32, 32, 128, 16384, 50272, tied=True, position_embeddings=2050), 6_658_473_984),
    "BLOOM 7B1": (plain(30, 4096, 32, 32, 128, 16384, 250880, tied=True, model_type="bloom"), 7_069_016_064),
    "StarCoder2 15B": (plain(40, 6144, 48, 4, 128, 24576, 49152, model_type="starcoder2"), 15_957_889_024),
    "Falcon 7B": (
        sizes(32, 4544, 71, 1, 64, 18176, 65024, gated=False, norm_bias=True, tied=True, model_type="falcon"),
        6_921_720_704,
    ),
    "Falcon 40B": (
        sizes(60, 8192, 128, 8, 64, 32768, 65024, gated=False, norm_bias=True, tied=True, model_type="falcon"),
        41_303_293_952,
    ),
    "Baichuan 13B": (sizes(40, 5120, 40, 40, 128, 13696, 64000, model_type="baichuan"), 13_264_901_120),
    "Baichuan 2 7B": (sizes(32, 4096, 32, 32, 128, 11008, 125696, model_type="baichuan"), 7_505_973_248),
    "ChatGLM3 6B": (sizes(28, 4096, 32, 2, 128, 13696, 65024, attention_bias=True, model_type="chatglm"), 6_243_584_000),
    "DeepSeek V3": (DEEPSEEK, 671_026_419_200),  # without the layer of multi-token prediction
    "DeepSeek V2": (
        mixture(
            60, 5120, 128, 128, 0, 12288, 102400, experts=160, inner=1536, shared_experts=2, dense_layers=1,
            q_lora_rank=1536, model_type="deepseek_v2", **LATENT,
        ),
        235_741_434_880,
    ),
    "DeepSeek V2 Lite": (
        mixture(
            27, 2048, 16, 16, 0, 10944, 102400, experts=64, inner=1408, shared_experts=2, dense_layers=1,
            model_type="deepseek_v2", **LATENT,
        ),
        15_706_484_224,
    ),
    "gpt-oss 20B": (
        mixture(
            24, 2880, 64, 8, 64, 2880, 201088, experts=32, inner=2880, attention_bias=True, output_bias=True,
            mlp_bias=True, model_type="gpt_oss",
        ),
        20_914_757_184,
    ),
    "gpt-oss 120B": (GPT_OSS_120B, 116_829_156_672),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_exactly_the_parameters_its_files_hold(name: str) -> None:
    dims, published = MODELS[name]

    assert count_parameters(dims) == published


def test_an_encoder_decoder_has_the_encoder_and_cross_attention() -> None:
    flan_t5_xl = sizes(24, 2048, 32, 32, 64, 5120, 32128, encoder_layers=24, model_type="t5")

    assert count_parameters(flan_t5_xl) == pytest.approx(
        2_849_757_184, rel=1e-5
    )  # but for the tables of relative positions


def test_layers_that_are_one_thing_only_are_counted_once() -> None:
    """Nemotron-H: each layer is Mamba-2, attention or an MLP."""
    hybrid = sizes(
        52, 4096, 32, 8, 128, 21504, 131072, gated=False, attention_layers=4, state_layers=24, mlp_layers=24,
        state_params_per_layer=109_576_192, model_type="nemotron_h",
    )  # fmt: skip

    mixers = 4 * (2 * 4096 * 4096 + 2 * 4096 * 1024) + 24 * 109_576_192
    rest = 24 * 2 * 4096 * 21504 + 2 * 131072 * 4096 + 53 * 4096
    assert count_parameters(hybrid) == mixers + rest


def test_experts_that_work_in_a_narrower_width_have_projections_into_it() -> None:
    """Nemotron-3-Super: 40 of its 88 layers have 512 experts of width 1024; its page says 120B."""
    narrow = mixture(
        88, 4096, 32, 2, 128, 2688, 131072, experts=512, inner=2688, gated=False, attention_layers=8, state_layers=40,
        mlp_layers=0, moe_latent_size=1024, shared_experts=1, shared_intermediate_size=5376,
        state_params_per_layer=109_576_192, model_type="nemotron_h",
    )  # fmt: skip

    assert count_parameters(narrow) == pytest.approx(120.6e9, rel=0.005)
