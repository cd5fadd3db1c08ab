"""Before 0.8 every model had a build script of its own; what trtllm-build itself takes."""

from __future__ import annotations

import pytest

from support.make_setups import DEEPSEEK, make_setup
from trtdx.host import RealHost
from trtdx.memory.ledger.build_memory import build_host_memory, render_build_note
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import GIB, MIB, Setup
from trtdx.memory.question.build_defaults import build_default
from trtdx.memory.question.flags import artifact_from_flags
from trtdx.memory.question.setup import MemoryRequest, resolve_setup


@pytest.mark.parametrize(
    ("release", "model_type", "setting", "default"),
    [
        ("0.5.0", "llama", "max_batch_size", 8),
        ("0.7.1", "llama", "max_input_len", 2048),
        ("0.7.1", "llama", "max_output_len", 512),
        ("0.6.1", "llama", "tokens_per_block", 64),
        ("0.7.0", "mistral", "tokens_per_block", 128),
        ("0.7.1", "gpt2", "max_batch_size", 256),
        ("0.7.1", "gpt_neox", "max_batch_size", 64),
        ("0.7.1", "qwen", "plugin.gemm_plugin", True),
        ("0.7.1", "llama", "plugin.gpt_attention_plugin", False),
        ("0.7.1", "llama", "plugin.paged_kv_cache", False),
        ("0.8.0", "llama", "max_batch_size", 1),
        ("0.8.0", "llama", "plugin.paged_kv_cache", True),
    ],
)
def test_a_release_builds_with_the_defaults_of_its_own_script(
    release: str, model_type: str, setting: str, default: object
) -> None:
    assert build_default(release, model_type, setting) == default


def old(**flags: object) -> Setup:
    given = {"max_batch_size": 25, "max_output_len": 4096, "tokens_per_block": 16} | flags
    flags_ = artifact_from_flags({"backend": "tensorrt", "kv_cache_free_gpu_memory_fraction": 0.95} | given)
    return resolve_setup(RealHost(), MemoryRequest(model="Llama-2-7B", gpu="A10", version="0.7.1", flags=flags_)).setup


def test_the_cache_of_an_engine_of_the_first_releases_is_as_large_as_it_was() -> None:
    """NVIDIA/TensorRT-LLM#224: 10718 tokens of cache, 5.23 GiB, on an A10."""
    setup = old(use_inflight_batching=True, use_gemm_plugin="float16", enable_context_fmha=True)

    assert setup.running.paged_kv
    assert setup.running.packed
    assert plan_memory(setup).kv_tokens.value == pytest.approx(10718, rel=0.01)


def test_without_a_plugin_named_there_was_none() -> None:
    running = old().running

    switches = ("gemm_plugin", "attention_plugin", "context_fmha", "packed", "paged_kv")
    assert [name for name in switches if getattr(running, name)] == []


@pytest.mark.parametrize(("gpu", "host"), [(775, 6600), (2699, 10624), (3361, 12851), (11909, 29706), (70725, 176260)])
def test_a_builder_takes_the_host_memory_that_builders_printed(gpu: int, host: int) -> None:
    need = build_host_memory(gpu * MIB)

    assert need.low <= host * MIB <= need.high


def test_what_the_build_takes_is_said_of_engines_only() -> None:
    assert "host memory" in render_build_note(plan_memory(make_setup(backend="tensorrt", version="1.2.1")))
    assert render_build_note(plan_memory(make_setup())) == ""


@pytest.mark.parametrize(("version", "copy"), [("0.17.0", (512 + 64) * 1536), ("1.0.0", 512 * 128)])
def test_deepseeks_engines_keep_fused_projections_plain_and_one_of_them_twice(version: str, copy: int) -> None:
    """DeepseekV2Attention, layers/attention.py@v0.17.0 and @v1.0.0."""
    setup = make_setup(
        DEEPSEEK, weights="W8A16", backend="tensorrt", version=version, layout={"tp": 8}, dtype="float16"
    )

    weights = plan_memory(setup).ranks[0].find_component("weights")

    assert weights is not None
    plain = 16 * (192 * 1536 + 256 * 512 + copy) * 2
    eight = (1536 + 576) * (7168 + 2) + 7168 * (16 * 128 + 2)
    assert weights.parts["attention"] == pytest.approx(61 * (plain + eight), rel=0.001)
    assert weights.bytes.value < 100 * GIB
