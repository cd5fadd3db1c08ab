"""Option files and command lines: what they ask for, where they say so, and which of two places wins."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.make_triton import make_llm_args
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.readers import probe_path
from trtdx.inspect.readers.server.llm_args import (
    COMMAND_READER,
    READER,
    command_from_text,
    read_command_file,
    read_llm_args,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.inspect.facts.artifact import Artifact

HOST = RealHost()


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def command(text: str, version: str = "") -> Artifact:
    return command_from_text(HOST, text, "--command", version=version)


def values(artifact: Artifact, *names: str) -> dict[str, Any]:
    return {name: artifact.get(name) for name in names if artifact.has(name)}


def test_options_become_the_names_that_all_artifacts_share(tmp_path: Path) -> None:
    path = make_llm_args(
        tmp_path / "extra.yaml",
        tensor_parallel_size=4,
        moe_expert_parallel_size=2,
        speculative_config={"decoding_type": "Eagle", "max_draft_len": 3},
        lora_config={"max_lora_rank": 16, "lora_target_modules": ["attn_q"]},
    )
    artifact = read_llm_args(HOST, str(path))
    expected = {
        "tp_size": 4,
        "moe_ep_size": 2,
        "max_batch_size": 8,
        "max_num_tokens": 4096,
        "max_seq_len": 2048,
        "max_draft_len": 3,
        "runtime.speculative": "Eagle",
        "runtime.chunked_context": True,
        "runtime.block_reuse": True,
        "runtime.kv_cache_dtype": "auto",
        "runtime.free_gpu_memory_fraction": 0.8,
        "lora.enabled": True,
        "lora.max_rank": 16,
        "lora.target_modules": ["attn_q"],
        "option.cuda_graph_config.batch_sizes": [1, 2, 4, 8],
    }
    assert values(artifact, *expected) == expected


def test_each_option_knows_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "extra.yaml", "max_batch_size: 8\nkv_cache_config:\n  dtype: fp8\n")
    fact = read_llm_args(HOST, path).facts["runtime.kv_cache_dtype"]
    assert fact.where == f"{path}:3: kv_cache_config.dtype"


def test_what_is_not_stated_is_not_a_fact(tmp_path: Path) -> None:
    artifact = read_llm_args(HOST, written(tmp_path / "extra.yaml", "max_batch_size: 8\n"))
    assert set(artifact.facts) == {"max_batch_size", "option.max_batch_size"}


def test_null_is_a_statement(tmp_path: Path) -> None:
    artifact = read_llm_args(HOST, written(tmp_path / "extra.yaml", "cuda_graph_config: null\n"))
    assert artifact.get("option.cuda_graph_config") == "null"


def test_texts_that_are_numbers_count_as_numbers(tmp_path: Path) -> None:
    artifact = read_llm_args(HOST, written(tmp_path / "e.yaml", 'max_batch_size: "8"\ntrust_remote_code: "yes"\n'))
    assert values(artifact, "max_batch_size", "runtime.trust_remote_code") == {
        "max_batch_size": 8,
        "runtime.trust_remote_code": True,
    }


def test_json_is_read_as_well(tmp_path: Path) -> None:
    path = written(tmp_path / "args.json", json.dumps({"max_batch_size": 8, "kv_cache_config": {"dtype": "fp8"}}))
    assert READER.recognise(HOST, probe_path(HOST, path))
    assert read_llm_args(HOST, path).facts["runtime.kv_cache_dtype"].where == f"{path}: kv_cache_config.dtype"


def test_tritons_own_section_is_no_option(tmp_path: Path) -> None:
    text = "model: TinyLlama/TinyLlama-1.1B\nbackend: pytorch\ntriton_config:\n  max_batch_size: 0\n  decoupled: true\n"
    artifact = read_llm_args(HOST, written(tmp_path / "model.yaml", text))
    assert values(artifact, "triton.decoupled", "runtime.backend") == {
        "triton.decoupled": True,
        "runtime.backend": "pytorch",
    }
    assert not artifact.has("runtime.unknown_keys")
    assert not any(name.startswith("option.triton_config") for name in artifact.facts)


def test_keys_are_judged_by_the_release(tmp_path: Path) -> None:
    path = written(tmp_path / "e.yaml", "use_cuda_graph: true\nkv_cache_confg:\n  dtype: fp8\nauto_parallel: true\n")
    new = read_llm_args(HOST, path, "1.2.1")
    assert new.items("runtime.renamed_keys")[0].startswith("use_cuda_graph: known up to 0.21.0, not in 1.2.1")
    assert new.items("runtime.unknown_keys") == [
        "kv_cache_confg: no release up to 1.3.0rc23 has it; did you mean kv_cache_config?"
    ]
    assert new.items("runtime.removed_keys") == ["auto_parallel: known up to 1.1.0, not in 1.2.1"]
    old = read_llm_args(HOST, path, "0.21.0")
    assert not old.has("runtime.renamed_keys")


def test_autodeploy_takes_keys_that_nobody_else_takes(tmp_path: Path) -> None:
    for text in ("backend: _autodeploy\nanything: 1\n", "compile_backend: torch-opt\nfree_mem_ratio: 0.8\n"):
        path = written(tmp_path / "e.yaml", text)
        assert not read_llm_args(HOST, path).has("runtime.unknown_keys")


def test_values_that_no_release_takes_are_told_and_not_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "e.yaml", "max_batch_size: many\nkv_cache_config: 0.9\n")
    artifact = read_llm_args(HOST, path)
    assert artifact.items("runtime.invalid_values") == [
        "max_batch_size = many: takes a whole number",
        "kv_cache_config = 0.9: takes a section with keys of its own",
    ]
    assert not artifact.has("max_batch_size")
    assert not artifact.has("malformed")


def test_keys_written_twice_are_told(tmp_path: Path) -> None:
    path = written(tmp_path / "e.yaml", "max_batch_size: 8\ndtype: auto\nmax_batch_size: 16\n")
    assert read_llm_args(HOST, path).items("runtime.duplicate_keys") == ["max_batch_size (first on line 1)"]


def test_a_broken_file_is_recognised_and_told(tmp_path: Path) -> None:
    path = written(tmp_path / "e.yaml", "kv_cache_config:\n\tdtype: fp8\n")
    assert READER.recognise(HOST, probe_path(HOST, path))
    [problem] = read_llm_args(HOST, path).items("unparsed")
    assert "line 2, column 1" in problem


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compose.yaml", "version: '3'\nservices:\n  a:\n    image: b\n"),
        ("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {}\n"),
        (
            "config.json",
            json.dumps({"architectures": ["L"], "dtype": "bfloat16", "hidden_size": 8, "vocab_size": 9}),
        ),
        ("notes.txt", "max_batch_size: 8\n"),
        (
            "disagg.yaml",
            "hostname: a\nport: 1\nbackend: pytorch\ncontext_servers: {}\ngeneration_servers: {}\n",
        ),
        ("visual.yaml", "attention_config: {}\nparallel_config: {}\ncuda_graph_config:\n  enable: true\n"),
        ("empty.yaml", ""),
        ("list.yaml", "- a\n- b\n"),
    ],
)
def test_other_files_are_not_taken_for_options(tmp_path: Path, name: str, text: str) -> None:
    assert not READER.recognise(HOST, probe_path(HOST, written(tmp_path / name, text)))


@pytest.mark.parametrize(
    "text", ["max_batch_size: 8\n", "kv_cache_confg:\n  dtype: fp8\n", "triton_config: {}\nmodel: x\n"]
)
def test_options_are_recognised_even_misspelt(tmp_path: Path, text: str) -> None:
    assert READER.recognise(HOST, probe_path(HOST, written(tmp_path / "a.yml", text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "trtllm-serve serve /m --tp_size 4 --pp_size=2 --max_batch_size 8",
            {"runtime.model": "/m", "tp_size": 4, "pp_size": 2, "max_batch_size": 8},
        ),
        ("trtllm-serve /m --tensor_parallel_size 4 --ep_size 2", {"tp_size": 4, "moe_ep_size": 2}),
        (
            "CUDA_VISIBLE_DEVICES=0 mpirun -n 8 --allow-run-as-root trtllm-llmapi-launch trtllm-serve /m --tp_size 8",
            {"runtime.world_size": 8, "runtime.launcher": "mpirun trtllm-llmapi-launch", "tp_size": 8},
        ),
        ("srun -N 2 --ntasks=16 trtllm-llmapi-launch trtllm-serve /m", {"runtime.world_size": 16}),
        (
            "srun -N 2 -c 4 trtllm-llmapi-launch trtllm-serve /m",
            {"runtime.launcher": "srun trtllm-llmapi-launch"},
        ),
        ("mpirun -n 1 a : -n 7 trtllm-serve /m", {"runtime.launcher": "mpirun"}),
        (
            "trtllm-bench --model org/name --model_path /m throughput --tp 2 --beam_width 4 --kv_cache_free_gpu_mem_fraction 0.5",
            {
                "runtime.model": "/m",
                "tp_size": 2,
                "max_beam_width": 4,
                "runtime.free_gpu_memory_fraction": 0.5,
            }
            | {"runtime.command": "trtllm-bench throughput"},
        ),
        (
            "trtllm-bench -m /m throughput --disable_chunked_context --dataset d",
            {"runtime.chunked_context": False},
        ),
        ("trtllm-eval --model /m --tp_size 2 mmlu --num_samples 5", {"runtime.model": "/m", "tp_size": 2}),
        (
            "trtllm-build --checkpoint_dir c --max_batch_size 8 --max_seq_len 2048 --gather_context_logits",
            {
                "runtime.command": "trtllm-build",
                "max_batch_size": 8,
                "max_seq_len": 2048,
                "gather_context_logits": True,
            },
        ),
        ("python3 -m tensorrt_llm.commands.serve /m --tp_size 2", {"tp_size": 2, "runtime.model": "/m"}),
        (
            "docker run --name trtllm-serve img trtllm-serve /m --trust_remote_code",
            {"runtime.trust_remote_code": True},
        ),
        ("bash -lc 'cd /x && trtllm-serve /m --tp_size 2'", {"tp_size": 2}),
        ("$ trtllm-serve /m --kv_cache_dtype fp8", {"runtime.kv_cache_dtype": "fp8"}),
    ],
)
def test_a_command_line_is_taken_apart(text: str, expected: dict[str, Any]) -> None:
    artifact = command(text)
    assert values(artifact, *expected) == expected
    assert not artifact.has("runtime.unknown_keys")
    if "runtime.world_size" not in expected:
        assert not artifact.has("runtime.world_size")


@pytest.mark.parametrize(
    "text",
    [
        "echo trtllm-serve /m",
        "pip install trtllm-serve x",
        "Use trtllm-serve to serve.",
        "pkill -f trtllm-serve -9",
        "",
        "trtllm-serve",
    ],
)
def test_speaking_of_a_program_is_not_starting_it(text: str) -> None:
    artifact = command_from_text(HOST, text, "notes.txt")
    assert not artifact.facts
    assert artifact.unread


def test_a_flag_that_the_program_does_not_have_is_told() -> None:
    artifact = command("trtllm-serve /m --tp-size 2")
    assert artifact.items("runtime.unknown_keys") == [
        "--tp-size: trtllm-serve has no such flag; did you mean --tp_size?"
    ]
    assert artifact.facts["runtime.unknown_keys"].where == "--command: --tp-size"
    assert artifact.get("option.--tp-size") == "2"


def test_a_value_that_only_the_shell_knows_is_no_fact() -> None:
    artifact = command("trtllm-serve $MODEL --tp_size $(nproc) --port $PORT")
    assert not artifact.has("tp_size")
    assert not artifact.has("runtime.model")
    assert any("$(nproc)" in note for note in artifact.unread)


SCRIPT = """\
#!/bin/bash
MODEL=/models/llama
cat > extra.yaml <<EOF
max_batch_size: 64
kv_cache_config:
  dtype: fp8
EOF
trtllm-build --checkpoint_dir c --output_dir e
mpirun -n 8 trtllm-llmapi-launch \\
  trtllm-serve $MODEL --tp_size 8 --max_batch_size 128 \\
  --kv_cache_free_gpu_memory_fraction 0.5 --extra_llm_api_options extra.yaml
"""


def test_a_script_is_read_with_the_file_it_writes_itself(tmp_path: Path) -> None:
    path = written(tmp_path / "serve.sh", SCRIPT)
    assert COMMAND_READER.recognise(HOST, probe_path(HOST, path))
    artifact = read_command_file(HOST, path, "1.2.1")
    assert values(artifact, "runtime.model", "max_batch_size", "runtime.kv_cache_dtype") == {
        "runtime.model": "/models/llama",
        "max_batch_size": 64,
        "runtime.kv_cache_dtype": "fp8",
    }
    assert artifact.facts["runtime.kv_cache_dtype"].where == f"{path}:6: kv_cache_config.dtype"
    assert [(part.get("runtime.command"), part.unit) for part in artifact.parts] == [("trtllm-build", "line 8")]


@pytest.mark.parametrize(
    ("version", "batch", "share", "conflicts"),
    [
        ("", None, 0.5, ["the file wins up to 1.2.1, the command line in 1.3.0 (since rc19)"]),
        ("1.0.0", 128, None, ["the command line wins in 1.0.0", "is dropped in 1.0.0"]),
        ("1.1.0", 64, None, ["the file wins in 1.1.0", "is dropped in 1.1.0"]),
        ("1.2.1", 64, 0.5, ["the file wins in 1.2.1"]),
        ("1.3.0rc23", 128, 0.5, ["the command line wins in 1.3.0rc23"]),
    ],
)
def test_the_release_decides_which_place_wins(
    tmp_path: Path, version: str, batch: int | None, share: float | None, conflicts: list[str]
) -> None:
    artifact = read_command_file(HOST, written(tmp_path / "serve.sh", SCRIPT), version)
    assert artifact.get("max_batch_size") == batch
    assert artifact.get("runtime.free_gpu_memory_fraction") == share
    told = artifact.items("runtime.conflicts")
    assert len(told) == len(conflicts)
    assert all(words in item for words, item in zip(conflicts, told, strict=True))


def test_defaults_of_the_command_line_beat_the_file_in_1_0(tmp_path: Path) -> None:
    make_llm_args(tmp_path / "extra.yaml")
    path = written(tmp_path / "serve.sh", "trtllm-serve /m --extra_llm_api_options extra.yaml\n")
    artifact = read_command_file(HOST, path, "1.0.0")
    assert [item.partition(":")[0] for item in artifact.items("runtime.conflicts")] == [
        "max_batch_size",
        "max_num_tokens",
    ]
    assert not artifact.has("max_batch_size")


def test_the_same_value_in_both_places_is_no_conflict(tmp_path: Path) -> None:
    make_llm_args(tmp_path / "extra.yaml")
    path = written(tmp_path / "serve.sh", "trtllm-serve /m --max_batch_size 8 --config extra.yaml\n")
    artifact = read_command_file(HOST, path)
    assert not artifact.has("runtime.conflicts")
    assert artifact.get("max_batch_size") == 8


def test_a_file_that_is_not_there_is_told() -> None:
    artifact = command("trtllm-serve /m --config nowhere.yaml")
    assert artifact.items("runtime.paths_unseen") == ["nowhere.yaml (--config)"]


def test_a_file_that_the_script_may_write_is_not_called_missing() -> None:
    artifact = command("echo 'dtype: auto' | sed s/x/y/ - > made.yaml; trtllm-serve /m --config made.yaml")
    assert not artifact.has("runtime.paths_missing")
    assert any("made.yaml" in note for note in artifact.unread)


def test_paths_that_are_there_are_referred_to(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    assert command(f"trtllm-serve {model} --tokenizer org/name").refers_to == (str(model),)
    assert command(f"trtllm-build --checkpoint_dir {model} --output_dir e").refers_to == (str(model),)


@pytest.mark.parametrize(
    "text",
    [
        "[TRT-LLM] [I] a\n[TRT-LLM] [I] b\n[TRT-LLM] [I] c\ntrtllm-serve /m --tp_size 2\n",
        "only words\n",
        "a\0trtllm-serve /m\n",
    ],
)
def test_logs_and_prose_are_not_taken_for_commands(tmp_path: Path, text: str) -> None:
    assert not COMMAND_READER.recognise(HOST, probe_path(HOST, written(tmp_path / "run.txt", text)))


@pytest.mark.parametrize("name", ["gone.yaml", "gone.sh"])
def test_a_file_that_vanishes_is_told(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    for artifact in (read_llm_args(HOST, path), read_command_file(HOST, path)):
        assert artifact.unread


def test_a_file_of_ten_gigabytes_is_refused(tmp_path: Path) -> None:
    for name, read in (("a.yaml", read_llm_args), ("a.sh", read_command_file)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(10 << 30)
        assert any("larger than" in note for note in read(HOST, str(tmp_path / name)).unread)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=200) | st.text("abk_: -\n[]{}'\"#&*|>1", max_size=80).map(str.encode))
def test_no_bytes_raise(data: bytes) -> None:
    host = RecordedHost({"/a.yaml": data, "/a.json": data, "/a.sh": data})
    for path in ("/a.yaml", "/a.json", "/a.sh"):
        for reader in (READER, COMMAND_READER):
            reader.recognise(host, probe_path(host, path))
            assert reader.read(host, path, "1.2.1").kind == reader.kind


@pytest.mark.heavy
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60) | st.text("ab $(){}<>'\"\\`|&;#=-\n", max_size=40))
def test_no_command_raises(text: str) -> None:
    assert command_from_text(HOST, "trtllm-serve " + text, "serve.sh").kind == "command"


def test_triton_is_started_with_so_many_ranks(tmp_path):
    (tmp_path / "repo").mkdir()
    text = f"python3 scripts/launch_triton_server.py --world_size=2 --model_repo={tmp_path}/repo"
    artifact = command_from_text(RealHost(), text, "--command")
    assert artifact.get("runtime.world_size") == 2
    assert artifact.refers_to == (f"{tmp_path}/repo",)
    mpi = command_from_text(RealHost(), "mpirun -n 4 tritonserver --model-repository=/repo", "--command")
    assert mpi.get("runtime.world_size") == 4
    alone = command_from_text(RealHost(), "TRTLLM_ORCHESTRATOR=1 mpirun -n 1 tritonserver --model-repository=/r", "x")
    assert alone.get("runtime.orchestrated") is True
