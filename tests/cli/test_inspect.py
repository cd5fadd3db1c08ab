"""`trtdx inspect` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from trtdx.model import Report

ROOT = Path(__file__).parent.parent.parent
MODEL, ENGINE = "examples/deployment/model", "examples/deployment/engine"


@pytest.fixture
def inspect(trtdx):
    return lambda *args, **kwargs: trtdx("inspect", *args, cwd=ROOT, **kwargs)


def test_findings_come_after_the_overview_and_decide_the_exit_status(inspect):
    done = inspect(MODEL, ENGINE)
    assert done.returncode == 1
    assert done.stdout.index("TensorRT-LLM engine directory") < done.stdout.index("error[DX471]")
    assert inspect(ENGINE).returncode == 0
    assert inspect(MODEL, ENGINE, "--fail-on", "never").returncode == 0


def test_a_request_is_answered_with_the_flags_that_would_do(inspect):
    done = inspect(ENGINE, "--request", "batch=8,input_len=9000,output_len=512")
    assert done.returncode == 1
    assert (
        "error[DX270]: a prompt of 9000 tokens is longer than the 8191 tokens the engine takes" in done.stdout
    )
    assert "--max_seq_len 9512 --max_num_tokens 9000" in done.stdout


def test_json_is_the_report_with_every_shape(inspect):
    done = inspect(ENGINE, "--request", "batch=8,input_len=900,output_len=100", "--json")
    report = msgspec.json.decode(done.stdout, type=Report)
    shapes = next(section for section in report.sections if section.key == "shapes")
    assert len(shapes.rows) > 10
    assert all(row[5] is True for row in shapes.rows)


def test_traffic_is_read_from_json_lines(inspect, tmp_path):
    trace = tmp_path / "traffic.jsonl"
    lines = [{"input_len": 100 + number, "output_len": 50} for number in range(50)]
    trace.write_text("\n".join(json.dumps(line) for line in [*lines, {"input_len": 9000, "output_len": 10}]))
    done = inspect(ENGINE, "--requests", str(trace))
    assert done.returncode == 1
    assert "DX270" in done.stdout


def test_do_i_have_to_rebuild(inspect):
    assert "verdict   no" in inspect(ENGINE, "--runtime", "1.2.1", "--gpu", "L40S").stdout
    other = inspect(ENGINE, "--runtime", "1.0.0", "--gpu", "H100")
    assert "verdict   yes" in other.stdout
    assert "error[DX200]" in other.stdout


def test_what_differs_is_no_failure(inspect):
    done = inspect(ENGINE, "--against", MODEL)
    assert done.returncode == 0
    assert "facts differ" in done.stdout


@pytest.mark.parametrize("section", ["tensors", "profiles", "settings", "mapping", "debug", "facts", "all"])
def test_sections_are_shown_on_request(inspect, section):
    done = inspect(ENGINE, "--show", section)
    assert done.returncode == 0
    assert len(done.stdout) > len(inspect(ENGINE).stdout)


def test_markdown_has_tables(inspect):
    assert "| --- | --- |" in inspect(ENGINE, "--markdown").stdout


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


def test_a_pipe_in_place_of_a_file_is_not_waited_for(inspect, tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    assert inspect(str(tmp_path / "model.onnx")).returncode == 2


def test_reading_imports_nothing_heavy():
    code = (
        "import sys; from trtdx.cli.main import app\n"
        f"try: app(['inspect', {MODEL!r}, {ENGINE!r}])\nexcept SystemExit: pass\n"
        "print('MODULES', *sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split("MODULES", 1)[1].split())
    assert loaded & {"torch", "onnx", "numpy", "transformers", "tensorrt_rtx", "safetensors"} == set()
