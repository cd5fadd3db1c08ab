"""TensorRT-LLM checkpoints: the model, its mapping and quantisation, and the files of its ranks."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_engine import make_checkpoint, make_engine
from support.make_hf import make_hf_model, write_safetensors
from trtdx.host import RealHost
from trtdx.inspect.readers import probe_path
from trtdx.inspect.readers.engine.checkpoint import READER

HOST = RealHost()
RELEASES = [
    "0.8.0",
    "0.9.0",
    "0.10.0",
    "0.11.0",
    "0.12.0",
    "0.13.0",
    "0.16.0",
    "0.17.0",
    "1.0.0",
    "1.1.0",
    "1.2.1",
]


def read(path):
    assert READER.recognise(HOST, probe_path(HOST, str(path)))
    return READER.read(HOST, str(path))


@pytest.mark.parametrize("version", RELEASES)
def test_a_checkpoint_of_any_era_states_the_model(tmp_path, version):
    artifact = read(make_checkpoint(tmp_path, version))
    assert artifact.kind == "checkpoint"
    stated = {
        name: artifact.get(name) for name in ("architecture", "dtype", "num_layers", "num_kv_heads", "vocab_size")
    }
    assert stated == {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "num_layers": 32,
        "num_kv_heads": 8,
        "vocab_size": 2048,
    }
    assert artifact.get("rope_scaling")["type"] == "llama3"
    assert "rope_type" not in artifact.get("rope_scaling")
    assert (artifact.get("world_size"), artifact.get("tp_size"), artifact.get("pp_size")) == (1, 1, 1)
    assert not artifact.has("num_experts")
    assert not artifact.has("quant.algo")
    assert not artifact.has("malformed")
    assert artifact.unread == ()


def test_every_fact_says_where_it_was_read(tmp_path):
    artifact = read(make_checkpoint(tmp_path))
    assert artifact.facts["num_layers"].where == f"{tmp_path}/config.json: num_hidden_layers"
    assert artifact.facts["weights.lm_head_shape"].where.endswith("rank0.safetensors: lm_head.weight")
    assert all(fact.where for fact in artifact.facts.values())


def test_a_mapping_that_is_not_stated_is_one_rank(tmp_path):
    artifact = read(make_checkpoint(tmp_path, mapping=None))
    assert (artifact.get("world_size"), artifact.get("tp_size"), artifact.get("pp_size")) == (1, 1, 1)
    assert not artifact.has("cp_size")


def test_shapes_are_those_of_the_model_not_of_a_rank(tmp_path):
    artifact = read(make_checkpoint(tmp_path, tp_size=2, pp_size=2, use_parallel_embedding=True))
    assert artifact.get("weights.ranks") == [0, 1, 2, 3]
    assert artifact.get("weights.embedding_shape") == [2048, 4096]
    assert artifact.get("weights.lm_head_shape") == [2048, 4096]
    assert artifact.get("weights.layers") == 32


def test_ranks_of_context_parallelism_share_a_file(tmp_path):
    artifact = read(make_checkpoint(tmp_path, tp_size=2, cp_size=2))
    assert artifact.get("world_size") == 4
    assert artifact.get("weights.ranks") == [0, 1]
    assert not artifact.has("weights.missing")


def test_files_that_are_missing_or_left_over_are_named(tmp_path):
    make_checkpoint(tmp_path, tp_size=2, pp_size=2)
    (tmp_path / "rank2.safetensors").unlink()
    write_safetensors(tmp_path / "rank7.safetensors", {"transformer.ln_f.weight": ("BF16", (4096,))})
    artifact = read(tmp_path)
    assert artifact.get("weights.missing") == ["rank2.safetensors"]
    assert artifact.get("weights.unindexed") == ["rank7.safetensors"]
    assert not artifact.has("weights.layers"), "the layers of a stage that is not there are not known"


def test_what_the_weights_hold_is_known_from_headers(tmp_path):
    tensors = {"lm_head.weight": None, "transformer.layers.0.attention.qkv.bias": ("BF16", (6144,))}
    tensors["transformer.layers.0.attention.q_layernorm.weight"] = ("BF16", (128,))
    artifact = read(make_checkpoint(tmp_path, tensors=tensors))
    assert artifact.get("weights.has_lm_head") is False
    assert artifact.get("weights.qkv_bias") is True
    assert artifact.get("weights.qk_norm") is True
    assert artifact.get("weights.kv_scales") is False


def test_a_quantised_model_says_how(tmp_path):
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    artifact = read(make_checkpoint(tmp_path, quantization=quantization))
    assert (artifact.get("quant.algo"), artifact.get("quant.kv_algo")) == ("FP8", "FP8")
    assert artifact.get("quant.excluded") == ["lm_head"]
    assert not artifact.has("quant.group_size"), "FP8 has no groups, although a size stands there"
    assert artifact.get("weights.kv_scales") is True
    assert artifact.get("weights.scales") is True
    assert artifact.get("weights.dtypes")["float8_e4m3fn"] == 32 * 5


def test_groups_are_told_for_what_has_groups(tmp_path):
    artifact = read(make_checkpoint(tmp_path, quantization={"quant_algo": "W4A16_AWQ", "group_size": 64}))
    assert artifact.get("quant.group_size") == 64


def test_mixed_precision_is_told_layer_by_layer(tmp_path):
    layers = {
        "transformer.layers.0.mlp.fc": {"quant_algo": "FP8"},
        "transformer.layers.1.mlp.fc": {"quant_algo": "NVFP4"},
    }
    artifact = read(make_checkpoint(tmp_path, quantization={"quant_algo": "MIXED_PRECISION"}, layers=layers))
    assert artifact.get("quant.per_layer") == {name: each["quant_algo"] for name, each in layers.items()}


def test_quant_cfg_that_contradicts_config_is_kept_beside_it(tmp_path):
    make_checkpoint(tmp_path, quantization={"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8"})
    (tmp_path / "quant_cfg.json").write_text(json.dumps({"kv_cache_quant_algo": "INT8", "quantized_layers": {}}))
    artifact = read(tmp_path)
    assert (artifact.get("quant.kv_algo"), artifact.get("quant.inline_kv_algo")) == ("FP8", "INT8")


@pytest.mark.parametrize("version", ["0.9.0", "1.2.1"])
def test_experts_are_read_from_both_spellings(tmp_path, version):
    moe = {"moe_num_experts": 8, "moe_top_k": 2} if version == "0.9.0" else {"moe": {"num_experts": 8, "top_k": 2}}
    artifact = read(make_checkpoint(tmp_path, version, **moe))
    assert (artifact.get("num_experts"), artifact.get("experts_per_token")) == (8, 2)


def test_values_of_the_wrong_type_are_told_and_the_rest_is_read(tmp_path):
    artifact = read(make_checkpoint(tmp_path, vocab_size=2048, norm_epsilon="tiny", hidden_act=7))
    assert len(artifact.get("malformed")) == 2
    assert artifact.get("vocab_size") == 2048


def test_broken_files_are_facts(tmp_path):
    make_checkpoint(tmp_path, tp_size=2)
    os.truncate(tmp_path / "rank0.safetensors", 1 << 20)
    (tmp_path / "rank1.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "quant_cfg.json").write_text("{")
    artifact = read(tmp_path)
    assert artifact.get("weights.truncated")[0].startswith("rank0.safetensors: ")
    assert artifact.get("weights.lfs_pointers") == ["rank1.safetensors"]
    assert artifact.get("unparsed")[0].startswith("quant_cfg.json: ")


def test_a_broken_config_leaves_the_weights(tmp_path):
    make_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{'architecture'")
    artifact = read(tmp_path)
    assert artifact.get("unparsed")[0].startswith("config.json: is not JSON")
    assert artifact.get("weights.layers") == 32


def test_a_world_of_a_billion_ranks_is_not_listed(tmp_path):
    config = json.loads((make_checkpoint(tmp_path) / "config.json").read_text())
    config["mapping"]["world_size"] = 10**9
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not read(tmp_path).has("weights.missing")


def test_other_directories_are_left_to_other_readers(tmp_path):
    (tmp_path / "convert_0.7").mkdir()
    (tmp_path / "convert_0.7" / "config.json").write_text(json.dumps({"hidden_size": 4096, "n_layer": 32}))
    for path in (
        make_hf_model(tmp_path / "hf"),
        make_engine(tmp_path / "engine"),
        tmp_path / "convert_0.7",
        tmp_path,
        tmp_path / "hf" / "config.json",
    ):
        assert not READER.recognise(HOST, probe_path(HOST, str(path)))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3)
)
KEYS = st.sampled_from(
    ["architecture", "dtype", "mapping", "quantization", "moe", "rotary_scaling", "vocab_size", "num_hidden_layers",
     "use_parallel_embedding", "embedding_sharding_dim", "version"]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, VALUES), st.binary(max_size=64))
def test_no_content_makes_it_raise(tmp_path_factory, config, weights):
    folder = tmp_path_factory.mktemp("any")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "rank0.safetensors").write_bytes(weights)
    (folder / "quant_cfg.json").write_text(json.dumps(config))
    READER.recognise(HOST, probe_path(HOST, str(folder)))
    assert READER.read(HOST, str(folder)).kind == "checkpoint"
