"""What cannot run is not told to fit: models and loaders a backend lacks, GPUs without kernels, memory that is shared."""

from __future__ import annotations

import json

import pytest

from trtdx.host import RealHost, RecordedHost
from trtdx.knowledge.load import load_book
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import GIB
from trtdx.memory.question.contradictions import find_contradictions
from trtdx.memory.question.flags import artifact_from_flags
from trtdx.memory.question.setup import MemoryRequest, resolve_setup
from trtdx.model import Severity

BOOK = load_book(RealHost())


def wrong(model: str = "model", *words: str, config=None, version: str = "1.2.1", gpu: str = "H100", **more):
    files = {"model/config.json": json.dumps(config).encode()} if config else {}
    asked = MemoryRequest(model=model, gpu=gpu, version=version, flags=artifact_from_flags({}, words), **more)
    return find_contradictions(resolve_setup(RecordedHost(files), asked), BOOK)


def errors(*args, **more) -> list[str]:
    return [each.message for each in wrong(*args, **more) if each.severity is Severity.ERROR]


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "version", "told"),
    [
        ("LlamaForCausalLM", "1.0.0", ""),
        ("WhisperForConditionalGeneration", "1.2.1", "has no WhisperForConditionalGeneration"),
        ("GptOssForCausalLM", "1.0.0", "since 1.1.0, not in 1.0.0"),
        ("GptOssForCausalLM", "1.1.0rc2", ""),
        ("GptOssForCausalLM", "1.2.1", ""),
        ("SomethingNewForCausalLM", "1.3.0rc25", ""),
    ],
)
def test_a_model_that_the_pytorch_backend_of_a_release_lacks_cannot_run(architecture, version, told):
    found = errors(config=LLAMA | {"architectures": [architecture]}, version=version)
    assert (told in found[0]) if told else not found


def test_autodeploy_takes_models_that_nobody_wrote_a_class_for():
    config = LLAMA | {"architectures": ["SomethingNewForCausalLM"]}
    assert errors(config=config)
    assert not errors("model", "--backend", "_autodeploy", config=config)


def test_an_engine_of_a_model_that_only_pytorch_has_cannot_be_built():
    config = LLAMA | {"architectures": ["NemotronHForCausalLM"]}
    assert "only the PyTorch backend has it" in errors("model", "--backend", "tensorrt", config=config)[0]


def test_before_0_17_there_was_no_pytorch_backend():
    found = errors("Llama-3.1-8B", "--backend", "pytorch", version="0.12.0")
    assert "0.12.0 has no PyTorch backend" in found[0]


@pytest.mark.parametrize(("method", "fails"), [("awq", True), ("gptq", True), ("mxfp4", False)])
def test_a_checkpoint_that_the_backend_has_no_loader_for_cannot_run(method, fails):
    config = LLAMA | {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 128}}
    codes = [each.code for each in wrong(config=config)]
    assert ("DX093" in codes) == fails
    assert "DX093" not in [each.code for each in wrong("model", "--backend", "tensorrt", config=config)]


def test_an_engine_on_turing_is_planned_without_fused_attention():
    def workspace(gpu: str, *words: str) -> int:
        flags = ("--backend", "tensorrt", "--dtype", "float16", "--max_batch_size", "8", *words)
        asked = MemoryRequest(model="Llama-2-7B", gpu=gpu, version="0.16.0", flags=artifact_from_flags({}, flags))
        return plan_memory(resolve_setup(RecordedHost(), asked).setup).tightest_rank.component_bytes("activation")

    assert workspace("T4") > 2 * workspace("A10")
    assert workspace("T4") == workspace("A10", "--context_fmha", "disable")


@pytest.mark.parametrize(
    ("words", "version", "severity"),
    [
        ((), "0.16.0", Severity.WARNING),
        (("--context_fmha", "enable"), "0.16.0", Severity.ERROR),
        (("--context_fmha", "disable"), "0.16.0", None),
        (("--context_fmha", "enable"), "0.10.0", None),  # it fell back by itself
    ],
)
def test_fused_attention_has_to_be_turned_off_where_a_release_refuses_it(words, version, severity):
    flags = ("--backend", "tensorrt", "--dtype", "float16", *words)
    found = [each for each in wrong("Llama-2-7B", *flags, version=version, gpu="T4") if "fused" in each.message]
    assert [each.severity for each in found] == ([severity] if severity else [])


def test_the_pytorch_backend_has_no_attention_for_turing():
    found = errors("Llama-2-7B", "--dtype", "float16", gpu="T4")
    assert any("no attention kernels for T4" in each for each in found)


@pytest.mark.parametrize(
    ("gpu", "version", "told"),
    [
        ("B200", "0.16.0", True),
        ("B200", "0.17.0", False),
        ("B300", "0.12.0", True),
        ("T4", "0.16.0", True),
        ("T4", "0.15.0", False),
        ("DGX Spark", "0.12.0", True),
        ("H100", "0.5.0", False),
    ],
)
def test_a_gpu_that_a_release_has_no_kernels_for_runs_nothing(gpu, version, told):
    flags = ("--backend", "tensorrt", "--dtype", "float16")
    found = errors("Llama-2-7B", *flags, version=version, gpu=gpu)
    assert any(f"TensorRT-LLM {version} has no kernels for" in each for each in found) == told


def test_a_release_that_nobody_named_is_only_warned_of():
    found = wrong("Llama-2-7B", "--backend", "tensorrt", "--dtype", "float16", version="", gpu="T4")
    assert {each.severity for each in found if each.code == "DX060"} == {Severity.WARNING}


@pytest.mark.parametrize(
    ("model", "version", "told"),
    [
        ("gemma-3-27b-it", "0.18.0", True),
        ("gemma-3-27b-it", "0.19.0", False),
        ("Gemma-2-9B", "0.11.0", True),
        ("Qwen3-8B", "0.21.0", True),
        ("Qwen3-8B", "1.0.0", False),
        ("Llama-3.1-8B", "0.8.0", False),
    ],
)
def test_an_engine_cannot_be_built_before_the_release_that_brought_the_model(model, version, told):
    found = errors(model, "--backend", "tensorrt", version=version)
    assert any("can be built since" in each for each in found) == told


def test_a_model_that_came_after_the_last_stable_release_is_planned_for_the_first_that_has_it():
    assert not errors("DeepSeek-V4-Flash", version="", gpu="8xB200")
    assert "not in 1.2.1" in errors("DeepSeek-V4-Flash", version="1.2.1", gpu="8xB200")[0]


@pytest.mark.parametrize("gpus", ["4xH100", "8xH100"])
def test_experts_in_mxfp4_are_filled_up_on_each_rank(gpus):
    assert not errors("gpt-oss-120b", gpu=gpus)


def test_memory_that_is_shared_with_the_host_is_not_all_the_gpus():
    def ledger(gpu: str, *words: str):
        asked = MemoryRequest(model="Llama-3.1-8B", gpu=gpu, flags=artifact_from_flags({}, words))
        return plan_memory(resolve_setup(RecordedHost(), asked).setup).tightest_rank

    spark, discrete = ledger("DGX Spark"), ledger("GB200")
    assert spark.component_bytes("host_memory") > 5 * GIB
    assert not discrete.component_bytes("host_memory")
    cached = ledger("DGX Spark", "--host_cache_size", "16GiB")  # no second tier there
    assert cached.component_bytes("host_memory") - spark.component_bytes("host_memory") == 16 * GIB
    assert cached.kv_tokens.value < spark.kv_tokens.value
