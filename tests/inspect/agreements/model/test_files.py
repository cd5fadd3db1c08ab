"""Files on disk, each broken in one way: exactly the rule of that fault is found, and nothing in whole ones."""

from __future__ import annotations

import json

import pytest

from support.make_hf import (
    llama_tensors,
    make_hf_model,
    make_lora,
    model_config,
    write_json,
    write_safetensors,
)
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreement_table, agreements_in
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.agreements.model import files
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.readers import read_artifact
from trtdx.model import Severity

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"
SMALL = {"num_hidden_layers": 4, "vocab_size": 1024}


def found(book, *paths, rows=None):
    artifacts = tuple(read_artifact(RealHost(), str(path)) for path in paths)
    return judge_findings(rows or agreement_table(), Deployment(artifacts), book)


def codes(book, *paths):
    return [finding.code for finding in found(book, *paths)]


@pytest.fixture
def model(tmp_path):
    return make_hf_model(tmp_path / "model", **SMALL)


def shard(model, number):
    return model / f"model-{number:05}-of-00004.safetensors"


def test_a_whole_model_and_its_adapter_give_nothing(book, model, tmp_path):
    assert codes(book, model) == []
    assert found(book, make_lora(tmp_path / "lora", model=SMALL), rows=agreements_in(files)) == []


def pointers(model):
    shard(model, 1).write_text(POINTER)
    shard(model, 2).write_text(POINTER)


def pointer_of_the_tokenizer(model):
    (model / "tokenizer.json").write_text(POINTER)


def cut(model):
    with shard(model, 2).open("r+b") as file:
        file.truncate(1 << 20)


def huge_header(model):
    shard(model, 2).write_bytes((2**60).to_bytes(8, "little") + b"{}")


def overlapping(model):
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]} for name, at in (("a", 0), ("b", 4))}
    text = json.dumps(header).encode()
    shard(model, 2).write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))


def missing(model):
    shard(model, 3).unlink()


def misplaced(model):
    index = json.loads((model / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.0.extra.weight"] = shard(model, 1).name
    write_json(model / "model.safetensors.index.json", index)


def second_save(model):
    for number in (1, 2):
        write_safetensors(model / f"model-0000{number}-of-00002.safetensors", {"lm_head.weight": ("BF16", (8, 8))})


def wide(model):
    make_hf_model(
        model,
        **SMALL,
        tensors={n: ("F32", shape) for n, (_, shape) in llama_tensors(model_config(**SMALL)).items()},
    )


def wrongly_stated(model):
    write_json(model / "config.json", model_config(**SMALL, torch_dtype="float16"))


def broken_json(model):
    (model / "generation_config.json").write_text('{"eos_token_id": 1793,}')


def wrong_type(model):
    write_json(model / "config.json", model_config(**SMALL, max_position_embeddings="131072"))


def pruned(model):
    write_json(model / "config.json", model_config(**SMALL | {"num_hidden_layers": 6}))


def without_config(model):
    (model / "config.json").unlink()


def without_weights(model):
    for file in model.glob("model*"):
        file.unlink()


def without_tokenizer(model):
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (model / name).unlink()


def as_pickles(model):
    without_weights(model)
    (model / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(5000))


def as_gguf(model):
    without_weights(model)
    (model / "model-Q4_K_M.gguf").write_bytes(b"GGUF" + bytes(5000))


def unknown_dtype(model):
    text = json.dumps({"a": {"dtype": "F3", "shape": [2], "data_offsets": [0, 4]}}).encode()
    file = shard(model, 1)
    (model / "model.safetensors.index.json").unlink()
    for each in model.glob("*.safetensors"):
        each.unlink()
    file.with_name("model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))


@pytest.mark.parametrize(
    ("breaks", "code", "words"),
    [
        (pointers, "DX086", "model-00001-of-00004.safetensors, model-00002-of-00004.safetensors"),
        (pointer_of_the_tokenizer, "DX086", "tokenizer.json"),
        (cut, "DX087", "where its header says"),
        (huge_header, "DX087", "claims a header of 1,152,921,504,606,846,976 bytes"),
        (overlapping, "DX087", "'b' overlap with 'a'"),
        (missing, "DX088", "1 file of weights"),
        (misplaced, "DX138", "model.layers.0.extra.weight (model-00001-of-00004.safetensors)"),
        (second_save, "DX770", "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors"),
        (wide, "DX771", "says bfloat16, but the weights"),
        (wrongly_stated, "DX771", "become infinite"),
        (broken_json, "DX133", "generation_config.json is not JSON"),
        (wrong_type, "DX772", 'config.json: max_position_embeddings is "131072" (expected a whole number)'),
        (pruned, "DX775", "4 layers, but the configuration says 6"),
        (without_config, "DX776", "no config.json"),
        (without_weights, "DX088", "no weights"),
        (without_tokenizer, "DX253", "holds no tokenizer"),
        (as_pickles, "DX773", ".bin"),
        (as_gguf, "DX774", "GGUF"),
        (unknown_dtype, "DX777", "data type F3"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_each_fault_gives_exactly_its_rule(book, model, breaks, code, words):
    breaks(model)
    findings = found(book, model)
    assert [finding.code for finding in findings] == [code]
    assert words in findings[0].message
    assert findings[0].evidence[0].where.startswith(str(model))
    assert all(fix.command is None or "{" not in fix.command for fix in findings[0].fixes)


def test_files_of_two_faults_are_told_together(book, model):
    cut(model)
    shard(model, 3).write_bytes(b"<!DOCTYPE html>" * 9)
    (finding,) = found(book, model)
    assert "and 1 other file too" in finding.message


def test_missing_shards_do_not_make_layers_missing(book, model):
    shard(model, 4).unlink()
    assert codes(book, model) == ["DX088"]


def test_a_tokenizer_given_beside_the_model_is_enough(book, model, tmp_path):
    without_tokenizer(model)
    other = make_hf_model(tmp_path / "other", **SMALL)
    assert found(book, model, other, rows=agreements_in(files)) == []


def test_commands_quote_paths_with_spaces(book, tmp_path):
    model = make_hf_model(tmp_path / "my model", **SMALL)
    second_save(model)
    (finding,) = found(book, model)
    assert f"'{model}'/model-00001-of-00002.safetensors" in finding.fixes[0].command


def test_an_adapter_without_weights_is_told(book, tmp_path):
    (make_lora(tmp_path) / "adapter_model.safetensors").unlink()
    (finding,) = found(book, tmp_path, rows=agreements_in(files))
    assert finding.code == "DX697"
    assert "adapter_model.safetensors" in finding.message


def test_what_may_be_meant_so_is_a_warning_only(book, model):
    without_weights(model)
    (finding,) = found(book, model)
    assert finding.severity is Severity.WARNING
