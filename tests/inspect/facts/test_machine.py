"""The machine a user names: releases and GPUs are understood in every spelling, and refused where they are none."""

from __future__ import annotations

import pytest

from trtdx.errors import InputError, UnknownNameError
from trtdx.inspect.facts.machine import machine_from_flags


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1.2.1", "1.2.1"),
        ("v0.16.0", "0.16.0"),
        ("release:0.16.0", "0.16.0"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.0.0rc4", "1.0.0rc4"),
        ("tensorrt_llm==0.9.0", "0.9.0"),
        ("1.0", "1.0.0"),
        ("0.12", "0.12.0"),
        ("1.3.0rc16+ngcpytorch2602", "1.3.0rc16"),
        ("0.13.0.dev2024081300", "0.13.0.dev2024081300"),
    ],
)
def test_a_release_in_every_spelling(said, meant):
    assert machine_from_flags(runtime=said).text("gpu.runtime") == meant


def test_a_short_release_has_its_tensorrt():
    assert machine_from_flags(runtime="0.12").text("gpu.tensorrt") == "10.3.0.26"


@pytest.mark.parametrize("said", ["latest", "main", "1", "banana", "1..2"])
def test_what_is_no_release_is_refused(said):
    with pytest.raises(InputError) as caught:
        machine_from_flags(runtime=said)
    assert "not a TensorRT-LLM release" in caught.value.message
    assert "1.2.1" in caught.value.fix


@pytest.mark.parametrize(
    ("said", "named"),
    [("24.07", "0.12.0 and 0.13.0 and 0.14.0"), ("24.08", "pip show"), ("25.01-trtllm-python-py3", "0.17.0")],
)
def test_the_tag_of_a_container_is_no_release(said, named):
    with pytest.raises(InputError) as caught:
        machine_from_flags(runtime=said)
    assert "tag of a container" in caught.value.message
    assert named in caught.value.fix


@pytest.mark.parametrize(("said", "sm"), [("8.9", 89), ("sm_120", 120), ("L40S", 89), ("NVIDIA H100 80GB", 90)])
def test_a_gpu_in_every_spelling(said, sm):
    assert machine_from_flags(gpu=said).integer("gpu.sm") == sm


@pytest.mark.parametrize(("said", "meant"), [("rtx 6000", "RTX 6000 Ada"), ("l40x", "L40S"), ("sm999", "SM")])
def test_a_gpu_nobody_knows_is_refused(said, meant):
    with pytest.raises(UnknownNameError) as caught:
        machine_from_flags(gpu=said)
    assert meant in caught.value.fix
