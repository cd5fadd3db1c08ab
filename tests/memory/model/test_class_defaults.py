"""A config.json that leaves keys out has its class's own values, and every parameter of such a model is counted.

The counts are those of transformers 5.22.2, whose models were built on the meta device: `{"model_type": NAME}` alone,
the text part of multimodal ones. `test_transformers_counts_the_same` builds some of them again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trtdx.host import RealHost
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.ledger.weights import count_parameters
from trtdx.memory.question.setup import MemoryRequest, ResolvedSetup, resolve_setup

if TYPE_CHECKING:
    from pathlib import Path

COUNTED = {
    "afmoe": 19_232_600_000, "apertus": 6_979_596_352, "arcee": 4_022_766_080, "aria_text": 18_517_069_824,
    "bamba": 9_992_765_440, "bloom": 16_156_544, "cohere": 34_980_831_232, "cohere2": 34_980_831_232,
    "cohere2_moe": 190_004_928_512, "cwm": 32_581_097_472, "deepseek_v3": 671_026_404_352,
    "deepseek_v32": 671_877_929_216, "deepseek_v4": 284_325_869_015, "ernie4_5": 360_748_032,
    "ernie4_5_moe": 21_825_437_888, "exaone4": 9_429_069_824, "exaone4_5": 9_429_069_824,
    "exaone_moe": 28_550_639_616, "falcon": 6_921_720_704, "falcon_mamba": 159_308_544, "flex_olmo": 33_270_665_216,
    "gemma": 8_537_680_896, "gemma2": 2_614_341_888, "gemma3": 2_628_658_432, "gemma3_text": 2_628_658_432,
    "gemma4": 5_077_177_856, "gemma4_text": 5_077_177_856, "glm": 9_399_951_360, "glm4": 9_400_279_040,
    "glm4_moe": 103_481_200_640, "glm4_moe_lite": 29_943_390_976, "glm_moe_dsa": 743_911_199_232,
    "gpt2": 124_439_808, "gpt_bigcode": 111_446_784, "gpt_neox": 20_554_567_680, "gpt_oss": 116_829_156_672,
    "gptj": 6_050_882_784, "granite": 6_738_415_616, "granite_swa": 2_144_463_840, "granitemoe": 37_039_116_288,
    "granitemoe_swa": 37_039_117_312, "granitemoehybrid": 38_601_064_448, "granitemoeshared": 37_039_116_288,
    "hy_v3": 295_033_528_320, "jais2": 8_090_401_280, "jamba": 51_570_323_328, "kimi_linear": 49_133_074_464,
    "laguna": 33_189_975_808, "llama": 6_738_415_616, "llama4": 107_769_861_120, "llama4_text": 107_769_861_120,
    "llava": 6_738_415_616, "llava_next": 6_738_415_616, "mamba": 159_308_544, "mamba2": 7_285_403_648,
    "mimo_v2_flash": 308_778_768_832, "minicpm3": 4_073_875_968, "minimax": 47_373_946_880, "minimax_m2": 228_689_748_992,
    "minimax_m3_vl": 447_186_441_216, "minimax_m3_vl_text": 447_186_441_216, "ministral3": 8_489_553_920,
    "mistral": 7_241_732_096, "mixtral": 46_702_792_704, "mllama": 9_775_192_080,
    "mllama_text_model": 9_775_192_080, "mpt": 1_311_213_568, "mt5": 172_119_424, "olmo": 6_888_095_744,
    "olmo2": 6_888_624_128, "olmo3": 6_888_624_128, "olmoe": 13_361_612_800, "opt": 125_239_296,
    "phi": 1_418_270_720, "phi3": 3_821_079_552, "phimoe": 41_872_793_600, "qwen2": 12_049_846_272,
    "qwen2_5_vl": 72_706_203_648, "qwen2_moe": 14_315_784_192, "qwen2_vl": 72_706_203_648, "qwen3": 12_049_461_248,
    "qwen3_5": 8_953_803_264, "qwen3_5_moe": 34_660_610_688, "qwen3_5_moe_text": 34_660_610_688,
    "qwen3_5_text": 8_953_803_264, "qwen3_moe": 15_350_731_776, "qwen3_next": 79_674_391_296,
    "qwen3_vl": 12_049_461_248, "seed_oss": 28_921_040_896, "smollm3": 3_075_098_624, "stablelm": 2_795_443_200,
    "starcoder2": 3_030_371_328,
}  # fmt: skip
MULTIMODAL = {"gemma3", "gemma4", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_5_moe", "llava", "llava_next",
              "mllama", "llama4", "minimax_m3_vl", "exaone4_5"}  # fmt: skip
# Gemma 3 4B as it was published: everything else is the default of Gemma3TextConfig.
GEMMA_3_4B = {
    "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "patch_size": 14, "image_size": 896,
    },
}  # fmt: skip


def answer(folder: Path, config: dict[str, Any], **more: Any) -> ResolvedSetup:
    (folder / "config.json").write_text(json.dumps(config))
    return resolve_setup(RealHost(), MemoryRequest(model=str(folder), **more))


@pytest.mark.parametrize("model_type", COUNTED)
def test_a_model_type_alone_has_the_parameters_of_its_class(tmp_path: Path, model_type: str) -> None:
    config = {"model_type": model_type} | ({"text_config": {}} if model_type in MULTIMODAL else {})

    dims = answer(tmp_path, config).setup.dims

    # But for the routers' biases, which transformers keeps outside of its parameters.
    assert count_parameters(dims) == pytest.approx(COUNTED[model_type], rel=2e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", ["gpt2", "gemma2", "qwen3_moe", "deepseek_v3", "mamba2", "qwen3_next"])
def test_transformers_counts_the_same(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[model_type]())

    assert sum(each.numel() for each in model.parameters()) == COUNTED[model_type]


def test_gemma_3_has_the_heads_and_the_vocabulary_of_its_class(tmp_path: Path) -> None:
    setup = answer(tmp_path, GEMMA_3_4B).setup

    dims = setup.dims
    assert (dims.num_heads, dims.num_kv_heads, dims.head_dim, dims.vocab_size) == (8, 4, 256, 262208)
    assert count_parameters(dims) == 3_880_263_168  # of the 4.3 billion, the rest is the encoder
    assert dims.encoder_params == pytest.approx(419_816_448, rel=0.02)
    assert setup.said["num_heads"].endswith("num_attention_heads is left out, which means the default of gemma3_text")


def test_a_stated_null_is_no_reason_for_a_default(tmp_path: Path) -> None:
    """Mistral 7B v0.3 states `"sliding_window": null`, and MistralConfig's default is 4096."""
    config = {"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": None}

    assert answer(tmp_path, config).setup.dims.windows == ()


def test_a_type_that_transformers_does_not_know_gets_no_other_models_values(tmp_path: Path) -> None:
    from trtdx.errors import InputError

    with pytest.raises(InputError, match="does not say layers"):
        answer(tmp_path, {"model_type": "somebodys_own", "hidden_size": 4096})


@pytest.mark.parametrize("model_type", ["longcat_flash", "zamba2", "somebodys_own"])
def test_an_architecture_that_is_not_modelled_is_said_to_be_so(tmp_path: Path, model_type: str) -> None:
    sizes = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008,
        "vocab_size": 32000, "num_layers": 32, "moe_topk": 2, "n_routed_experts": 8,
    }  # fmt: skip

    found = answer(tmp_path, {"model_type": model_type, **sizes}, gpu="H100")

    ledger = plan_memory(found.setup)
    assert ledger.notes[0].startswith(f"a rough guess: trtdx does not model {model_type}")
    weights = ledger.ranks[0].find_component("weights")
    assert weights is not None
    assert weights.bytes.high > 1.3 * weights.bytes.value


def test_deepseek_v4_keeps_a_fraction_of_its_tokens_and_a_fixed_part_of_each_sequence(tmp_path: Path) -> None:
    """By hand from deepseek_v4/cache_manager.py@v1.3.0rc22: 20 layers at a ratio of 4, 23 at 128, of the default 43."""
    found = answer(tmp_path, {"model_type": "deepseek_v4", "torch_dtype": "bfloat16"}, gpu="B200")

    ledger = plan_memory(found.setup).ranks[0]
    assert ledger.kv_bytes_per_token.value == 20 * (512 * 2 // 4 + 132 // 4) + 23 * (512 * 2 // 128)
    state = ledger.find_component("recurrent_state")
    assert state is not None
    window = 43 * 128 * 512 * 2
    sparse, heavy = 20 * 32 * 2 * 2 * (512 + 128) * 4, 23 * 128 * 2 * 512 * 4
    assert state.bytes.value == found.setup.limits.max_batch_size * (window + sparse + heavy)


def test_values_narrower_than_keys_are_counted_as_such(tmp_path: Path) -> None:
    """MiMo-V2-Flash: keys of 192, values of 128; twice as many heads where attention has a window."""
    ledger = plan_memory(answer(tmp_path, {"model_type": "mimo_v2_flash"}, gpu="B200").setup).ranks[0]

    assert ledger.kv_bytes_per_token.value == 2 * (9 * 4 + 39 * 8) * (192 + 128)
