"""Engine directories of every era: configuration, plans, and what lies beside them."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_engine import make_checkpoint, make_engine, plan_bytes
from support.make_hf import make_hf_model, write_safetensors
from trtdx.host import RealHost
from trtdx.inspect.readers import probe_path, read_artifact
from trtdx.inspect.readers.engine.engine_folder import READER

HOST = RealHost()
ERAS = {
    "0.5.0": "before 0.8",
    "0.7.1": "before 0.8",
    "0.8.0": "0.8 to 0.10",
    "0.9.0": "0.8 to 0.10",
    "0.10.0": "0.8 to 0.10",
    "0.11.0": "0.11 and 0.12",
    "0.12.0": "0.11 and 0.12",
    "0.13.0": "0.13 to 1.1",
    "0.14.0": "0.13 to 1.1",
    "0.15.0": "0.13 to 1.1",
    "0.16.0": "0.13 to 1.1",
    "0.17.0": "0.13 to 1.1",
    "0.19.0": "0.13 to 1.1",
    "0.21.0": "0.13 to 1.1",
    "1.0.0": "0.13 to 1.1",
    "1.1.0": "0.13 to 1.1",
    "1.2.0rc2": "1.2 and later",
    "1.2.1": "1.2 and later",
}


def read(path):
    assert READER.recognise(HOST, probe_path(HOST, str(path)))
    return READER.read(HOST, str(path))


def config_of(path):
    return json.loads((path / "config.json").read_text())


def rewrite(path, config):
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("version", ERAS)
def test_an_engine_of_any_era_states_model_limits_and_plans(tmp_path, version):
    artifact = read(make_engine(tmp_path, version, sm=90))
    assert artifact.text("era") == ERAS[version]
    assert artifact.get("version") == (version if ERAS[version] != "before 0.8" else None)
    assert (artifact.get("num_layers"), artifact.get("num_kv_heads"), artifact.get("vocab_size")) == (
        32,
        8,
        2048,
    )
    assert artifact.get("dtype") == "bfloat16"
    assert (artifact.get("world_size"), artifact.get("tp_size"), artifact.get("pp_size")) == (1, 1, 1)
    assert artifact.has("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width", "tokens_per_block")
    assert artifact.text("kv_cache_type") == "paged"
    assert artifact.get("plugin.remove_input_padding") is True
    assert artifact.get("plan.sms") == [90]
    assert artifact.get("plan.versions") == [artifact.text("tensorrt")]
    assert artifact.get("weights.ranks") == [0]
    for absent in (
        "malformed",
        "unparsed",
        "weights.missing",
        "plan.truncated",
        "plan.foreign",
        "lora.max_rank",
    ):
        assert not artifact.has(absent), absent
    assert artifact.unread == ()


def test_the_era_is_known_by_the_keys_where_no_version_is_stated(tmp_path):
    for version, era in ERAS.items():
        folder = make_engine(tmp_path / version, version)
        config = config_of(folder)
        config.pop("version", None)
        assert read(rewrite(folder, config)).text("era") == era


def test_every_fact_says_where_it_was_read(tmp_path):
    artifact = read(make_engine(tmp_path))
    assert artifact.facts["max_batch_size"].where == f"{tmp_path}/config.json: build_config.max_batch_size"
    assert artifact.facts["num_layers"].where == f"{tmp_path}/config.json: pretrained_config.num_hidden_layers"
    assert artifact.facts["tensorrt"].where == f"{tmp_path}/rank0.engine: bytes 24 to 27"
    assert all(fact.where for fact in artifact.facts.values())


def test_before_0_11_prompt_and_answer_make_up_the_sequence(tmp_path):
    artifact = read(make_engine(tmp_path, "0.10.0", max_input_len=3000, max_output_len=1000))
    assert artifact.get("max_seq_len") == 4000
    assert artifact.facts["max_seq_len"].where.endswith("build_config.max_input_len + max_output_len")


def test_a_plugin_that_is_off_is_a_fact(tmp_path):
    artifact = read(make_engine(tmp_path, gemm_plugin="auto"))
    assert artifact.get("plugin.gemm_plugin") == "auto"
    assert artifact.get("plugin.lora_plugin") is False
    assert artifact.get("lora.enabled") is False


def test_unknown_settings_keep_their_own_spelling(tmp_path):
    config = config_of(make_engine(tmp_path))
    config["build_config"]["use_quantum_tunnel"] = 3
    config["build_config"]["plugin_config"]["warp_plugin"] = "auto"
    artifact = read(rewrite(tmp_path, config))
    assert artifact.get("build.use_quantum_tunnel") == 3
    assert artifact.get("plugin.warp_plugin") == "auto"


@pytest.mark.parametrize(
    ("stored", "name"), [(1, "NONE"), (4, "MEDUSA"), (32, "EAGLE"), (3, "3"), ("medusa", "MEDUSA")]
)
def test_speculative_decoding_is_named(tmp_path, stored, name):
    config = config_of(make_engine(tmp_path))
    config["build_config"]["speculative_decoding_mode"] = stored
    assert read(rewrite(tmp_path, config)).text("speculative_mode") == name


@pytest.mark.parametrize("version", ["0.12.0", "1.1.0", "1.2.1"])
def test_a_cache_without_pages_is_told_in_every_spelling(tmp_path, version):
    settings = {"paged_kv_cache": False} | ({"kv_cache_type": "continuous"} if version != "0.12.0" else {})
    assert read(make_engine(tmp_path, version, **settings)).text("kv_cache_type") == "continuous"


def test_an_engine_for_adapters_says_which(tmp_path):
    lora = {"lora_dir": ["lora/0"], "max_lora_rank": 16, "lora_target_modules": ["attn_q", "attn_v"]}
    artifact = read(make_engine(tmp_path, lora_plugin="auto", lora_config=lora))
    assert artifact.get("lora.enabled") is True
    assert artifact.get("lora.max_rank") == 16
    assert artifact.get("lora.target_modules") == ["attn_q", "attn_v"]
    assert artifact.refers_to == (f"{tmp_path}/lora/0",)


def test_quantisation_is_read_from_the_configuration(tmp_path):
    artifact = read(make_engine(tmp_path, quantization={"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}))
    assert (artifact.get("quant.algo"), artifact.get("quant.kv_algo")) == ("FP8", "FP8")


@pytest.mark.parametrize(
    ("mode", "algo", "cache"),
    [(0, None, None), (2, "W8A16", None), (1, "W4A16", None), (1 | 32, None, None), (256 | 128, "FP8", "FP8"),
     (2 | 4 | 8 | 16, "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", None), (2 | 4, "W8A8_SQ_PER_TENSOR_PLUGIN", None),
     (2 | 64, "W8A16", "INT8")],
)  # fmt: skip
def test_quantisation_before_0_8_is_decoded_from_its_bits(tmp_path, mode, algo, cache):
    artifact = read(make_engine(tmp_path, "0.7.1", quant_mode=mode))
    assert (artifact.get("quant.algo"), artifact.get("quant.kv_algo")) == (algo, cache)


def test_each_rank_has_a_plan_by_its_old_or_new_name(tmp_path):
    new = read(make_engine(tmp_path / "new", tp_size=2, pp_size=2))
    old = read(make_engine(tmp_path / "old", "0.7.1", tensor_parallel=2))
    assert new.get("weights.ranks") == [0, 1, 2, 3]
    assert old.get("weights.ranks") == [0, 1]
    assert (tmp_path / "old" / "llama_bfloat16_tp2_rank1.engine").exists()


def test_plans_that_are_missing_broken_or_of_another_build_are_told(tmp_path):
    make_engine(tmp_path, tp_size=8)
    (tmp_path / "rank1.engine").unlink()
    os.truncate(tmp_path / "rank2.engine", 100)
    (tmp_path / "rank3.engine").write_bytes(b"\x08\x0a\x12\x07pytorch")
    (tmp_path / "rank4.engine").write_bytes(plan_bytes("10.13.3.9"))
    (tmp_path / "rank5.engine").write_bytes(plan_bytes("1.7.1.116", "tensorrt-rtx"))
    (tmp_path / "rank6.engine").write_text("version https://git-lfs.github.com/spec/v1\n")
    artifact = read(tmp_path)
    assert artifact.get("weights.missing") == ["rank1.engine"]
    assert artifact.get("plan.truncated")[0].startswith("rank2.engine: ")
    assert artifact.get("plan.foreign") == ["rank3.engine: is an ONNX model, or another protobuf"]
    assert artifact.get("weights.lfs_pointers") == ["rank6.engine"]
    assert artifact.get("plan.versions") == ["1.7.1.116", "10.13.3.9", "10.14.1.48"]
    assert artifact.text("plan.product") == "TensorRT, TensorRT-RTX"
    assert not artifact.has("tensorrt")


def test_managed_weights_belong_to_the_plans(tmp_path):
    make_engine(tmp_path, tp_size=3, manage_weights=True)
    write_safetensors(tmp_path / "rank0_managed_weights.safetensors", {"w": ("BF16", (64, 64))})
    write_safetensors(tmp_path / "rank2_managed_weights.safetensors", {"w": ("BF16", (64, 64))})
    os.truncate(tmp_path / "rank2_managed_weights.safetensors", 500)
    artifact = read(tmp_path)
    assert artifact.get("weights.missing") == ["rank1_managed_weights.safetensors"]
    assert artifact.get("weights.truncated")[0].startswith("rank2_managed_weights.safetensors: ")


def test_an_encoder_and_a_decoder_are_one_engine(tmp_path):
    make_engine(tmp_path / "encoder", architecture="EncoderModel", num_hidden_layers=6)
    make_engine(tmp_path / "decoder", architecture="DecoderModel", num_hidden_layers=12)
    os.truncate(tmp_path / "encoder" / "rank0.engine", 1000)
    artifact = read(tmp_path)
    assert artifact.path == str(tmp_path)
    assert artifact.get("encoder_decoder") is True
    assert artifact.get("num_layers") == 12
    assert artifact.has("plan.truncated"), "the encoder's plans are looked at as well"
    assert "trtdx inspect" in artifact.unread[0]


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        ("0.7.1", ["plugin_config.context_fmha"]),
        ("0.8.0", ["build_config.lora_config"]),
        ("0.9.0", None),
        ("0.12.0", None),
        ("1.2.1", None),
    ],
)
def test_keys_that_its_own_or_a_later_runtime_demands_are_missing_or_not(tmp_path, version, missing):
    assert read(make_engine(tmp_path, version)).get("build.missing_keys") == missing


def test_a_key_that_was_cut_out_is_missing(tmp_path):
    config = config_of(make_engine(tmp_path))
    del config["build_config"]["plugin_config"]["paged_kv_cache"]
    del config["pretrained_config"]["mapping"]
    assert read(rewrite(tmp_path, config)).get("build.missing_keys") == [
        "pretrained_config.mapping.tp_size",
        "build_config.plugin_config.paged_kv_cache",
    ]


def test_a_broken_configuration_leaves_the_plans(tmp_path):
    make_engine(tmp_path)
    (tmp_path / "config.json").write_text("{" * 100_000)
    artifact = read(tmp_path)
    assert artifact.get("unparsed")[0].startswith("config.json: ")
    assert artifact.get("plan.versions") == ["10.14.1.48"]


def test_pipes_are_not_waited_for(tmp_path):
    make_engine(tmp_path)
    for name in ("config.json", "rank0.engine"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    artifact = read(tmp_path)
    assert not artifact.has("weights.ranks"), "a plan that cannot be read is none"
    assert len(artifact.unread) == 2


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.symlink_to("nowhere"), "a link to nothing"),
        (lambda path: path.mkdir(), "a directory"),
        (os.mkfifo, "not a file"),
    ],
)
def test_a_plan_that_is_no_file_is_missing(tmp_path, make, why):
    make_engine(tmp_path)
    (tmp_path / "rank0.engine").unlink()
    make(tmp_path / "rank0.engine")
    assert read(tmp_path).get("weights.missing") == [f"rank0.engine ({why})"]


def test_each_plans_gpu_is_told_where_they_differ(tmp_path):
    make_engine(tmp_path, tp_size=2, sm=90)
    assert not read(tmp_path).has("plan.sms_of_files")
    (tmp_path / "rank1.engine").write_bytes(plan_bytes("10.14.1.48", sm=80))
    assert read(tmp_path).get("plan.sms_of_files") == {"rank0.engine": [90], "rank1.engine": [80]}


def test_numbers_beyond_all_bounds_are_told(tmp_path):
    config = config_of(make_engine(tmp_path))
    config["build_config"]["max_batch_size"] = 10**30
    config["build_config"]["plugin_config"]["tokens_per_block"] = -(10**400)
    config["build_config"]["builder_level"] = 10**25
    artifact = read(rewrite(tmp_path, config))
    assert not artifact.has("max_batch_size") or isinstance(artifact.get("max_batch_size"), int)
    assert all(artifact.evidence(name) for name in artifact.facts)


def test_a_configuration_with_comments_is_read(tmp_path):
    make_engine(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text("// built on Tuesday\n" + text)
    assert read(tmp_path).get("version") == "1.2.1"


def test_the_registry_takes_an_engine_for_one(tmp_path):
    assert read_artifact(HOST, str(make_engine(tmp_path))).kind == "engine"


def test_other_directories_are_left_to_other_readers(tmp_path):
    others = [make_hf_model(tmp_path / "hf"), make_checkpoint(tmp_path / "checkpoint"), tmp_path]
    assert not any(READER.recognise(HOST, probe_path(HOST, str(path))) for path in others)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3)
)
TOP = st.sampled_from(["version", "pretrained_config", "build_config", "builder_config", "plugin_config"])
NAMES = st.sampled_from(
    ["architecture", "dtype", "mapping", "quantization", "plugin_config", "lora_config", "max_input_len", "max_output_len",
     "kv_cache_type", "speculative_decoding_mode", "tensor_parallel", "quant_mode", "tokens_per_block", "manage_weights",
     "lora_dir", "world_size"]
)  # fmt: skip


@pytest.mark.heavy
@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(TOP, VALUES | st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES))),
    st.binary(max_size=80),
)
def test_no_content_makes_it_raise(tmp_path_factory, config, plan):
    folder = tmp_path_factory.mktemp("any")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "rank0.engine").write_bytes(plan)
    READER.recognise(HOST, probe_path(HOST, str(folder)))
    assert READER.read(HOST, str(folder)).kind == "engine"
