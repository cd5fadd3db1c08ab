"""Quantisation: what is declared, what the weights hold, and what a release reads."""

from __future__ import annotations

import json

import pytest

from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.model import excluded_modules, quantization
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.inspect.readers import read_artifact
from trtdx.model import Severity


def found(text):
    deployment = deployment_from_example(text)
    return [
        (row.code, violation)
        for row in agreements_in(quantization, excluded_modules)
        for violation in row.check(deployment)
    ]


def codes(text):
    return [code for code, _ in found(text)]


# What each release reads of quantization_config.quant_method (_torch/model_config.py at the tags).
@pytest.mark.parametrize(
    ("method", "more", "release", "is_read"),
    [
        ("awq", "", "1.3.0rc22", False),
        ("gptq", "", "", False),
        ("bitsandbytes", "", "", False),
        ("fp8", "", "", False),
        ("fp8", "quant.block_size = [128, 128]", "0.21.0", True),
        ("fp8", "quant.block_size = [128, 128]", "0.18.0", False),
        ("mxfp4", "", "1.0.0", False),
        ("mxfp4", "", "1.2.1", True),
        ("compressed-tensors", "", "1.2.1", False),
        ("compressed-tensors", "", "1.3.0rc13", True),
        ("compressed-tensors", "", "", True),
        ("modelopt", "", "1.2.1", False),
        ("modelopt", "", "1.3.0rc22", True),
    ],
)
def test_a_method_is_read_since_its_release(method, more, release, is_read):
    text = (
        f'[hf]\nquant.method = "{method}"\nquant.source = "config.json"\n{more}\n'
        f'[command]\nruntime.model = "/model"\n[machine]\ngpu.runtime = "{release}"\n'
    )
    assert codes(text) == ([] if is_read else ["DX093"])


def test_a_modelopt_export_is_read_by_every_release():
    text = (
        '[hf]\nquant.method = "modelopt"\nquant.source = "hf_quant_config.json"\nquant.algo = "FP8"\n'
        '[command]\nruntime.model = "/model"\nruntime.version = "0.20.0"\n'
    )
    assert codes(text) == []


def test_the_engine_flow_converts_what_the_pytorch_backend_does_not_read():
    text = '[hf]\nquant.method = "awq"\nquant.algo = "W4A16_AWQ"\n[command]\nruntime.command = "trtllm-build"\n'
    assert codes(text) == []


# Autoawq weights become W4A16_GPTQ in a checkpoint (convert_checkpoint.py, 1.2.1): no other algorithm.
def test_awq_under_another_name_is_the_same_quantisation():
    text = """
    [hf]
    quant.method = "awq"
    quant.algo = "W4A16_AWQ"
    quant.group_size = 128
    quant.has_zero_point = true
    [checkpoint]
    dtype = "float16"
    quant.algo = "W4A16_GPTQ"
    quant.group_size = 128
    quant.has_zero_point = true
    [engine]
    dtype = "float16"
    quant.algo = "W4A16_GPTQ"
    quant.group_size = 128
    """
    assert codes(text) == []


def test_a_model_that_is_quantised_by_its_conversion_is_no_disagreement():
    text = """
    [hf]
    dtype = "bfloat16"
    weights.dtypes = { bfloat16 = 291 }
    weights.scales = false
    weights.kv_scales = false
    [checkpoint]
    dtype = "bfloat16"
    quant.algo = "FP8"
    quant.kv_algo = "FP8"
    weights.dtypes = { bfloat16 = 67, float8_e4m3fn = 224, float32 = 512 }
    weights.scales = true
    weights.kv_scales = true
    [engine]
    dtype = "bfloat16"
    quant.algo = "FP8"
    quant.kv_algo = "FP8"
    """
    assert codes(text) == []


def test_weights_that_were_not_all_seen_are_not_judged():
    text = """
    [hf]
    quant.method = "modelopt"
    quant.source = "hf_quant_config.json"
    quant.algo = "FP8"
    quant.kv_algo = "FP8"
    weights.scales = false
    weights.kv_scales = false
    weights.missing = ["model-00002-of-00002.safetensors"]
    """
    assert codes(text) == []


def test_an_integer_cache_without_scales_is_graver_than_a_float_one():
    def severity(algo):
        text = f'[hf]\nquant.kv_algo = "{algo}"\nweights.kv_scales = false\n'
        [(_, violation)] = found(text)
        return violation.severity

    assert severity("INT8") is Severity.ERROR
    assert severity("NVFP4") is None


def test_scales_that_the_pytorch_backend_would_not_use_are_only_a_note():
    [(_, violation)] = found('[hf]\nweights.kv_scales = false\nquant.kv_algo = "FP8"\n')
    assert violation.severity is Severity.NOTE
    assert codes('[hf]\nweights.kv_scales = false\n[llm-args]\nruntime.kv_cache_dtype = "fp8"\n') == []
    latent = "[hf]\nkv_lora_rank = 512\nweights.kv_scales = false\n"
    assert codes(f'{latent}quant.kv_algo = "NVFP4"\n') == []
    assert codes(f'{latent}[llm-args]\nruntime.kv_cache_dtype = "nvfp4"\n') == []


def test_the_engine_flow_still_needs_the_scales_of_an_fp8_cache():
    bare = '[checkpoint]\nquant.kv_algo = "FP8"\nweights.kv_scales = false\n'
    assert codes(bare) == ["DX104"]
    assert codes(f'{bare}quant.algo = "FP8"\nweights.scales = true\n') == ["DX104"]


def test_options_of_a_file_are_held_against_the_model(tmp_path):
    options = tmp_path / "options.yaml"
    options.write_text("quant_config:\n  quant_algo: FP8\nkv_cache_config:\n  dtype: nvfp4\n")
    host = RealHost()
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    (model / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})
    )
    deployment = Deployment((read_artifact(host, str(model)), read_artifact(host, str(options))))
    [violation] = quantization.requested_quantization.check(deployment)
    assert (violation.values["asked"], violation.values["declared"]) == ("FP8", "NVFP4")
