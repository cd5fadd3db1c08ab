"""Do I have to rebuild? Yes or no, with the reason."""

from __future__ import annotations

import os

import pytest
from make_engine import make_engine

from trtdx.host import RealHost
from trtdx.inspect.machine import machine_from
from trtdx.inspect.readers.engine import READER
from trtdx.inspect.rebuild import rebuild_answer, rebuild_section


def answer(path, runtime="", gpu=""):
    section = rebuild_section(READER.read(RealHost(), str(path)), machine_from(runtime=runtime, gpu=gpu))
    assert section.key == "rebuild"
    assert section.rows[0][0] == "verdict"
    return section.rows[0][1], section.rows[0][2]


def test_the_same_release_and_gpu_need_no_rebuild(tmp_path):
    verdict, reason = answer(make_engine(tmp_path), "1.2.1", "L40S")
    assert verdict == "no"
    assert "release" in reason
    assert "GPU" in reason


@pytest.mark.parametrize(
    ("version", "runtime", "gpu", "words"),
    [
        ("0.12.0", "1.2.1", "L40S", "TensorRT 10.3.0.26 wrote the plans and 10.14.1.48 is to read them"),
        ("0.21.0", "1.0.0", "L40S", "0.21.0 built it and 1.0.0 is to run it"),
        ("1.2.1", "1.3.0rc21", "L40S", "runs no engines"),
        ("1.2.1", "1.2.1", "H100", "built on compute capability 8.9, and this GPU has 9.0"),
        ("0.7.1", "0.8.0", "L40S", "before 0.8"),
        ("1.2.1", "", "H100", "this GPU has 9.0"),
        ("1.2.1", "1.0.0", "", "TensorRT 10.14.1.48 wrote the plans"),
        ("1.2.1", "1.2.1", "V100", "no kernels for this GPU"),
    ],
)
def test_what_differs_is_the_reason(tmp_path, version, runtime, gpu, words):
    verdict, reason = answer(make_engine(tmp_path, version), runtime, gpu)
    assert verdict == "yes"
    assert words in reason


def test_a_patch_release_needs_none(tmp_path):
    assert answer(make_engine(tmp_path, "1.2.0"), "1.2.1", "L40S")[0] == "no"


def test_a_quantisation_the_gpu_cannot_compute_goes_before_the_rest(tmp_path):
    engine = make_engine(tmp_path, quantization={"quant_algo": "FP8"})
    verdict, reason = answer(engine, "1.2.1", "A100")
    assert verdict == "yes"
    assert "quantise the model otherwise" in reason


def test_an_engine_that_is_not_whole_is_built_again(tmp_path):
    make_engine(tmp_path)
    os.truncate(tmp_path / "rank0.engine", 2000)
    verdict, reason = answer(tmp_path, "1.2.1", "L40S")
    assert verdict == "yes"
    assert "rank0.engine" in reason


def test_a_plan_that_does_not_tell_its_gpu_leaves_it_open(tmp_path):
    verdict, reason = answer(make_engine(tmp_path, sm=99), "1.2.1", "L40S")
    assert verdict == "cannot be told"
    assert "it must have been built on compute capability 8.9" in reason


@pytest.mark.parametrize(("runtime", "gpu", "named"), [("1.2.1", "", "--gpu"), ("", "L40S", "--runtime")])
def test_what_was_not_said_is_asked_for(tmp_path, runtime, gpu, named):
    verdict, reason = answer(make_engine(tmp_path), runtime, gpu)
    assert verdict == "cannot be told"
    assert named in reason


def test_a_release_nobody_knows_is_said_so(tmp_path):
    verdict, reason = answer(make_engine(tmp_path, "0.13.0"), "0.13.0.dev2024081300", "L40S")
    assert verdict == "cannot be told"
    assert "0.13.0 has 10.4.0.26" in reason


def test_the_findings_come_with_the_answer(tmp_path, book):
    engine = READER.read(RealHost(), str(make_engine(tmp_path, "0.12.0", sm=90)))
    section, findings = rebuild_answer(engine, machine_from(runtime="1.2.1", gpu="L40S"), book)
    assert section.rows[0][1] == "yes"
    assert {finding.code for finding in findings} == {"DX200", "DX201"}


def test_nothing_is_found_where_nothing_is_to_be_rebuilt(tmp_path, book):
    engine = READER.read(RealHost(), str(make_engine(tmp_path)))
    assert rebuild_answer(engine, machine_from(runtime="1.2.1", gpu="L40S", gpus=1), book)[1] == []
