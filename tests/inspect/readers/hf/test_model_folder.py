"""Hugging Face model directories: real ones of many families, every spelling of the same thing, and bad ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.make_hf import (
    make_hf_model,
    make_real_models,
    make_tokenizer,
    model_config,
    write_json,
    write_safetensors,
)
from trtdx.errors import InputError
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.agreements import agreement_table
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.readers import read_artifact
from trtdx.inspect.readers.hf.model_config import TIED_BY_DEFAULT, UNTIED_BY_DEFAULT
from trtdx.inspect.readers.hf.model_folder import read_model_folder

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"


def facts_of(folder, host=None):
    return {name: fact.value for name, fact in read_model_folder(host or RealHost(), str(folder)).facts.items()}


def config_facts(config, **files):
    """Return the facts of a directory with this config.json (and other JSON files by their stem)."""
    recorded = {f"m/{stem}.json": json.dumps(data).encode() for stem, data in files.items()}
    host = RecordedHost(recorded | {"m/config.json": json.dumps(config).encode()})
    return facts_of("m", host)


@pytest.fixture(scope="session")
def real_models(tmp_path_factory):
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_real_models(tmp_path_factory.mktemp("models"))


TINY = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 320, "dtype": "bfloat16",
    "weights.layers": 2, "weights.embedding_shape": [320, 32], "weights.format": "safetensors",
}  # fmt: skip
HEAD = {"tie_embeddings": False, "weights.has_lm_head": True, "weights.lm_head_shape": [320, 32]}
TIED = {"tie_embeddings": True, "weights.has_lm_head": False}
FAMILIES = {
    "llama": HEAD | {
        "architecture": "LlamaForCausalLM", "num_kv_heads": 2, "head_size": 8, "intermediate_size": 64,
        "rotary_base": 10000.0, "hidden_act": "silu", "position_embedding": "rope_gpt_neox", "weights.kv_rows": 16,
        "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    },
    "qwen2": TIED | {"num_kv_heads": 2, "weights.qkv_bias": True, "rope_scaling": None, "sliding_window": None},
    "qwen3": HEAD | {"head_size": 16, "qk_norm": True, "weights.qk_norm": True, "weights.q_rows": 64},
    "qwen3_moe": {"num_experts": 4, "experts_per_token": 2, "moe_intermediate_size": 16, "weights.experts": 4},
    "mistral": HEAD | {"sliding_window": 16, "head_size": 8},
    "mixtral": HEAD | {"num_experts": 4, "experts_per_token": 2, "weights.experts": 4},
    "gemma": TIED | {"head_size": 16, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": TIED | {"head_size": 16, "hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096},
    "gemma3_text": TIED | {"rotary_base": 1000000.0, "qk_norm": True, "rope_scaling": None},
    "gpt2": TIED | {"num_kv_heads": 4, "head_size": 8, "intermediate_size": 128, "position_embedding": "learned_absolute", "max_positions": 1024, "norm_epsilon": 1e-5, "weights.qkv_bias": True},
    "gpt_neox": HEAD | {"rotary_dim": 2, "num_kv_heads": 4, "weights.qkv_bias": True},
    "falcon": TIED | {"num_kv_heads": 1, "intermediate_size": 128},
    "phi3": HEAD | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32}, "max_positions": 64},
    "deepseek_v3": HEAD | {"q_lora_rank": 16, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 12, "head_size": None, "num_experts": 4, "weights.experts": 4},
    "gpt_oss": HEAD | {"num_experts": 4, "sliding_window": 128, "attention_bias": True, "weights.experts": 4},
    "nemotron": HEAD | {"hidden_act": "relu2", "rotary_dim": 4},
    "t5": {"encoder_decoder": True, "num_layers": 3, "weights.layers": 3, "head_size": 8, "intermediate_size": 64, "max_positions": None},
    "whisper": {"encoder_decoder": True, "num_layers": 3, "weights.layers": 3, "max_positions": 448, "intermediate_size": 64},
    "gemma3": TIED | {"architecture": "Gemma3ForConditionalGeneration", "multimodal": True, "head_size": 16, "rotary_base": 1000000.0},
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("family", FAMILIES)
def test_a_real_model_of_this_family_states_the_shared_facts(real_models, family):
    facts = facts_of(real_models[family])
    expected = TINY | FAMILIES[family]
    assert {name: facts.get(name) for name in expected} == expected
    assert set(facts["weights.dtypes"]) == {"bfloat16"}
    faults = {
        "unparsed",
        "malformed",
        "absent",
        "weights.missing",
        "weights.corrupt",
        "weights.truncated",
        "weights.missing_tensors",
        "weights.unindexed",
    }
    assert not faults & set(facts)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_real_model_disagrees_with_itself_in_nothing(real_models, family, book):
    artifact = read_artifact(RealHost(), str(real_models[family]))
    findings = judge_findings(agreement_table(), Deployment((artifact,)), book)
    assert [finding.message for finding in findings if finding.code != "DX253"] == []  # they have no tokenizer


def test_real_weights_are_counted_as_torch_counts_them(real_models):
    from safetensors import safe_open

    total = 0
    for file in real_models["mixtral"].glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            total += sum(tensors.get_tensor(name).numel() for name in tensors.keys())  # noqa: SIM118
    assert facts_of(real_models["mixtral"])["weights.parameters"] == total


@pytest.mark.parametrize("model_type", sorted(TIED_BY_DEFAULT | UNTIED_BY_DEFAULT))
def test_what_a_missing_tie_means_is_what_transformers_takes_it_for(model_type):
    mapping = pytest.importorskip("transformers").CONFIG_MAPPING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = mapping[model_type]()
    assert default.get_text_config().tie_word_embeddings is (model_type in TIED_BY_DEFAULT)


def test_a_whole_model_agrees_with_itself(tmp_path):
    artifact = read_artifact(RealHost(), str(make_hf_model(tmp_path)))
    facts = {name: fact.value for name, fact in artifact.facts.items()}
    assert artifact.kind == "hf"
    assert artifact.unread == ()
    assert facts["vocab_size"] == facts["tokenizer.size"] == facts["weights.embedding_shape"][0] == 2048
    assert facts["num_layers"] == facts["weights.layers"] == 32
    assert facts["weights.kv_rows"] == facts["num_kv_heads"] * facts["head_size"] == 1024
    assert facts["weights.dtypes"] == {"bfloat16": 291}
    assert facts["weights.files"] == 4
    assert facts["generation.eos_ids"] == facts["generation.config_eos_ids"] == [1793, 1800, 1801]
    assert facts["generation.temperature"] == 0.6
    assert artifact.facts["num_layers"].where == f"{tmp_path}/config.json: num_hidden_layers"
    embedding = artifact.facts["weights.embedding_shape"]
    assert embedding.where == f"{tmp_path}/model-00001-of-00004.safetensors: model.embed_tokens.weight"
    assert artifact.facts["weights.kv_rows"].where.endswith(": model.layers.0.self_attn.k_proj.weight")


def test_both_spellings_of_transformers_4_and_5_are_one():
    older = model_config()
    newer = {key: value for key, value in older.items() if key not in ("torch_dtype", "rope_theta", "rope_scaling")}
    newer |= {"dtype": "bfloat16", "rope_parameters": {**older["rope_scaling"], "rope_theta": 500000.0}}
    assert config_facts(newer) == config_facts(older)


@pytest.mark.parametrize(
    ("stated", "scaling"),
    [
        (None, None),
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 1.0}, None),
        ({"type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        ({"type": "dynamic", "rope_type": "dynamic", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}),
        ({"type": "su", "long_factor": [1], "short_factor": [1]}, {"type": "longrope", "long_factor": [1], "short_factor": [1], "original_max_position_embeddings": 4096}),
        ({"type": "default", "rope_type": "default", "mrope_section": [1, 2]}, {"type": "mrope", "mrope_section": [1, 2]}),
        ({"type": "yarn", "factor": 40, "mscale": 1.0}, {"type": "yarn", "factor": 40, "mscale": 1.0}),
    ],
)  # fmt: skip
def test_rotary_scalings_have_one_form(stated, scaling):
    config = {"model_type": "phi3", "original_max_position_embeddings": 4096, "rope_scaling": stated}
    assert config_facts(config).get("rope_scaling") == scaling


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({"torch_dtype": "torch.float16"}, {"dtype": "float16"}),
        ({"torch_dtype": "auto"}, {"dtype": None}),
        ({"torch_dtype": "float32", "text_config": {"torch_dtype": "bfloat16"}}, {"dtype": "float32"}),
        ({"model_type": "qwen2", "sliding_window": 32768, "use_sliding_window": False}, {"sliding_window": None}),
        ({"model_type": "qwen2", "sliding_window": 32768}, {"sliding_window": None}),
        ({"model_type": "mistral", "sliding_window": 4096}, {"sliding_window": 4096}),
        ({"model_type": "mistral", "sliding_window": None}, {"sliding_window": None}),
        ({"model_type": "llama", "num_attention_heads": 32, "hidden_size": 4096}, {"num_kv_heads": 32, "head_size": 128}),
        ({"model_type": "mistral", "num_attention_heads": 32, "hidden_size": 4096}, {"num_kv_heads": None, "head_size": 128}),
        ({"model_type": "gemma", "num_attention_heads": 16, "hidden_size": 3072}, {"head_size": None}),
        ({"model_type": "falcon", "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True}, {"num_kv_heads": 1, "head_size": 64}),
        ({"model_type": "falcon", "n_head": 128, "n_head_kv": 8, "hidden_size": 8192, "new_decoder_architecture": True, "multi_query": True}, {"num_kv_heads": 8}),
        ({"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None}, {"hidden_act": None, "tie_embeddings": True}),
        ({"model_type": "llama"}, {"tie_embeddings": False}),
        ({"model_type": "something_new"}, {"tie_embeddings": None}),
        ({"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}}, {"tie_embeddings": None}),
        ({"text_config": {"hidden_size": 64}, "vision_config": {}, "vocab_size": 9}, {"hidden_size": 64, "vocab_size": 9, "multimodal": True}),
        ({"model_type": "gemma3n", "intermediate_size": [16384, 16384]}, {"intermediate_size": None, "malformed": None}),
        ({"num_experts": 0, "num_hidden_layers": 2.0}, {"num_experts": None, "num_layers": 2}),
        ({"model_type": "chatglm", "multi_query_group_num": 2, "kv_channels": 128, "padded_vocab_size": 65024, "seq_length": 32768, "layernorm_epsilon": 1e-5},
         {"num_kv_heads": 2, "head_size": 128, "vocab_size": 65024, "max_positions": 32768, "norm_epsilon": 1e-5}),
    ],
)  # fmt: skip
def test_keys_of_every_family_become_shared_facts(config, facts):
    found = config_facts(config)
    assert {name: found.get(name) for name in facts} == facts


def test_a_value_of_the_wrong_type_is_told_and_the_rest_is_read():
    facts = config_facts(model_config(num_hidden_layers="32", hidden_size=True))
    assert len(facts["malformed"]) == 2
    assert 'm/config.json: num_hidden_layers = "32": expected a whole number' in facts["malformed"]
    assert facts["num_heads"] == 32
    assert "num_layers" not in facts


FP8_GROUP = {
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token"},
}
INT4_GROUP = {
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
    "input_activations": None,
}
QUANTISED = {
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {"algo": "FP8_BLOCK_SCALES", "block_size": [128, 128], "group_size": 128}),
    "fp8 by tensor": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, {"algo": "FP8", "block_size": None}),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, {"algo": "W4A16_MXFP4", "group_size": 32, "excluded": ["lm_head"]}),
    "nvfp4": ({"quant_method": "nvfp4"}, {"algo": "NVFP4", "group_size": 16}),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, {"algo": "W4A16_AWQ", "bits": 4, "has_zero_point": True}),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, {"algo": "W4A16_GPTQ", "desc_act": True}),
    "gptq of 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, {"algo": "W8A16_GPTQ", "group_size": None}),
    "bitsandbytes": ({"load_in_4bit": True, "load_in_8bit": False}, {"method": "bitsandbytes", "bits": 4, "algo": None}),
    "compressed-tensors": ({"quant_method": "compressed-tensors", "config_groups": {"group_0": FP8_GROUP}, "ignore": ["lm_head"]}, {"algo": "FP8_PER_CHANNEL_PER_TOKEN", "bits": 8, "excluded": ["lm_head"]}),
    "compressed-tensors, int4": ({"quant_method": "compressed-tensors", "config_groups": {"group_0": INT4_GROUP}}, {"algo": None, "bits": 4, "group_size": 128}),
    "compressed-tensors, mixed": ({"quant_method": "compressed-tensors", "config_groups": {"a": FP8_GROUP, "b": INT4_GROUP}}, {"algo": "MIXED_PRECISION"}),
    "modelopt inline": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"type": "float", "num_bits": 8}}, {"algo": "NVFP4", "kv_algo": "FP8", "method": "modelopt"}),
    "a cache scheme nobody reads": ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"type": "int", "num_bits": 4}}, {"kv_algo": None, "kv_scheme_unrecognised": '{"type":"int","num_bits":4}'}),
    "a cache scheme by name": ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "NVFP4"}, {"kv_algo": "NVFP4"}),
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTISED)
def test_quantisation_in_config_json(name):
    table, expected = QUANTISED[name]
    facts = config_facts({"model_type": "llama", "quantization_config": table})
    assert {key: facts.get(f"quant.{key}") for key in expected} == expected
    assert facts["quant.source"] == "config.json"
    assert "malformed" not in facts


LEGACY = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
}


def test_the_file_of_modelopt_rules_and_the_other_word_is_kept():
    inline = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": "NVFP4"}}
    facts = config_facts(inline, hf_quant_config=LEGACY)
    assert (facts["quant.algo"], facts["quant.kv_algo"], facts["quant.source"]) == (
        "FP8",
        "FP8",
        "hf_quant_config.json",
    )
    assert (facts["quant.inline_algo"], facts["quant.inline_kv_algo"]) == ("NVFP4", "NVFP4")
    assert facts["quant.excluded"] == ["lm_head"]


def test_a_flat_file_of_modelopt_reads_as_the_nested_one():
    flat = {
        "quant_method": "modelopt",
        "quant_algo": "fp8_pb_wo",
        "ignore": ["a"],
        "kv_cache_scheme": {"type": "float", "num_bits": 8},
    }
    facts = config_facts({}, hf_quant_config=flat)
    assert (facts["quant.algo"], facts["quant.kv_algo"], facts["quant.excluded"]) == (
        "FP8_BLOCK_SCALES",
        "FP8",
        ["a"],
    )


def test_a_file_without_an_algorithm_leaves_it_to_config_json():
    file = {"quantization": {"kv_cache_quant_algo": "FP8"}}
    facts = config_facts({"quantization_config": {"quant_method": "nvfp4"}}, hf_quant_config=file)
    assert (facts["quant.algo"], facts["quant.source"], facts["quant.inline_kv_algo"]) == (
        "NVFP4",
        "config.json",
        "FP8",
    )


def test_layers_of_a_mixed_precision_come_from_quant_cfg_json():
    file = {"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8"}}
    layers = {
        "quantized_layers": {"model.layers.0.mlp": {"quant_algo": "FP8"}},
        "kv_cache_quant_algo": "INT8",
    }
    facts = config_facts({}, hf_quant_config=file, quant_cfg=layers)
    assert facts["quant.per_layer"] == {"model.layers.0.mlp": "FP8"}
    assert facts["quant.inline_kv_algo"] == "INT8"


def test_dtypes_json_speaks_when_nothing_else_does():
    dtypes = {
        "block.0.mlp.mlp1_weight.blocks": "FP4",
        "block.0.mlp.mlp1_weight.weight.blocks": "FP4",
        "embedding.weight": "BF16",
    }
    facts = config_facts({}, dtypes=dtypes)
    assert (facts["quant.algo"], facts["quant.excluded"]) == ("W4A16_MXFP4", ["embedding"])
    assert "quant.algo" not in config_facts({}, dtypes={"a.weight": "BF16"})


def shard(folder, number):
    return folder / f"model-{number:05}-of-00004.safetensors"


def test_a_missing_shard_is_named(tmp_path):
    shard(make_hf_model(tmp_path), 3).unlink()
    facts = facts_of(tmp_path)
    assert facts["weights.missing"] == ["model-00003-of-00004.safetensors"]
    assert facts["weights.files"] == 3


def test_a_link_to_nothing_is_a_missing_shard(tmp_path):
    shard(make_hf_model(tmp_path), 3).unlink()
    shard(tmp_path, 3).symlink_to("../../blobs/gone")
    assert facts_of(tmp_path)["weights.missing"] == ["model-00003-of-00004.safetensors"]


def test_without_an_index_the_names_tell_what_is_missing(tmp_path):
    (make_hf_model(tmp_path) / "model.safetensors.index.json").unlink()
    assert "weights.missing" not in facts_of(tmp_path)
    shard(tmp_path, 2).unlink()
    assert facts_of(tmp_path)["weights.missing"] == ["model-00002-of-00004.safetensors"]


def test_pointers_and_cut_shards_are_told_apart(tmp_path):
    make_hf_model(tmp_path)
    shard(tmp_path, 1).write_bytes(POINTER)
    with shard(tmp_path, 2).open("r+b") as file:
        file.truncate(1_000_000)
    shard(tmp_path, 4).write_bytes(b"<html>not found</html>" * 20)
    facts = facts_of(tmp_path)
    assert facts["weights.lfs_pointers"] == ["model-00001-of-00004.safetensors"]
    assert facts["weights.truncated"][0].startswith("model-00002-of-00004.safetensors: has ")
    assert facts["weights.corrupt"] == [
        "model-00004-of-00004.safetensors: is not a safetensors file but a web page (the answer of a failed download)"
    ]
    assert "weights.has_lm_head" not in facts or facts["weights.has_lm_head"]  # absence is not known


def test_tensors_the_index_misplaces_are_named(tmp_path):
    make_hf_model(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.99.mlp.up_proj.weight"] = "model-00001-of-00004.safetensors"
    write_json(tmp_path / "model.safetensors.index.json", index)
    expected = ["model.layers.99.mlp.up_proj.weight (model-00001-of-00004.safetensors)"]
    assert facts_of(tmp_path)["weights.missing_tensors"] == expected


def test_an_index_that_points_outside_is_not_followed(tmp_path):
    write_json(
        tmp_path / "model.safetensors.index.json",
        {"weight_map": {"a": "../../../etc/passwd", "b": "/etc/passwd"}},
    )
    write_json(tmp_path / "config.json", model_config())
    assert facts_of(tmp_path)["weights.missing"] == ["../../../etc/passwd", "/etc/passwd"]


@pytest.mark.parametrize(
    ("name", "stray"),
    [
        ("model-00001-of-00002.safetensors", True),
        ("model.safetensors", True),
        ("consolidated.safetensors", False),  # Mistral's own format, which the loader leaves out
        ("adapter_model.safetensors", False),
        ("mtp.safetensors", False),
    ],
)
def test_shards_of_another_save_are_told_from_other_files(tmp_path, name, stray):
    write_safetensors(make_hf_model(tmp_path) / name, {"a": ("BF16", (2,))})
    assert facts_of(tmp_path).get("weights.unindexed") == ([name] if stray else None)


def test_without_an_index_the_incomplete_set_is_the_stray_one(tmp_path):
    (make_hf_model(tmp_path) / "model.safetensors.index.json").unlink()
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": ("BF16", (2,))})
    facts = facts_of(tmp_path)
    assert facts["weights.unindexed"] == ["model-00001-of-00002.safetensors"]
    assert "weights.missing" not in facts


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"pytorch_model.bin": b"PK" * 999, "training_args.bin": b"x"},
            {"weights.format": "bin", "weights.files": 1},
        ),
        ({"pytorch_model.bin": POINTER}, {"weights.lfs_pointers": ["pytorch_model.bin"]}),
        (
            {"consolidated.00.pth": b""},
            {"weights.format": "pth", "weights.truncated": ["consolidated.00.pth: is empty"]},
        ),
        ({"model.Q4_K_M.gguf": b"GGUF" * 999}, {"weights.format": "gguf", "weights.files": 1}),
        ({}, {"weights.format": None, "weights.files": 0}),
    ],
)
def test_other_formats_are_noted_and_never_opened_as_pickles(tmp_path, files, expected):
    write_json(tmp_path / "config.json", model_config())
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    facts = facts_of(tmp_path)
    assert {name: facts.get(name) for name in expected} == expected


def test_quantised_weights_show_their_scales(tmp_path):
    extra = {
        "model.layers.0.mlp.up_proj.weight_scale": ("F32", (1,)),
        "model.layers.0.self_attn.k_proj.k_scale": ("F32", (1,)),
        "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (14336, 4096)),
    }
    facts = facts_of(make_hf_model(tmp_path, tensors=extra))
    assert facts["weights.scales"]
    assert facts["weights.kv_scales"]
    assert facts["weights.dtypes"]["float8_e4m3fn"] == 1


def test_a_directory_without_config_says_so(tmp_path):
    (make_hf_model(tmp_path) / "config.json").unlink()
    artifact = read_artifact(RealHost(), str(tmp_path))
    assert artifact.kind == "hf"
    assert artifact.get("absent") == ["config.json"]


def test_one_file_of_weights_is_read_alone(tmp_path):
    make_hf_model(tmp_path, shards=1)
    artifact = read_artifact(RealHost(), str(tmp_path / "model.safetensors"))
    assert artifact.get("weights.layers") == 32
    assert not artifact.has("absent")


def test_folders_of_something_else_are_not_taken_for_models(tmp_path):
    write_json(tmp_path / "config.json", {"editor.tabSize": 4})
    with pytest.raises(InputError, match="a Hugging Face model directory"):
        read_artifact(RealHost(), str(tmp_path))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (POINTER, "Git-LFS pointer"),
        (b"[1]", "not an object"),
        (b'{"a":' * 30_000, "config.json: "),
        (b"\x80\x81\x82", "not JSON"),
    ],
)
def test_a_broken_config_is_told_and_the_rest_is_read(tmp_path, data, words):
    (make_hf_model(tmp_path) / "config.json").write_bytes(data)
    facts = facts_of(tmp_path)
    assert words in facts["unparsed"][0]
    assert facts["weights.layers"] == 32
    assert facts["tokenizer.size"] == 2048


def test_a_config_in_utf_16_or_with_a_mark_is_read(tmp_path):
    config = json.dumps(model_config())
    for data in (config.encode("utf-16"), b"\xef\xbb\xbf" + config.encode()):
        (make_hf_model(tmp_path) / "config.json").write_bytes(data)
        assert facts_of(tmp_path)["num_layers"] == 32


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("config.json", b'{"a":[' + b"[]," * 4_000_000 + b"[]]}"),
        ("tokenizer.json", b'{"model":{"vocab":{' + b'"a":1,' * 4_000_000 + b'"b":2}}}'),
        ("model.safetensors.index.json", b'{"weight_map":{' + b'"a":"b",' * 3_000_000 + b'"b":"c"}}'),
        ("config.json", b" " * (20 << 20)),
    ],
)
def test_a_file_that_would_fill_the_memory_is_told(name, data):
    (problem,) = facts_of("m", RecordedHost({f"m/{name}": data}))["unparsed"]
    assert "than any such file" in problem or "which no such file is" in problem


class ClosedHost(RealHost):
    """Some files may not be read, or are gone when they are opened."""

    def __init__(self, *names):
        self._names = names

    def open(self, path):
        if path.endswith(self._names):
            raise InputError(f"cannot read {path}: Permission denied")
        return super().open(path)


def test_files_that_may_not_be_read_are_noted_and_the_rest_is_read(tmp_path):
    host = ClosedHost("config.json", "00002-of-00004.safetensors", "tokenizer.json")
    artifact = read_model_folder(host, str(make_hf_model(tmp_path)))
    assert [note.split(" ")[0] for note in artifact.unread] == [
        "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "model-00002-of-00004.safetensors:",
    ]  # fmt: skip
    assert "Permission denied" in artifact.unread[0]
    assert artifact.get("weights.embedding_shape") == [2048, 4096]
    assert not artifact.has("unparsed")


class UnlistableHost(RealHost):
    def entries(self, path):
        raise InputError(f"cannot list {path}: Permission denied")


def test_a_directory_that_may_not_be_listed_is_noted(tmp_path):
    artifact = read_model_folder(UnlistableHost(), str(make_hf_model(tmp_path)))
    assert artifact.unread == ("the directory could not be listed (Permission denied)",)


def test_pipes_in_place_of_files_are_not_waited_for(tmp_path):
    make_hf_model(tmp_path)
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json", "chat_template.jinja"):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
    assert len(read_model_folder(RealHost(), str(tmp_path)).unread) == 4


@pytest.mark.heavy
def test_a_hundred_thousand_files_are_no_obstacle(tmp_path):
    make_hf_model(tmp_path)
    for number in range(100_000):
        os.close(os.open(f"{tmp_path}/checkpoint-{number}.txt", os.O_CREAT))
    assert read_artifact(RealHost(), str(tmp_path)).get("weights.layers") == 32
    shutil.rmtree(tmp_path)


def test_thousands_of_shards_are_not_all_opened():
    host = RecordedHost(
        {f"m/x{number}.safetensors": b"" for number in range(2_300)} | {"m/config.json": b'{"model_type": "llama"}'}
    )
    artifact = read_model_folder(host, "m")
    assert "300 of 2,300 files of weights were not looked at" in artifact.unread
    assert len(artifact.items("weights.truncated")) == 101


MEASURE = """
import sys
from pathlib import Path
from trtdx.host import RealHost
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.readers import read_artifact
artifact = read_artifact(RealHost(), sys.argv[1])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(artifact.get("weights.bytes"), sum(artifact.get("weights.dtypes").values()), peak.split()[1])
"""


@pytest.mark.heavy
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak memory is read from /proc")
def test_four_hundred_gigabytes_are_read_within_200_mb(tmp_path):
    """A mixture of experts with 45,000 tensors in 160 sparse shards and a vocabulary of 128,256."""
    sizes = {
        "num_local_experts": 256,
        "hidden_size": 4096,
        "intermediate_size": 1088,
        "num_hidden_layers": 58,
    }
    make_hf_model(tmp_path, shards=160, vocab_size=128256, **sizes)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    size, tensors, kib = map(float, done.stdout.split())
    assert size > 390e9
    assert tensors > 44_000
    assert kib < 200 * 1024


def test_a_tokenizer_directory_with_weights_is_a_model(tmp_path):
    make_tokenizer(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"lm_head.weight": ("BF16", (2048, 8))})
    assert read_artifact(RealHost(), str(tmp_path)).kind == "hf"


NAMES = [
    "config.json", "generation_config.json", "hf_quant_config.json", "quant_cfg.json", "dtypes.json",
    "model.safetensors.index.json", "model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin",
    "pytorch_model.bin.index.json", "x.gguf", "tokenizer_config.json",
]  # fmt: skip
KEYS = [
    "model_type", "architectures", "hidden_size", "num_attention_heads", "num_hidden_layers", "rope_scaling", "rope_parameters",
    "rope_theta", "full_attention", "type", "factor", "text_config", "quantization_config", "quant_method", "config_groups",
    "weights", "strategy", "num_bits", "kv_cache_scheme", "quantization", "quantized_layers", "quant_algo", "eos_token_id",
    "torch_dtype", "dtype", "head_dim", "partial_rotary_factor", "weight_map", "kv_lora_rank", "is_encoder_decoder", "ignore",
    "producer", "name", "weight_block_size", "tie_word_embeddings", "a.weight", "bits",
]  # fmt: skip
VALUES = st.sampled_from(
    [
        "llama",
        "gemma",
        "falcon",
        "fp8",
        "modelopt",
        "compressed-tensors",
        "awq",
        "model.safetensors",
        0,
        1,
        8,
        -1,
        1.5,
        True,
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | VALUES,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(KEYS), each, max_size=5),
    max_leaves=20,
)


@pytest.mark.heavy
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()),
        min_size=1,
        max_size=5,
    )
)
def test_any_bytes_in_any_file_are_read_without_an_exception(files):
    host = RecordedHost({f"m/{name}": data for name, data in files.items()})
    artifact = read_model_folder(host, "m")
    assert all(fact.where for fact in artifact.facts.values())


@pytest.mark.parametrize(("model_type", "expected"), [("deepseek_v3", False), ("my_own_model", True)])
def test_code_of_its_own_is_run_only_where_transformers_has_none(tmp_path, model_type, expected):
    model = make_hf_model(tmp_path, model_type=model_type, auto_map={"AutoConfig": "configuration_x.XConfig"})
    assert read_artifact(RealHost(), str(model)).get("remote_code") is expected
