"""Model directories with one fault each that loaders pass over in silence, and sound ones that look alike."""

from __future__ import annotations

import codecs
import json
import os
import shutil

import pytest

from support.make_hf import (
    CHAT_TEMPLATE,
    llama_tensors,
    make_hf_model,
    model_config,
    write_json,
    write_safetensors,
)
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreement_table
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.readers import read_artifact

SMALL = {"num_hidden_layers": 4, "vocab_size": 1024}


def found(book, *paths):
    artifacts = tuple(read_artifact(RealHost(), str(path)) for path in paths)
    return judge_findings(agreement_table(), Deployment(artifacts), book)


def codes(book, *paths):
    return [finding.code for finding in found(book, *paths)]


@pytest.fixture
def model(tmp_path):
    return make_hf_model(tmp_path / "model", **SMALL)


def set_config(model, **changes):
    write_json(model / "config.json", model_config(**SMALL | changes))


def edit(path, **changes):
    write_json(path, json.loads(path.read_text("utf-8")) | changes)


# Sizes and layers


def test_layers_beyond_those_of_the_configuration_are_told_and_a_few_for_prediction_are_not(book, tmp_path):
    model = make_hf_model(tmp_path / "a", **SMALL | {"num_hidden_layers": 12})
    set_config(model, num_hidden_layers=6)
    [finding] = found(book, model)
    assert (finding.code, "12 layers, but the configuration says 6" in finding.message) == ("DX778", True)
    set_config(model, num_hidden_layers=11)
    assert codes(book, model) == ["DX778"]
    set_config(model, num_hidden_layers=11, num_nextn_predict_layers=1)
    assert codes(book, model) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 5120}, "hidden_size 5120, but q_proj of the weights has 4096"),
        ({"hidden_size": 5120, "head_dim": None}, "hidden_size 5120, but q_proj of the weights has 4096"),
        ({"intermediate_size": 11008}, "intermediate_size 11008, but gate_proj of the weights has 14336"),
    ],
)
def test_a_size_that_the_weights_contradict_is_told_once(book, model, changes, words):
    set_config(model, **changes)
    [finding] = found(book, model)
    assert finding.code == "DX814"
    assert words in finding.message


def test_a_negative_size_is_malformed_and_texts_are_shown_as_texts(book, model):
    set_config(model, hidden_size=-4096, num_attention_heads="32")
    [finding] = found(book, model)
    assert finding.code == "DX772"
    assert "hidden_size is -4096 (expected a number above 0)" in finding.message
    assert 'num_attention_heads is "32" (expected a whole number)' in finding.message


# Positions


def test_a_scaling_without_its_factor_is_told(book, model):
    set_config(model, rope_scaling={"type": "yarn"})
    assert codes(book, model) == ["DX815"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": None}, ["DX816"]),
        ({"rope_theta": 10000.0}, ["DX816"]),
        ({"rope_scaling": None, "max_position_embeddings": 8192}, []),
        ({"rope_scaling": None, "vocab_size": 32000}, []),
        ({}, []),
    ],
)
def test_llama_3_1_has_the_rotary_settings_it_was_published_with(book, tmp_path, changes, expected):
    config = {"num_hidden_layers": 1, "vocab_size": 128256} | changes
    path = tmp_path / "model"
    path.mkdir()
    write_json(path / "config.json", model_config(**config))
    write_safetensors(path / "model.safetensors", llama_tensors(model_config(**config)))
    assert [code for code in codes(book, path) if code == "DX816"] == expected


# Files


def test_nan_and_infinity_are_read_as_python_reads_them(book, model):
    text = (model / "config.json").read_text("utf-8")
    (model / "config.json").write_text(text.replace("{", '{"time_step_limit": [0.0, Infinity, NaN],', 1))
    assert codes(book, model) == []
    assert read_artifact(RealHost(), str(model)).get("num_layers") == 4


def test_halves_of_characters_and_endless_nesting_beside_nan_are_refused(book, model):
    for text in ('{"model_type": "\\ud800", "a": NaN}', '{"a": NaN, "b": ' + "[" * 100_000):
        (model / "config.json").write_text(text)
        assert codes(book, model) == ["DX133"]


@pytest.mark.parametrize(
    ("mark", "coding", "words"),
    [(codecs.BOM_UTF8, "utf-8", "byte-order mark"), (codecs.BOM_UTF16_LE, "utf-16-le", "UTF-16")],
)
def test_a_file_in_another_encoding_is_told_and_read(book, model, mark, coding, words):
    text = (model / "config.json").read_text("utf-8")
    (model / "config.json").write_bytes(mark + text.encode(coding))
    [finding] = found(book, model)
    assert (finding.code, words in finding.message) == ("DX133", True)
    assert "without a byte-order mark" in finding.fixes[0].text
    assert read_artifact(RealHost(), str(model)).get("num_layers") == 4


def test_what_json_holds_is_said_in_the_words_of_json(book, model):
    (model / "config.json").write_text("null")
    assert "config.json holds null, not an object" in [each.message for each in found(book, model)]


def test_dead_links_of_a_snapshot_are_one_finding(book, model):
    for file in model.glob("*.safetensors"):
        file.unlink()
        file.symlink_to(f"../../blobs/{file.name}")
    [finding] = found(book, model)
    assert (finding.code, "4 files of weights are links to nothing" in finding.message) == ("DX088", True)


def test_a_pipe_in_place_of_weights_is_told(book, tmp_path):
    model = make_hf_model(tmp_path / "model", shards=1, **SMALL)
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")
    [finding] = found(book, model)
    assert (finding.code, "cannot be read" in finding.message) == ("DX088", True)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_second_set_of_the_same_tensors_is_told(book, tmp_path, shards):
    model = make_hf_model(tmp_path / "model", shards=shards, **SMALL)
    size = read_artifact(RealHost(), str(model)).get("weights.parameters")
    write_safetensors(model / "merged.safetensors", llama_tensors(model_config(**SMALL)))
    [finding] = found(book, model)
    assert (finding.code, "merged.safetensors" in finding.message) == ("DX770", True)
    assert read_artifact(RealHost(), str(model)).get("weights.parameters") == size


def test_other_tensors_beside_the_model_are_no_second_set(book, model):
    write_safetensors(model / "projector.safetensors", {"linear.weight": ("BF16", (8, 8))})
    write_safetensors(model / "consolidated.safetensors", llama_tensors(model_config(**SMALL)))
    assert codes(book, model) == []


def test_a_repository_of_the_hub_cache_is_read_at_the_snapshot_that_main_names(book, model, tmp_path):
    root = tmp_path / "models--org--name"
    for name in ("blobs", "refs", "snapshots"):
        (root / name).mkdir(parents=True)
    shutil.move(model, root / "snapshots" / "abc")
    assert read_artifact(RealHost(), str(root)).path.endswith("snapshots/abc")
    (root / "snapshots" / "def").mkdir()
    assert "give snapshots/<hash>" in read_artifact(RealHost(), str(root)).unread[0]
    (root / "refs" / "main").write_text("abc")
    assert read_artifact(RealHost(), str(root)).path.endswith("snapshots/abc")


# The output layer


def tied(tmp_path, head):
    path = tmp_path / "model"
    path.mkdir()
    header = {
        name: {"dtype": "F16", "shape": [64, 64], "data_offsets": [at, at + 8192]}
        for name, at in (("model.embed_tokens.weight", 0), ("lm_head.weight", 8192))
    }
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(range(256)) * 32 + head * 32
    (path / "model.safetensors").write_bytes(data)
    write_json(path / "config.json", {"model_type": "llama", "tie_word_embeddings": True})
    return path


def test_a_tied_output_layer_with_other_numbers_is_told(book, tmp_path):
    assert "DX817" in codes(book, tied(tmp_path, bytes(reversed(range(256)))))


def test_a_tied_output_layer_that_is_stored_as_a_copy_is_no_fault(book, tmp_path):
    assert "DX817" not in codes(book, tied(tmp_path, bytes(range(256))))


# Packed weights


def packed(tmp_path, method, *, group=128, layout="awq", **files):
    """Write one layer as AutoAWQ 0.2 or AutoGPTQ 0.7 pack it: 4096 inputs, 4096 outputs, 4 bits, groups of 128."""
    words = (4096, 512) if layout == "awq" else (512, 4096)
    stem = "model.layers.0.self_attn.q_proj."
    tensors = {
        f"{stem}qweight": ("I32", words),
        f"{stem}qzeros": ("I32", (32, 512)),
        f"{stem}scales": ("F16", (32, 4096)),
    }
    path = tmp_path / "model"
    path.mkdir()
    write_safetensors(path / "model.safetensors", tensors)
    declared = {"quant_method": method, "bits": 4, "group_size": group}
    config = {"model_type": "llama", **({"quantization_config": declared} if method else {})}
    write_json(path / "config.json", config)
    for name, data in files.items():
        write_json(path / f"{name}.json", data)
    return path


@pytest.mark.parametrize(
    ("method", "layout", "group", "expected"),
    [
        ("awq", "awq", 128, []),
        ("gptq", "gptq", 128, []),
        ("gptq", "awq", 128, ["DX844"]),
        ("awq", "gptq", 128, ["DX844"]),
        ("gptq", "gptq", 64, ["DX844"]),
        ("gptq", "gptq", -1, []),
        ("", "awq", 128, ["DX838"]),
    ],
)
def test_packed_weights_are_what_is_declared(book, tmp_path, method, layout, group, expected):
    assert codes(book, packed(tmp_path, method, layout=layout, group=group)) == expected


def test_the_file_of_the_first_autogptq_declares_too(book, tmp_path):
    path = packed(tmp_path, "", layout="gptq", quantize_config={"bits": 4, "group_size": 128, "desc_act": False})
    assert codes(book, path) == []


def test_blocks_of_mxfp4_without_a_declaration_are_told(book, tmp_path):
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{stem}_blocks": ("U8", (32, 5760, 90, 16)), f"{stem}_scales": ("U8", (32, 5760, 90))}
    path = tmp_path / "model"
    path.mkdir()
    write_safetensors(path / "model.safetensors", tensors)
    write_json(path / "config.json", {"model_type": "gpt_oss"})
    assert codes(book, path) == ["DX838"]


# Tokens and templates


def test_an_end_that_is_ordinary_text_is_told(book, model):
    edit(model / "generation_config.json", eos_token_id=2)
    [finding] = [each for each in found(book, model) if each.code == "DX826"]
    assert "ends an answer at 2 (" in finding.message


def test_an_end_token_that_the_vocabulary_has_not_is_told(book, model):
    edit(model / "tokenizer_config.json", eos_token="</s>")
    [finding] = [each for each in found(book, model) if each.code == "DX825"]
    assert "eos_token </s>" in finding.message


@pytest.mark.parametrize("token", ["<image_soft_token>", "<|audio|>"])
def test_a_placeholder_beyond_the_vocabulary_is_no_fault(book, model, token):
    table = json.loads((model / "tokenizer_config.json").read_text("utf-8"))["added_tokens_decoder"]
    edit(model / "tokenizer_config.json", added_tokens_decoder=table | {"1024": {"content": token}})
    assert codes(book, model) == []
    edit(model / "tokenizer_config.json", added_tokens_decoder=table | {"1024": {"content": "<|new|>"}})
    assert codes(book, model) == ["DX820"]


def test_tokens_for_tools_only_are_not_missed(book, model):
    tools = (
        "{% for tool in message['tool_calls'] %}{{ '<|call_begin|>' }}{% endfor %}"
        "{% if message['role'] == 'tool' %}{{ '<|output_begin|>' }}{% endif %}"
    )
    edit(model / "tokenizer_config.json", chat_template=tools + CHAT_TEMPLATE)
    assert codes(book, model) == []
    edit(model / "tokenizer_config.json", chat_template="{{ '<|im_start|>' }}" + CHAT_TEMPLATE)
    assert codes(book, model) == ["DX823"]


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{% if messages %}x{% endfi %}", "line 1: Encountered unknown tag 'endfi'"),
        ("{% for m in messages %}{% endif %}", "The innermost block that needs to be closed is 'for'"),
        ("{% if messages %}x", "Unexpected end of template"),
        ("{% else %}", "Encountered unknown tag 'else'"),
        ("{% if it's unclear", "line 1: "),
    ],
)
def test_a_template_that_does_not_parse_is_told(book, model, template, fault):
    edit(model / "tokenizer_config.json", chat_template=template)
    [finding] = [each for each in found(book, model) if each.code == "DX827"]
    assert fault in finding.message


@pytest.mark.parametrize(
    "template",
    [
        "{{ {'a': {}} }}{% if '%}' == x %}{% endif %}",
        "{% raw %}{% foo %}{% endraw %}",
        "{# {% if #}{% set x %}a{% endset %}{%- generation -%}{%- endgeneration -%}",
        "{% for a in b %}{% break %}{% else %}{% endfor %}{{ '{% endfi %}' }}",
        "{% if a %}" * 2000,  # deeper than Python's stack
    ],
)
def test_a_template_that_may_parse_is_not_told(book, model, template):
    edit(model / "tokenizer_config.json", chat_template=template)
    assert "DX827" not in codes(book, model)
