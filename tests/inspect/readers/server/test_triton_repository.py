"""Triton model repositories: models, parameters, ensembles, and what was left unfilled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_triton import make_llmapi, make_triton
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.readers import probe_path
from trtdx.inspect.readers.server.triton_repository import READER, read_triton_repository

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.inspect.facts.artifact import Artifact

HOST = RealHost()
FAULTS = (
    "triton.unfilled",
    "triton.unparsed",
    "triton.missing_files",
    "triton.ensemble_unknown",
    "triton.type_mismatches",
    "triton.paths_missing",
    "triton.name_mismatch",
    "triton.invalid_parameters",
)


def repository(tmp_path: Path, **overrides: str | None) -> Artifact:
    engine, tokenizer = tmp_path / "engine", tmp_path / "tokenizer"
    for folder in (engine, tokenizer):
        folder.mkdir(exist_ok=True)
    return read_triton_repository(
        HOST, str(make_triton(tmp_path / "repository", str(engine), str(tokenizer), **overrides))
    )


def edited(tmp_path: Path, model: str, old: str, new: str) -> Artifact:
    repository(tmp_path)
    config = tmp_path / "repository" / model / "config.pbtxt"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    return read_triton_repository(HOST, str(tmp_path / "repository"))


def faults(artifact: Artifact) -> dict[str, list[Any]]:
    return {name: artifact.items(name) for name in FAULTS if artifact.has(name)}


def test_a_correct_repository_has_no_faults(tmp_path: Path) -> None:
    artifact = repository(tmp_path)
    assert faults(artifact) == {}
    assert artifact.unread == ()
    assert artifact.items("triton.models") == [
        "ensemble",
        "postprocessing",
        "preprocessing",
        "tensorrt_llm",
        "tensorrt_llm_bls",
    ]


def test_parameters_become_the_names_that_all_artifacts_share(tmp_path: Path) -> None:
    artifact = repository(
        tmp_path,
        max_beam_width="4",
        max_attention_window_size="2048, 4096",
        gpu_device_ids="0,1;2,3",
        decoding_mode="medusa",
        cross_kv_cache_fraction="0.5",
        enable_chunked_context="False",
    )
    expected = {
        "max_batch_size": 8,
        "max_beam_width": 4,
        "runtime.attention_window": [2048, 4096],
        "runtime.free_gpu_memory_fraction": 0.9,
        "runtime.block_reuse": True,
        "runtime.chunked_context": False,
        "runtime.decoding_mode": "medusa",
        "runtime.cross_kv_cache_fraction": 0.5,
        "triton.gpu_device_ids": [[0, 1], [2, 3]],
        "triton.batching": "inflight_fused_batching",
        "triton.backend": "tensorrtllm",
        "triton.flow": "engine",
        "triton.decoupled": False,
        "triton.logits_datatype": "TYPE_FP32",
        "triton.add_special_tokens": True,
        "triton.skip_special_tokens": True,
        "parameter.tensorrt_llm.batch_scheduler_policy": "guaranteed_no_evict",
    }
    assert {name: artifact.get(name) for name in expected} == expected
    assert artifact.refers_to == (str(tmp_path / "tokenizer"), str(tmp_path / "engine"))


def test_a_value_knows_its_file_and_line(tmp_path: Path) -> None:
    fact = repository(tmp_path).facts["max_beam_width"]
    file, _, key = fact.where.partition(": ")
    path, _, line = file.rpartition(":")
    assert key == "parameters.max_beam_width"
    lines = (tmp_path / "repository" / "tensorrt_llm" / "config.pbtxt").read_text().splitlines()
    assert path.endswith("tensorrt_llm/config.pbtxt")
    assert "max_beam_width" in lines[int(line)]


def test_variables_left_unfilled_are_listed_with_model_and_key(tmp_path: Path) -> None:
    artifact = repository(tmp_path, decoupled_mode=None, max_attention_window_size=None, logits_datatype=None)
    items = artifact.items("triton.unfilled")
    assert any("tensorrt_llm/config.pbtxt:" in item and "decoupled = ${decoupled_mode}" in item for item in items)
    assert any("parameters.max_attention_window_size = ${max_attention_window_size}" in item for item in items)
    assert any("output.data_type = ${logits_datatype}" in item for item in items)
    assert not artifact.has("triton.decoupled")
    assert not artifact.has("triton.logits_datatype")
    assert "triton.unparsed" not in artifact.facts


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("max_batch_size: 8", 'max_batch_size: "8"', "max_batch_size takes a whole number without quotes"),
        ("instance_group", "instance_grup", "there is no field instance_grup (did you mean instance_group?)"),
        ('backend: "python"', "backend: python", "backend takes a text in quotes"),
        ("  },\n  {", "  }\n  {", "expected ',' or ']'"),
    ],
)
def test_what_triton_refuses_is_told_with_its_line(tmp_path: Path, old: str, new: str, reason: str) -> None:
    artifact = edited(tmp_path, "preprocessing", old, new)
    [problem] = artifact.items("triton.unparsed")
    assert problem.startswith("preprocessing/config.pbtxt: line ")
    assert reason in problem


@pytest.mark.parametrize(
    ("model", "old", "new", "told"),
    [
        (
            "ensemble",
            '"preprocessing"',
            '"preproc"',
            "a step names the model preproc, which is not in the repository",
        ),
        ("ensemble", 'key: "QUERY"', 'key: "QUERRY"', "preprocessing has no input QUERRY"),
        ("ensemble", 'key: "OUTPUT"', 'key: "OUTPUTS"', "postprocessing has no output OUTPUTS"),
        ("tensorrt_llm_bls", '"tensorrt_llm"\n', '"llm"\n', "tensorrt_llm_model_name is llm"),
    ],
)
def test_names_that_lead_nowhere_are_told(tmp_path: Path, model: str, old: str, new: str, told: str) -> None:
    items = edited(tmp_path, model, old, new).items("triton.ensemble_unknown")
    assert any(told in item for item in items)


def test_an_input_that_is_neither_mapped_nor_optional_is_told(tmp_path: Path) -> None:
    items = edited(tmp_path, "ensemble", 'key: "QUERY"', 'key: "QUERRY"').items("triton.ensemble_unknown")
    assert "ensemble: the input QUERY of preprocessing is not connected" in items


def test_connected_tensors_of_different_types_are_told(tmp_path: Path) -> None:
    artifact = repository(tmp_path, logits_datatype="TYPE_FP16")
    assert "context_logits: TYPE_FP32 in ensemble, TYPE_FP16 in tensorrt_llm" in artifact.items(
        "triton.type_mismatches"
    )


def test_the_smallest_batch_below_an_ensemble_is_known(tmp_path: Path) -> None:
    artifact = repository(tmp_path, preprocessing_max_batch_size="2")
    assert artifact.table("triton.ensemble_limits") == {"ensemble": 2}
    assert artifact.table("triton.max_batch_sizes")["ensemble"] == 8


def test_parameters_the_backend_cannot_read_are_told_and_not_kept(tmp_path: Path) -> None:
    artifact = repository(tmp_path, enable_kv_cache_reuse="yes", max_beam_width="four", batching_strategy="continuous")
    items = artifact.items("triton.invalid_parameters")
    assert [item.split(" = ")[0] for item in items] == [
        "tensorrt_llm: max_beam_width",
        "tensorrt_llm: gpt_model_type",
        "tensorrt_llm: enable_kv_cache_reuse",
    ]
    assert not artifact.has("runtime.block_reuse")


def test_a_missing_version_directory_or_file_is_told(tmp_path: Path) -> None:
    repository(tmp_path)
    root = tmp_path / "repository"
    (root / "preprocessing" / "1" / "model.py").unlink()
    (root / "ensemble" / "1").rmdir()
    assert read_triton_repository(HOST, str(root)).items("triton.missing_files") == [
        "ensemble: no version directory (such as ensemble/1)",
        "preprocessing: no model.py in preprocessing/1",
    ]


def test_a_name_that_is_not_the_folders_is_told(tmp_path: Path) -> None:
    artifact = edited(tmp_path, "postprocessing", 'name: "postprocessing"', 'name: "post"')
    assert artifact.items("triton.name_mismatch") == ["postprocessing: its config.pbtxt says post"]


def test_a_path_that_is_missing_beside_others_is_told(tmp_path: Path) -> None:
    artifact = edited(tmp_path, "tensorrt_llm", f'"{tmp_path}/engine"', f'"{tmp_path}/nowhere"')
    assert artifact.items("triton.paths_missing") == [f"{tmp_path}/nowhere (parameters.gpt_model_path)"]


def test_paths_of_a_container_that_is_not_here_are_not_called_missing(tmp_path: Path) -> None:
    root = make_triton(tmp_path / "repository", "/no/such/engines", "/no/such/models")
    artifact = read_triton_repository(HOST, str(root))
    assert not artifact.has("triton.paths_missing")
    assert artifact.get("triton.engine_dir") == "/no/such/engines"


def test_a_hub_name_is_no_path(tmp_path: Path) -> None:
    artifact = repository(tmp_path, preprocessing_tokenizer_dir="org/name", postprocessing_tokenizer_dir="org/name")
    assert not artifact.has("triton.paths_missing")


def test_one_model_can_be_looked_at_alone(tmp_path: Path) -> None:
    repository(tmp_path)
    folder = str(tmp_path / "repository" / "ensemble")
    assert READER.recognise(HOST, probe_path(HOST, folder))
    artifact = read_triton_repository(HOST, folder)
    assert artifact.items("triton.models") == ["ensemble"]
    assert faults(artifact) == {}


def test_the_llm_api_flow_is_read_from_model_yaml(tmp_path: Path) -> None:
    root = make_llmapi(tmp_path / "repository", model="org/name", tensor_parallel_size=2, use_cuda_graph=True)
    artifact = read_triton_repository(HOST, str(root), "1.2.1")
    expected = {"triton.flow": "llmapi", "runtime.model": "org/name", "tp_size": 2, "triton.decoupled": False}
    assert {name: artifact.get(name) for name in expected} == expected
    assert artifact.has("runtime.renamed_keys")
    assert faults(artifact) == {}


def test_a_model_yaml_that_is_broken_is_told(tmp_path: Path) -> None:
    root = make_llmapi(tmp_path / "repository")
    (root / "tensorrt_llm" / "1" / "model.yaml").write_text("model: [")
    assert read_triton_repository(HOST, str(root)).has("unparsed")


@pytest.mark.parametrize("name", ["repository", "repository/tensorrt_llm"])
def test_repositories_and_models_are_recognised(tmp_path: Path, name: str) -> None:
    repository(tmp_path)
    assert READER.recognise(HOST, probe_path(HOST, str(tmp_path / name)))


def test_other_folders_and_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    assert not READER.recognise(HOST, probe_path(HOST, str(tmp_path)))
    assert not READER.recognise(HOST, probe_path(HOST, str(tmp_path / "a" / "config.json")))


def test_hostile_files_are_told_in_bounded_time(tmp_path: Path) -> None:
    repository(tmp_path)
    root = tmp_path / "repository"
    (root / "preprocessing" / "config.pbtxt").write_bytes(b"a{" * 100_000)
    with (root / "postprocessing" / "config.pbtxt").open("wb") as file:
        file.truncate(10 << 30)
    (root / "ensemble" / "config.pbtxt").write_bytes(b"\xff\xfe\0\0")
    assert len(read_triton_repository(HOST, str(root)).items("triton.unparsed")) == 3


def test_a_repository_that_vanishes_is_told(tmp_path: Path) -> None:
    assert read_triton_repository(HOST, str(tmp_path / "nowhere")).unread


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=150) | st.text('ab{}[]:,"$_ \n1', max_size=80).map(str.encode))
def test_no_bytes_raise(data: bytes) -> None:
    host = RecordedHost({"/r/tensorrt_llm/config.pbtxt": data, "/r/tensorrt_llm/1/model.yaml": data})
    READER.recognise(host, probe_path(host, "/r"))
    assert read_triton_repository(host, "/r").kind == "triton"


fields = st.sampled_from(
    [
        'name: "a" ',
        'backend: "python" ',
        "max_batch_size: 4 ",
        "input [{}] ",
        'parameters {key:"max_beam_width" value {string_value:"9999999999999999999999"}} ',
        'ensemble_scheduling { step { model_name: "tensorrt_llm" input_map {key:"a" value:"b"} } } ',
        "instance_group {count: -5} ",
        "parameters: 5 ",
        'output { name: "generation_logits" data_type: 7 } ',
        "model_transaction_policy: 1 ",
        'parameters {key:"gpu_device_ids" value {string_value:";,;x"}} ',
    ]
)


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(fields, max_size=8))
def test_no_well_formed_configuration_raises(parts: list[str]) -> None:
    host = RecordedHost({"/r/tensorrt_llm/config.pbtxt": "".join(parts).encode()})
    assert read_triton_repository(host, "/r").kind == "triton"
