"""`trtdx inspect` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest

from support.paths import ROOT
from trtdx.model import Report

MODEL, ENGINE = "examples/deployment/model", "examples/deployment/engine"


@pytest.fixture
def inspect(trtdx):
    return lambda *args, **kwargs: trtdx("inspect", *args, cwd=ROOT, **kwargs)


@pytest.mark.heavy
def test_findings_come_after_the_overview_and_decide_the_exit_status(inspect):
    done = inspect(MODEL, ENGINE)
    assert done.returncode == 1
    assert done.stdout.index("TensorRT-LLM engine directory") < done.stdout.index("error[DX471]")
    assert inspect(ENGINE).returncode == 0
    assert inspect(MODEL, ENGINE, "--fail-on", "never").returncode == 0


@pytest.mark.heavy
def test_a_request_is_answered_with_the_flags_that_would_do(inspect):
    done = inspect(ENGINE, "--request", "batch=8,input_len=9000,output_len=512")
    assert done.returncode == 1
    assert "error[DX270]: a prompt of 9000 tokens is longer than the 8191 tokens the engine takes" in done.stdout
    assert "--max_seq_len 9512 --max_num_tokens 9000" in done.stdout


@pytest.mark.heavy
def test_the_cause_comes_before_the_shapes_which_are_folded_by_dimension(inspect):
    done = inspect(ENGINE, "--request", "batch=3000,input_len=100")
    assert done.stdout.index("[DX274]") < done.stdout.index("Shapes of batch=3000")
    table = done.stdout.partition("Shapes of batch=3000")[2].partition("shapes fit")[0]
    rows = [line for line in table.splitlines() if "1 to " in line]
    assert len(rows) == len({line.strip().partition("  ")[0] for line in rows}) <= 6


@pytest.mark.heavy
def test_of_much_traffic_the_worst_request_is_shown(inspect, tmp_path):
    trace = tmp_path / "traffic.jsonl"
    lengths = [*range(100, 150), *range(9000, 9100), 700_000, *range(9100, 9200)]
    trace.write_text("\n".join(json.dumps({"input_len": each, "output_len": 9}) for each in lengths))
    done = inspect(ENGINE, "--requests", str(trace))
    assert "Shapes of input_len=700000,output_len=9" in done.stdout
    assert "201 of 251 requests do not fit as asked; the worst is shown" in " ".join(done.stdout.split())


@pytest.mark.heavy
def test_json_is_the_report_with_every_shape(inspect):
    done = inspect(ENGINE, "--request", "batch=8,input_len=900,output_len=100", "--json")
    report = msgspec.json.decode(done.stdout, type=Report)
    shapes = next(section for section in report.sections if section.key == "shapes")
    assert len(shapes.rows) > 10
    assert all(row[5] is True for row in shapes.rows)


@pytest.mark.heavy
def test_traffic_is_read_from_json_lines(inspect, tmp_path):
    trace = tmp_path / "traffic.jsonl"
    lines = [{"input_len": 100 + number, "output_len": 50} for number in range(50)]
    trace.write_text("\n".join(json.dumps(line) for line in [*lines, {"input_len": 9000, "output_len": 10}]))
    done = inspect(ENGINE, "--requests", str(trace))
    assert done.returncode == 1
    assert "DX270" in done.stdout


@pytest.mark.heavy
def test_do_i_have_to_rebuild(inspect):
    assert "verdict   no" in inspect(ENGINE, "--runtime", "1.2.1", "--gpu", "L40S").stdout
    other = inspect(ENGINE, "--runtime", "1.0.0", "--gpu", "H100")
    assert "verdict   yes" in other.stdout
    assert "error[DX200]" in other.stdout


@pytest.mark.heavy
def test_a_difference_fails_by_what_it_does(inspect, tmp_path):
    done = inspect(ENGINE, "--against", MODEL)
    assert done.returncode == 1
    assert "error[DX554]" in done.stdout
    assert "1 difference; " in done.stdout
    assert inspect(ENGINE, "--against", ENGINE).returncode == 0
    assert inspect(ENGINE, "--against", MODEL, "--fail-on", "never").returncode == 0
    for size in (8, 16):
        (tmp_path / f"{size}.yaml").write_text(f"max_batch_size: {size}\n")
    limits = (str(tmp_path / "8.yaml"), "--against", str(tmp_path / "16.yaml"))
    assert inspect(*limits).returncode == 0
    assert inspect(*limits, "--fail-on", "note").returncode == 1


@pytest.mark.heavy
def test_an_option_is_one_fact_however_it_is_spelled(inspect, tmp_path):
    (tmp_path / "options.yaml").write_text("max_batch_size: 8\ntensor_parallel_size: 2\n")
    done = inspect(
        "--command", "trtllm-serve org/name --max_batch_size 16 --tp_size 2",
        "--against", str(tmp_path / "options.yaml"), "--json",
    )  # fmt: skip
    [section] = msgspec.json.decode(done.stdout, type=Report).sections
    assert [row[0] for row in section.rows] == ["max_batch_size"]


@pytest.mark.heavy
def test_a_model_shows_its_tensors_and_what_has_none_says_so(inspect, tmp_path):
    model = inspect(MODEL, "--show", "tensors")
    assert "model.layers.{0.." in model.stdout
    (tmp_path / "options.yaml").write_text("max_batch_size: 8\n")
    assert "Nothing that was given has any" in inspect(str(tmp_path / "options.yaml"), "--show", "tensors").stdout


@pytest.mark.heavy
@pytest.mark.parametrize("section", ["tensors", "profiles", "settings", "mapping", "debug", "facts", "all"])
def test_sections_are_shown_on_request(inspect, section):
    done = inspect(ENGINE, "--show", section)
    assert done.returncode == 0
    assert len(done.stdout) > len(inspect(ENGINE).stdout)


@pytest.mark.heavy
def test_markdown_has_tables(inspect):
    assert "| --- | --- |" in inspect(ENGINE, "--markdown").stdout


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("no/such/path",), "there is nothing at no/such/path"),
        ((), "name an artifact"),
        ((ENGINE, "--request", "batches=8"), "batch"),
        ((ENGINE, "--gpu", "H1000"), "H100"),
        (("README.md",), "It was looked for"),
        ((ENGINE, "--requests", "README.md"), "there is no request in README.md"),
    ],
)
def test_what_cannot_be_done_is_said_with_status_2(inspect, args, words):
    done = inspect(*args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_a_pipe_in_place_of_a_file_is_not_waited_for(inspect, tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    assert inspect(str(tmp_path / "model.onnx")).returncode == 2


@pytest.mark.heavy
def test_reading_imports_nothing_heavy():
    code = (
        "import sys; from trtdx.cli.main import app\n"
        f"try: app(['inspect', {MODEL!r}, {ENGINE!r}])\nexcept SystemExit: pass\n"
        "print('MODULES', *sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split("MODULES", 1)[1].split())
    assert loaded & {"torch", "onnx", "numpy", "transformers", "tensorrt_rtx", "safetensors"} == set()
