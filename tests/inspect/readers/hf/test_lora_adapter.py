"""LoRA adapters: what their configuration says and what their tensors show."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_hf import make_hf_model, make_lora, make_tokenizer
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.readers import read_artifact
from trtdx.inspect.readers.hf.lora_adapter import read_lora_adapter

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 167832240\n"


def facts_of(folder):
    return {name: fact.value for name, fact in read_lora_adapter(RealHost(), str(folder)).facts.items()}


def test_an_adapter_of_peft_states_its_facts(tmp_path):
    artifact = read_artifact(RealHost(), str(make_lora(tmp_path)))
    assert artifact.kind == "lora"
    assert artifact.unread == ()
    facts = {name: fact.value for name, fact in artifact.facts.items()}
    expected = {
        "lora.rank": 16,
        "lora.alpha": 32.0,
        "lora.modules": ["k_proj", "o_proj", "q_proj", "v_proj"],
        "lora.base_model": "meta-llama/Llama-3.1-8B-Instruct",
        "lora.dtype": "bfloat16",
        "lora.dora": False,
        "lora.rslora": False,
        "lora.bias": "none",
        "lora.hidden_size": 4096,
        "weights.format": "safetensors",
        "weights.files": 1,
    }
    assert {name: facts.get(name) for name in expected} == expected
    assert "lora.vocab_size" not in facts
    assert "lora.modules_to_save" not in facts


def test_the_highest_rank_counts(tmp_path):
    assert facts_of(make_lora(tmp_path, rank_pattern={"q_proj": 64, "v_proj": 8}))["lora.rank"] == 64


def test_modules_named_by_a_pattern_are_read_from_the_tensors(tmp_path):
    make_lora(tmp_path, target_modules=["q_proj", "down_proj"])
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"target_modules": "all-linear"}))
    assert facts_of(tmp_path)["lora.modules"] == ["down_proj", "q_proj"]


@pytest.mark.parametrize(
    ("tensors", "rows"),
    [
        ({"base_model.model.lm_head.lora_B.weight": ("BF16", (128257, 16))}, 128257),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": ("BF16", (16, 128260))}, 128260),
        ({"base_model.model.lm_head.weight": ("BF16", (128264, 4096))}, 128264),
        ({"base_model.model.lm_head.modules_to_save.weight": ("BF16", (32001, 4096))}, 32001),
    ],
)
def test_an_adapted_vocabulary_shows_its_rows(tmp_path, tensors, rows):
    assert facts_of(make_lora(tmp_path, tensors=tensors))["lora.vocab_size"] == rows


def test_dora_and_other_types_are_seen(tmp_path):
    facts = facts_of(make_lora(tmp_path, dtype="F32", use_dora=True, modules_to_save=["lm_head"]))
    assert (facts["lora.dtype"], facts["lora.dora"]) == ("float32", True)
    assert facts["lora.modules_to_save"] == ["lm_head"]


def test_a_local_base_model_is_looked_at_too(tmp_path):
    base = make_hf_model(tmp_path / "base")
    adapter = read_lora_adapter(RealHost(), str(make_lora(tmp_path / "lora", base_model_name_or_path=str(base))))
    assert adapter.refers_to == (str(base),)


def test_tokens_added_with_an_adapter_are_read(tmp_path):
    make_lora(tmp_path)
    make_tokenizer(tmp_path)
    assert facts_of(tmp_path)["tokenizer.size"] == 2048


def test_a_merged_model_beside_its_adapter_is_a_model(tmp_path):
    make_lora(tmp_path)
    make_hf_model(tmp_path)
    assert read_artifact(RealHost(), str(tmp_path)).kind == "hf"


@pytest.mark.parametrize(
    ("name", "data", "fact"),
    [
        ("adapter_model.safetensors", POINTER, "weights.lfs_pointers"),
        ("adapter_model.safetensors", b"", "weights.truncated"),
        ("adapter_model.safetensors", b"\xff" * 100, "weights.corrupt"),
        ("adapter_config.json", b"{", "unparsed"),
        ("adapter_config.json", b'{"r": "16"}', "malformed"),
    ],
)
def test_what_is_wrong_becomes_a_fact(tmp_path, name, data, fact):
    (make_lora(tmp_path) / name).write_bytes(data)
    assert len(facts_of(tmp_path)[fact]) == 1


def test_missing_halves_are_named(tmp_path):
    (make_lora(tmp_path) / "adapter_model.safetensors").unlink()
    assert facts_of(tmp_path)["absent"] == ["adapter_model.safetensors"]
    (tmp_path / "adapter_model.bin").write_bytes(b"PK" * 600)
    (tmp_path / "adapter_config.json").unlink()
    facts = facts_of(tmp_path)
    assert facts["absent"] == ["adapter_config.json"]
    assert facts["weights.format"] == "bin"


KEYS = st.sampled_from(["r", "lora_alpha", "rank_pattern", "target_modules", "base_model_name_or_path", "use_dora"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=4),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=100),
    st.sampled_from(["adapter_model.safetensors", "adapter_model.bin"]),
)
def test_any_bytes_are_read_without_an_exception(config, weights, name):
    artifact = read_lora_adapter(RecordedHost({"l/adapter_config.json": config, f"l/{name}": weights}), "l")
    assert artifact.kind == "lora"
