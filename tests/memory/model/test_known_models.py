"""Models by their published names: the sizes are those of their files, as their pages on the hub count them."""

from __future__ import annotations

import pytest

from trtdx.host import RealHost
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.ledger.weight_storage import FILE_LAYOUT
from trtdx.memory.ledger.weights import count_parameters, stage_weights, weight_model_of
from trtdx.memory.model.source import UnknownModelError, known_models
from trtdx.memory.nouns import GIB, ParallelLayout, Setup
from trtdx.memory.question.flags import artifact_from_flags
from trtdx.memory.question.setup import MemoryRequest, resolve_setup

# What the published files hold, encoders included.
PUBLISHED = {
    "mistralai/Mistral-7B-Instruct-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 140_630_071_296,
    "mistralai/Mistral-Nemo-Instruct-2407": 12_247_782_400,
    "mistralai/Mistral-Large-Instruct-2407": 122_610_069_504,
    "mistralai/Ministral-8B-Instruct-2410": 8_019_808_256,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23_572_403_200,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 24_011_361_280,
    "google/gemma-3-1b-it": 999_885_952,
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-3-12b-it": 12_187_325_040,
    "google/gemma-3-27b-it": 27_432_406_640,
    "Qwen/QwQ-32B": 32_763_876_352,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": 31_070_754_032,
    "zai-org/GLM-4.5-Air": 106_852_245_504,
    "microsoft/phi-4": 14_659_507_200,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32_003_216_384,
    "LGAI-EXAONE/EXAONE-4.0-1.2B": 1_279_391_488,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 108_641_793_536,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 401_583_781_376,
}
# In billions, as their names and pages say it.
ROUGHLY = {
    "moonshotai/Kimi-K2-Instruct": 1026, "moonshotai/Kimi-K2-Thinking": 1026, "deepseek-ai/DeepSeek-V3.2": 672,
    "deepseek-ai/DeepSeek-V4-Flash": 284, "Qwen/Qwen3-Next-80B-A3B-Instruct": 80, "nvidia/Nemotron-H-56B-Base-8K": 56,
    "nvidia/Nemotron-H-8B-Base-8K": 8.1, "nvidia/NVIDIA-Nemotron-Nano-9B-v2": 8.89, "openai/whisper-large-v3": 1.54,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480, "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31.6,
    "zai-org/GLM-4.6": 353, "MiniMaxAI/MiniMax-M2.5": 229, "openai/gpt-oss-120b": 117, "google/gemma-4-26B-A4B-it": 25.6,
}  # fmt: skip


def setup_of(name: str, **more: str) -> Setup:
    return resolve_setup(
        RealHost(), MemoryRequest(model=name, **({"gpu": "8xB200", "version": "1.3.0rc13"} | more))
    ).setup


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_name_has_the_parameters_of_its_files(name: str) -> None:
    dims = setup_of(name).dims

    rel = 1e-3 if dims.encoder_params else 1e-6
    assert count_parameters(dims) + dims.encoder_params == pytest.approx(PUBLISHED[name], rel=rel)


@pytest.mark.parametrize("name", ROUGHLY)
def test_a_published_name_is_as_large_as_it_says(name: str) -> None:
    dims = setup_of(name).dims

    assert (count_parameters(dims) + dims.encoder_params) / 1e9 == pytest.approx(ROUGHLY[name], rel=0.01)


@pytest.mark.parametrize(
    ("name", "positions"),
    [("Qwen/QwQ-32B", 40960), ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", 262144), ("Qwen/Qwen3-8B", 40960)],
)
def test_models_of_one_size_keep_their_own_lengths(name: str, positions: int) -> None:
    assert setup_of(name).dims.max_positions == positions


def test_every_name_of_the_table_can_be_planned() -> None:
    for name, config in known_models().items():
        for each in (name, *config.get("also", ())):
            assert plan_memory(setup_of(f"owner/{each}")).ranks


def test_a_version_after_the_format_is_no_part_of_the_name() -> None:
    assert setup_of("nvidia/DeepSeek-R1-0528-NVFP4-v2").formats.weights == "NVFP4"


def test_kimi_keeps_all_but_its_experts_in_16_bit() -> None:
    """Patterns of compressed-tensors; four bits for 32 numbers with a scale of two bytes."""
    weights = plan_memory(setup_of("moonshotai/Kimi-K2.5")).ranks[0].find_component("weights")

    assert weights is not None
    experts = 60 * 384 // 8 * 3 * 2048 * 7168
    assert weights.parts["experts"] == pytest.approx(experts * (0.5 + 2 / 32), rel=0.01)
    assert weights.parts["shared_experts"] == 60 * 3 * 2048 // 8 * 7168 * 2


def test_deepseek_v4_has_experts_in_four_bits_and_the_rest_in_eight() -> None:
    weights = plan_memory(setup_of("deepseek-ai/DeepSeek-V4-Flash")).ranks[0].find_component("weights")

    assert weights is not None
    experts = 43 * 256 // 8 * 3 * 2048 * 4096
    assert weights.parts["experts"] == pytest.approx(experts * 17 / 32, rel=0.03)
    assert weights.parts["shared_experts"] == pytest.approx(43 * 3 * 2048 // 8 * 4096, rel=0.01)


def test_an_eagle3_head_has_an_output_of_its_own_and_the_models_embedding() -> None:
    flags = artifact_from_flags({"draft_model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"})
    asked = MemoryRequest(model="meta-llama/Llama-3.1-8B-Instruct", gpu="H100", flags=flags)

    draft = plan_memory(resolve_setup(RealHost(), asked).setup).ranks[0].find_component("draft_weights")

    assert draft is not None
    attention, mlp = 8192 * (4096 + 2 * 1024) + 4096 * 4096, 3 * 4096 * 14336
    numbers = attention + mlp + 3 * 4096 * 4096 + 32000 * 4096 + 4 * 4096
    assert draft.bytes.value == 2 * numbers + 4 * 32000
    assert draft.bytes.value / GIB == pytest.approx(0.79, abs=0.01)


@pytest.mark.parametrize(("name", "size"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)])
def test_the_files_of_gpt_oss_are_as_large_as_their_index_says(name: str, size: int) -> None:
    model = weight_model_of(setup_of(name))._replace(flow=FILE_LAYOUT, layout=ParallelLayout())

    assert stage_weights(model, 0).bytes.value == pytest.approx(size, rel=1e-6)


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V2", "deepseek-ai/DeepSeek-V4", "Mistral-7B-v0.9"])
def test_a_version_that_is_not_known_is_not_taken_for_another(name: str) -> None:
    with pytest.raises(UnknownModelError):
        setup_of(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Mistral-7B", "Mistral-7B-v0.1"),
        ("Llama-3_3-Nemotron-Super-49B", "Llama-3_3-Nemotron-Super-49B-v1"),
        ("deepseek-ai/DeepSeek-V3-Base", "DeepSeek-R1"),
    ],
)
def test_a_revision_may_be_left_out(name: str, meant: str) -> None:
    assert setup_of(name).dims == setup_of(meant).dims


def test_a_name_that_others_begin_with_is_answered_with_these() -> None:
    with pytest.raises(UnknownModelError) as caught:
        setup_of("deepseek-ai/DeepSeek-V4")
    assert "DeepSeek-V4-Flash or DeepSeek-V4-Pro" in caught.value.fix
