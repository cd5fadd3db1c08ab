"""What belongs together is told by real paths and by what commands name; what could not be judged is said."""

from __future__ import annotations

import json

import pytest

from support.make_engine import make_checkpoint, make_engine
from support.make_hf import make_hf_model, make_tokenizer
from support.make_triton import make_triton
from trtdx.host import RealHost
from trtdx.inspect.facts.machine import machine_from_flags
from trtdx.inspect.run import InspectQuestion, inspect_artifacts
from trtdx.knowledge.load import load_book
from trtdx.render import render_json, render_markdown, render_text

BOOK = load_book(RealHost())
# 28 heads: eight ranks cannot share them, and of the model beside it (32 heads) they can.
SEVEN = {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "head_dim": 128}
SERVE = "trtllm-serve qwen7 --tp_size 8"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_hf_model(tmp_path / "qwen7", **SEVEN)
    (tmp_path / "link").symlink_to(tmp_path / "qwen7")
    return tmp_path


def report(*paths, commands=(), **machine):
    question = InspectQuestion(
        paths=tuple(map(str, paths)),
        commands=tuple(commands),
        machine=machine_from_flags(**({"runtime": "", "gpu": "", "gpus": 0} | machine)),
    )
    return inspect_artifacts(RealHost(), question, BOOK)


def codes(*paths, **asked):
    return [finding.code for finding in report(*paths, **asked).findings]


@pytest.mark.parametrize("name", ["qwen7", "./qwen7", "qwen7/", "link", "link/../qwen7", "{}/qwen7"])
@pytest.mark.parametrize("served", ["qwen7", "./qwen7/", "link", "{}/link"])
def test_a_model_is_the_same_whatever_it_is_called(folder, name, served):
    command = f"trtllm-serve {served.format(folder)} --tp_size 8"
    found = report(name.format(folder), commands=[command])
    assert [finding.code for finding in found.findings] == ["DX096"]
    assert found.summary.inputs == 2


def test_a_path_that_is_given_twice_is_read_once(folder):
    assert report("qwen7", "./qwen7", "link").summary.inputs == 1


def test_an_unrelated_model_beside_it_silences_nothing(folder):
    make_hf_model(folder / "llama8")
    assert codes("qwen7", "llama8", commands=[SERVE]) == ["DX096"]
    assert codes("llama8", "qwen7", commands=["trtllm-serve ./llama8 --tp_size 8"]) == []


def test_a_command_that_serves_another_model_is_not_held_against_the_one_given(folder):
    make_hf_model(folder / "llama8")
    assert codes("qwen7", commands=["trtllm-serve llama8 --tp_size 8"]) == []


@pytest.mark.parametrize("name", ["Qwen/qwen7", "/models/qwen7"])
def test_a_name_of_the_hub_or_of_a_container_is_the_folder_that_ends_like_it(folder, name):
    make_hf_model(folder / "llama8")
    assert codes("qwen7", "llama8", commands=[f"trtllm-serve {name} --tp_size 8"]) == ["DX096"]


def test_an_engine_beside_a_model_that_is_served_silences_nothing(folder):
    make_engine(folder / "engine")
    assert "DX096" in codes("qwen7", "engine", commands=[SERVE])


def test_each_server_is_held_against_its_own_model(folder):
    make_hf_model(folder / "llama8")
    commands = ["trtllm-serve llama8 --tp_size 8", SERVE]
    assert codes(commands=commands) == ["DX096"]


def test_an_engine_belongs_to_the_model_it_is_nearest_to(folder):
    make_hf_model(folder / "llama8")
    make_engine(folder / "engine", rotary_base=10000.0)
    assert codes("engine", "llama8") == codes("engine", "llama8", "qwen7") == ["DX471"]


def test_of_models_of_one_size_the_one_triton_names_is_the_engines(folder):
    make_hf_model(folder / "llama8")
    make_hf_model(folder / "tuned", rope_theta=10000.0, rope_scaling=None, max_position_embeddings=8192)
    make_engine(folder / "engine")
    make_triton(folder / "triton", str(folder / "engine"), str(folder / "llama8"))
    assert "DX471" not in codes("llama8", "tuned", "triton")
    unclear = [each for each in report("llama8", "tuned", "engine").summary.unjudged if each.given]
    assert "which of llama8 and tuned engine was made from" in unclear[0].reason
    assert "DX471" in unclear[0].codes


def test_a_tokenizer_of_another_model_beside_is_no_alarm(folder):
    make_hf_model(folder / "large", vocab_size=4096)
    make_tokenizer(folder / "tokenizer", vocab_size=4096)
    named = "trtllm-serve large --tokenizer tokenizer"
    assert codes("large", "qwen7", "tokenizer", commands=[named]) == []


def test_which_model_is_served_is_asked_for_where_nothing_says_it(folder):
    make_hf_model(folder / "llama8")
    found = report("qwen7", "llama8", commands=["trtllm-serve /models/other --tp_size 8"])
    assert not found.findings
    [unclear] = [each for each in found.summary.unjudged if "which of qwen7 and llama8" in each.reason]
    assert unclear.given
    assert {"DX096", "DX877"} <= set(unclear.codes)
    for text in (render_text(found), render_markdown(found)):
        assert "not judged:" in text
        assert "the command line does not say which of qwen7 and llama8 is served" in " ".join(text.split())
    data = json.loads(render_json(found))
    assert data["summary"]["unjudged"][0]["codes"]


def test_what_was_not_given_is_one_line_and_every_code_on_request(folder):
    found = report("qwen7")
    lines = [line for line in render_text(found, width=None).split("   = ") if line.startswith("not judged")]
    assert len(lines) == 1
    assert "a server's command or options" in lines[0]
    assert "DX096" not in lines[0]
    assert "DX096" in render_text(found, details=True)


def test_a_missing_flag_of_the_machine_is_said(folder):
    reasons = {each.reason for each in report("qwen7", commands=[SERVE], gpu="H100").summary.unjudged}
    assert "--gpus is not given" in reasons


def test_a_whole_deployment_leaves_nothing_unclear(tmp_path):
    make_hf_model(tmp_path / "hf")
    make_checkpoint(tmp_path / "ckpt")
    make_engine(tmp_path / "engine")
    make_triton(tmp_path / "triton", str(tmp_path / "engine"), str(tmp_path / "hf"))
    found = report(tmp_path / "ckpt", tmp_path / "triton", runtime="1.2.1", gpu="L40S", gpus=1)
    assert not found.findings
    assert [each.reason for each in found.summary.unjudged if each.given] == []


def test_what_a_broken_config_does_not_state_is_a_reason(folder):
    config = json.loads((folder / "qwen7/config.json").read_text())
    del config["num_attention_heads"]
    (folder / "qwen7/config.json").write_text(json.dumps(config))
    reasons = {each.reason for each in report("qwen7", commands=[SERVE]).summary.unjudged if each.given}
    assert any("qwen7 does not state" in reason and "num_heads" in reason for reason in reasons)


def test_what_stands_in_for_a_model_of_a_container_is_said(folder):
    found = report("qwen7", commands=["trtllm-serve /models/qwen7 --tp_size 8"])
    assert [finding.code for finding in found.findings] == ["DX096"]
    assert "/models/qwen7 is not on this machine; qwen7 was taken for it" in found.summary.partial[0]


def test_fixes_and_the_look_afterwards_name_what_was_given(folder):
    [finding] = report("./qwen7", commands=[SERVE]).findings
    assert finding.fixes[0].command == "trtllm-serve qwen7 --tp_size 4 --pp_size 2"
    assert finding.verify == "trtdx inspect ./qwen7 --command 'trtllm-serve qwen7 --tp_size 4 --pp_size 2'"


@pytest.mark.parametrize(
    ("given", "mended"),
    [
        ("python3 run.py --engine_dir engine", "mpirun -n 2 python3 run.py --engine_dir engine"),
        ("mpirun -n 4 python3 run.py --engine_dir engine", "mpirun -n 2 python3 run.py --engine_dir engine"),
    ],
)
def test_a_wrong_number_of_ranks_is_mended_in_the_users_own_command(tmp_path, monkeypatch, given, mended):
    monkeypatch.chdir(tmp_path)
    make_engine(tmp_path / "engine", tp_size=2)
    [finding] = report(commands=[given]).findings
    assert finding.code == "DX210"
    assert finding.fixes[0].command == mended


SCRIPTS = {
    "loop": "for port in 1 2; do \\\ntrtllm-serve qwen7 --tp_size 8 --port $port & \\\ndone\n",
    "condition": "if [ -d qwen7 ]; then trtllm-serve qwen7 --tp_size 8; fi\n",
    "tmux": "tmux new-session -d -s llm 'trtllm-serve qwen7 --tp_size 8'\n",
    "array": 'ARGS=(--tp_size 8)\ntrtllm-serve qwen7 "${ARGS[@]}"\n',
    "split": 'ARGS="--port 8000"\nARGS+=" --tp_size 8"\ntrtllm-serve qwen7 $ARGS\n',
    "unit": "[Service]\nExecStart=/usr/bin/trtllm-serve qwen7 --tp_size 8\nRestart=always\n",
    "second": "trtllm-serve qwen7 --tp_size 4 &\ntrtllm-serve qwen7 --tp_size 8 --port 8001\n",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_command_is_found_wherever_a_script_starts_it(folder, script):
    (folder / "serve.sh").write_text(SCRIPTS[script])
    assert codes("serve.sh") == ["DX096"]


def test_every_command_of_a_script_is_judged_by_itself(folder):
    make_checkpoint(folder / "ckpt")
    build = "trtllm-build --checkpoint_dir ckpt --output_dir new --max_output_len 512\n"
    (folder / "all.sh").write_text(f"{build}trtllm-serve qwen7 --tp_size 8\ntrtllm-serve qwen7 --tp_size 4\n")
    found = report("all.sh", runtime="1.2.1")
    assert [finding.code for finding in found.findings] == ["DX096", "DX154"]
    assert "all.sh:2" in found.findings[0].evidence[1].where


def test_a_fix_for_a_script_is_the_line_and_not_the_script(folder):
    make_engine(folder / "engine", tp_size=2)
    text = "#!/bin/bash\n#SBATCH --ntasks=4\nset -e\nsrun --mpi=pmix python3 x/run.py --engine_dir engine > log 2>&1\n"
    (folder / "job.sbatch").write_text(text)
    [finding] = report("job.sbatch").findings
    assert finding.fixes[0].command == "srun -n 2 --mpi=pmix python3 x/run.py --engine_dir engine"


@pytest.mark.parametrize(
    ("command", "mended"),
    [
        ("trtllm-serve qwen7 --tp_size 8 --port 9", "trtllm-serve qwen7 --tp_size 4 --port 9 --pp_size 2"),
        (
            "A=1 trtllm-serve qwen7 --max_seq_len 99 --tp_size 8",
            "A=1 trtllm-serve qwen7 --max_seq_len 99 --tp_size 4 --pp_size 2",
        ),
        ("mpirun -n 8 trtllm-serve qwen7 --tp_size 8 --port 9", "trtllm-serve qwen7 --tp_size 8 --port 9"),
    ],
)
def test_a_fix_is_the_users_command_with_the_change_in_it(folder, command, mended):
    fixes = [(fix.command, finding.verify) for finding in report(commands=[command]).findings for fix in finding.fixes]
    verify = next(verify for written, verify in fixes if written == mended)
    assert verify.endswith(f"--command '{mended}'")


def test_no_flag_is_advised_beside_a_file_that_states_the_same(folder):
    (folder / "tp.yaml").write_text("tensor_parallel_size: 8\n")
    [finding] = report(commands=["trtllm-serve qwen7 --port 9 --config tp.yaml"]).findings
    assert finding.fixes[0].command is None
    assert "in the file of options" in finding.fixes[0].text


@pytest.mark.parametrize("by", ["triton", "trtllm-serve", "run.py"])
def test_a_folder_that_only_lends_its_tokenizer_is_not_the_engines_model(folder, by):
    larger = {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "intermediate_size": 28672,
    }
    make_engine(folder / "engine")
    make_hf_model(folder / "larger", **larger)
    make_hf_model(folder / "foreign", **(larger | {"vocab_size": 4096}))
    make_triton(folder / "larger.triton", str(folder / "engine"), str(folder / "larger"))
    make_triton(folder / "foreign.triton", str(folder / "engine"), str(folder / "foreign"))
    serve = "trtllm-serve engine --backend tensorrt --tokenizer {}"
    if by == "triton":
        assert codes("larger.triton") == []
        assert "DX820" in codes("foreign.triton")
    else:
        command = serve if by == "trtllm-serve" else "python3 run.py --engine_dir engine --tokenizer_dir {}"
        assert codes(commands=[command.format("larger")], runtime="1.2.1") == []
        assert "DX820" in codes(commands=[command.format("foreign")], runtime="1.2.1")


def test_triton_alone_starts_one_rank(folder):
    make_engine(folder / "engine", tp_size=2)
    make_hf_model(folder / "llama")
    make_triton(folder / "repo", str(folder / "engine"), str(folder / "llama"))
    [finding] = report(commands=["tritonserver --model-repository=repo"]).findings
    assert finding.code == "DX210"
    assert finding.fixes[0].command == "python3 launch_triton_server.py --world_size 2 --model_repo repo"
    assert codes(commands=["TRTLLM_ORCHESTRATOR=1 tritonserver --model-repository=repo"]) == []


@pytest.mark.parametrize("backend", ["xgrammar", "outlines"])
def test_the_guided_decoding_that_triton_has(folder, backend):
    make_engine(folder / "engine")
    make_hf_model(folder / "llama")
    make_triton(folder / "repo", str(folder / "engine"), str(folder / "llama"), guided_decoding_backend=backend)
    assert codes("repo") == ([] if backend == "xgrammar" else ["DX241"])


@pytest.mark.parametrize(("model", "severity"), [("qwen7", "error"), ("org/name", "note")])
def test_options_that_are_not_there_are_missing_where_the_model_lies_beside_them(folder, model, severity):
    found = report(commands=[f"trtllm-serve {model} --config ./nope.yaml"], runtime="1.2.1").findings
    assert [(finding.code, finding.severity.value) for finding in found] == [("DX880", severity)]
