"""Do I have to rebuild? Yes or no, with the reason."""

from __future__ import annotations

import json
import os

import pytest

from support.make_engine import make_engine, plan_bytes
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.agreements.engine import machine as machine_agreements
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.machine import machine_from_flags
from trtdx.inspect.readers.engine.engine_folder import READER
from trtdx.inspect.rebuild.verdict import rebuild_section


def answer(path, runtime="", gpu=""):
    section = rebuild_section(READER.read(RealHost(), str(path)), machine_from_flags(runtime=runtime, gpu=gpu))
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


@pytest.mark.parametrize(
    ("built", "runtime", "verdict"),
    [
        ("1.2.0rc6", "1.2.1", "yes"),
        ("1.2.0rc6", "1.2.0", "yes"),
        ("1.2.0rc6", "1.2.0rc6", "no"),
        ("1.2.0rc6", "1.2.0rc6.post1", "no"),
    ],
)
def test_a_pre_release_is_no_patch_of_what_follows(tmp_path, built, runtime, verdict):
    section = rebuild_section(
        READER.read(RealHost(), str(make_engine(tmp_path, built))), machine_from_flags(runtime=runtime)
    )
    assert next(row[1] for row in section.rows if row[0] == "release") == verdict


OLDER = {"use_paged_context_fmha": None, "use_context_fmha_for_generation": None}
OLDEST = OLDER | {"lora_plugin": None, "multi_block_mode": None}


@pytest.mark.parametrize(
    ("version", "keys", "runtime", "verdict", "words"),
    [
        ("0.5.0", OLDEST, "0.5.0", "no", ""),
        ("0.6.1", OLDER, "0.6.1", "no", ""),
        ("0.6.1", OLDEST, "0.6.1", "no", ""),
        ("0.7.1", {}, "0.7.1", "no", ""),
        ("0.7.1", {}, "0.7.0", "no", ""),
        ("0.6.1", OLDER, "0.7.1", "yes", "demands plugin_config.use_paged_context_fmha"),
        ("0.7.1", {}, "0.6.1", "yes", "by its keys and plans 0.7.1 built it"),
        ("0.5.0", OLDEST, "0.7.1", "yes", "TensorRT 9.1.0.4 wrote the plans"),
        ("0.7.1", {}, "0.8.0", "yes", "before 0.8"),
    ],
)
def test_an_engine_that_states_no_release_is_told_by_its_keys_and_plans(
    tmp_path, version, keys, runtime, verdict, words
):
    make_engine(tmp_path, version)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in keys:
        config["plugin_config"].pop(key, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    told, reason = answer(tmp_path, runtime, "L40S")
    if runtime == "0.7.0":  # TensorRT of 0.7.0 is not in the table
        section = rebuild_section(READER.read(RealHost(), str(tmp_path)), machine_from_flags(runtime=runtime))
        told = next(row[1] for row in section.rows if row[0] == "release")
    assert told == verdict
    assert words in reason


def test_every_plan_must_fit_the_gpu(tmp_path):
    make_engine(tmp_path, tp_size=2, sm=90)
    (tmp_path / "rank1.engine").write_bytes(plan_bytes("10.14.1.48", sm=80))
    verdict, reason = answer(tmp_path, "1.2.1", "H100")
    assert verdict == "yes"
    assert "8.0 and 9.0" in reason


def test_no_plan_wrote_what_no_plan_told(tmp_path):
    make_engine(tmp_path, "0.12.0")
    (tmp_path / "rank0.engine").unlink()
    section = rebuild_section(READER.read(RealHost(), str(tmp_path)), machine_from_flags(runtime="0.16.0"))
    reason = next(row[2] for row in section.rows if row[0] == "TensorRT")
    assert reason == "no plan was read, but 0.12.0 has TensorRT 10.3.0.26, and 10.7.0.23 is to read its plans"


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
    assert verdict == "is not known"
    assert "it must have been built on compute capability 8.9" in reason


@pytest.mark.parametrize(("runtime", "gpu", "named"), [("1.2.1", "", "--gpu"), ("", "L40S", "--runtime")])
def test_what_was_not_said_is_asked_for(tmp_path, runtime, gpu, named):
    verdict, reason = answer(make_engine(tmp_path), runtime, gpu)
    assert verdict == "is not known"
    assert named in reason


def test_a_release_nobody_knows_is_said_so(tmp_path):
    release = "0.13.0.dev2024081300"
    verdict, reason = answer(make_engine(tmp_path, release), release, "L40S")
    assert verdict == "is not known"
    assert "0.13.0 has 10.4.0.26" in reason


def test_the_findings_come_with_the_answer(tmp_path, book):
    engine = READER.read(RealHost(), str(make_engine(tmp_path, "0.12.0", sm=90)))
    machine = machine_from_flags(runtime="1.2.1", gpu="L40S")
    findings = judge_findings(agreements_in(machine_agreements), Deployment((engine, machine)), book)
    assert rebuild_section(engine, machine).rows[0][1] == "yes"
    assert {finding.code for finding in findings} == {"DX200", "DX201"}


def test_nothing_is_found_where_nothing_is_to_be_rebuilt(tmp_path, book):
    engine = READER.read(RealHost(), str(make_engine(tmp_path)))
    machine = machine_from_flags(runtime="1.2.1", gpu="L40S", gpus=1)
    assert judge_findings(agreements_in(machine_agreements), Deployment((engine, machine)), book) == []
