"""Faults that make answers wrong without an error fail the default gate; what is only suspicious does not."""

from __future__ import annotations

import json

import pytest

from support.make_engine import make_checkpoint, make_engine
from support.make_hf import make_hf_model, make_tokenizer, mlp_shapes, model_config
from trtdx.host import RealHost
from trtdx.inspect.facts.machine import machine_from_flags
from trtdx.inspect.run import InspectQuestion, inspect_artifacts
from trtdx.knowledge.load import load_book
from trtdx.model import Severity

BOOK = load_book(RealHost())


def worst(*paths, command="", runtime=""):
    commands = (command,) if command else ()
    question = InspectQuestion(
        paths=tuple(map(str, paths)), commands=commands, machine=machine_from_flags(runtime=runtime)
    )
    findings = inspect_artifacts(RealHost(), question, BOOK).findings
    return (findings[0].code, findings[0].severity) if findings else None


def edited(path, file="config.json", **changes):
    document = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps({k: v for k, v in (document | changes).items() if v is not None}))
    return path


@pytest.mark.parametrize("size", [700, 1700])
def test_the_tokenizer_of_another_family_beside_an_engine(tmp_path, size):
    engine, tokenizer = make_engine(tmp_path / "engine"), make_tokenizer(tmp_path / "tok", vocab_size=size)
    assert worst(engine, tokenizer) == ("DX509", Severity.ERROR)


def test_a_padded_vocabulary_beside_its_tokenizer_is_fine(tmp_path):
    engine, tokenizer = make_engine(tmp_path / "engine"), make_tokenizer(tmp_path / "tok", vocab_size=2010)
    assert worst(engine, tokenizer) is None


def test_a_template_that_ends_turns_at_a_token_where_nothing_stops(tmp_path):
    model = make_hf_model(tmp_path / "hf")
    edited(model, "generation_config.json", eos_token_id=[1793])
    edited(model, "tokenizer_config.json", eos_token="<|end_of_text|>")
    assert worst(model) == ("DX502", Severity.ERROR)


@pytest.mark.heavy
def test_a_scaling_that_was_deleted(tmp_path):
    model = make_hf_model(tmp_path / "hf", vocab_size=128256)
    assert worst(model) is None
    assert worst(edited(model, rope_scaling=None)) == ("DX816", Severity.ERROR)


@pytest.mark.parametrize("make", [make_hf_model, make_checkpoint])
@pytest.mark.parametrize("size", [1500, 4096])
def test_a_vocabulary_that_is_not_that_of_the_tensors(tmp_path, make, size):
    made = make(tmp_path / "made")
    assert worst(made) is None
    assert worst(edited(tmp_path / "made", vocab_size=size)) == ("DX094", Severity.ERROR)


def test_an_engine_that_is_longer_than_the_positions(tmp_path):
    assert worst(make_engine(tmp_path / "engine", max_seq_len=262144)) == ("DX809", Severity.ERROR)


def test_a_command_line_against_its_file(tmp_path):
    options = tmp_path / "extra.yaml"
    options.write_text("tensor_parallel_size: 4\n")
    command = f"trtllm-serve org/name --tp_size {{}} --extra_llm_api_options {options}"
    assert worst(command=command.format(2)) == ("DX262", Severity.ERROR)
    assert worst(command=command.format(4)) is None


def fp8(**config):
    """Return what a model in FP8 has in place of its products, and the file that declares it."""
    tensors = {}
    for layer in range(4):
        for name, shape in mlp_shapes(model_config(**config)).items():
            tensors[f"model.layers.{layer}.{name}"] = ("F8_E4M3", shape)
            tensors[f"model.layers.{layer}.{name}_scale"] = ("F32", ())
    return tensors


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"vocab_size": 1500}, "DX094"),
        ({"num_key_value_heads": 32}, "DX813"),
        ({"intermediate_size": 11008}, "DX814"),
    ],
)
def test_a_quantised_model_is_held_to_its_weights_too(tmp_path, change, code):
    plain = [f"model.layers.{layer}.self_attn*" for layer in range(4)]
    quantisation = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head", *plain]}
    model = make_hf_model(tmp_path / "hf", num_hidden_layers=4, tensors=fp8(num_hidden_layers=4))
    (model / "hf_quant_config.json").write_text(json.dumps({"quantization": quantisation}))
    assert worst(model) is None
    assert worst(edited(model, **change)) == (code, Severity.ERROR)
    tensors = fp8(num_hidden_layers=4) | {"model.layers.1.mlp.up_proj.weight_scale": None}
    lost = make_hf_model(tmp_path / "hf", num_hidden_layers=4, tensors=tensors)
    assert worst(lost) == ("DX138", Severity.ERROR)


@pytest.mark.parametrize("lost", ["layers.2.mlp.up_proj.weight", "norm.weight", "embed_tokens.weight"])
def test_a_tensor_that_was_lost(tmp_path, lost):
    model = make_hf_model(tmp_path / "hf", num_hidden_layers=4, tensors={f"model.{lost}": None})
    assert worst(model) == ("DX138", Severity.ERROR)


def test_query_norms_that_no_layer_has(tmp_path):
    made = {"num_hidden_layers": 2, "architectures": ["Qwen3ForCausalLM"]}
    assert worst(make_hf_model(tmp_path / "whole", model_type="qwen3", **made)) is None
    assert worst(make_hf_model(tmp_path / "lost", **made)) == ("DX138", Severity.ERROR)


@pytest.mark.parametrize("experts", [7, 16])
def test_other_experts_than_the_weights_have(tmp_path, experts):
    model = make_hf_model(
        tmp_path / "moe", model_type="mixtral", num_local_experts=8, num_experts_per_tok=2, num_hidden_layers=2,
        architectures=["MixtralForCausalLM"],
    )  # fmt: skip
    assert worst(model) is None
    assert worst(edited(model, num_local_experts=experts)) == ("DX814", Severity.ERROR)


def test_biases_under_a_class_that_has_none(tmp_path):
    model = make_hf_model(tmp_path / "hf", attention_bias=True, num_hidden_layers=2)
    assert worst(model) is None
    assert worst(edited(model, attention_bias=None)) == ("DX805", Severity.ERROR)


def test_a_served_model_without_a_tokenizer(tmp_path):
    model = make_hf_model(tmp_path / "hf", num_hidden_layers=2)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (model / name).unlink()
    assert worst(model) == ("DX253", Severity.WARNING)
    assert worst(command=f"trtllm-serve {model}") == ("DX253", Severity.ERROR)


def test_an_attention_window_that_the_served_model_does_not_have(tmp_path):
    model = make_hf_model(tmp_path / "hf", num_hidden_layers=2)
    options = tmp_path / "window.yaml"
    options.write_text("kv_cache_config:\n  max_attention_window: [4096]\n")
    command = f"trtllm-serve {model} --config {options}"
    assert worst(command=command) == ("DX485", Severity.WARNING)
    assert worst(command=f"{command} --max_seq_len 4096") is None


def test_a_share_of_memory_that_is_dropped_is_no_wrong_answer(tmp_path):
    options = tmp_path / "extra.yaml"
    options.write_text("kv_cache_config:\n  dtype: fp8\n")
    question = "trtllm-serve org/name --kv_cache_free_gpu_memory_fraction {} --extra_llm_api_options {}"
    assert worst(command=question.format(0.95, options), runtime="1.1.0") == ("DX262", Severity.WARNING)
    assert worst(command=question.format(0.9, options), runtime="1.1.0") is None  # which is the default


def test_what_verifies_names_what_was_given(tmp_path):
    model = edited(make_hf_model(tmp_path / "hf", num_hidden_layers=2), num_key_value_heads=32)
    [finding] = inspect_artifacts(RealHost(), InspectQuestion(paths=(str(model),)), BOOK).findings
    assert finding.verify == f"trtdx inspect {model}"
