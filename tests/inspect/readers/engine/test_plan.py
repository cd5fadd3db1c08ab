"""One plan file: what its header says, and what a file that is no plan is."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from importlib.util import find_spec

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.make_engine import old_plan_bytes, plan_bytes
from support.make_hf import write_safetensors
from trtdx.formats.tensorrt.plan_header import parse_plan_header, read_plan_header
from trtdx.host import RealHost
from trtdx.inspect.readers import probe_path
from trtdx.inspect.readers.engine.plan import READER

HOST = RealHost()


@pytest.fixture
def plan(tmp_path):
    """Write bytes to a file and read it as a plan."""

    def read(data: bytes, name: str = "model.plan"):
        path = tmp_path / name
        path.write_bytes(data)
        assert READER.recognise(HOST, probe_path(HOST, str(path)))
        return READER.read(HOST, str(path))

    return read


def values(artifact):
    return {name: fact.value for name, fact in artifact.facts.items()}


def test_a_plan_says_product_release_length_and_gpu(plan):
    artifact = plan(plan_bytes("10.14.1.48", sm=90))
    assert artifact.kind == "plan"
    assert values(artifact) == {
        "plan.product": "TensorRT",
        "plan.version": "10.14.1.48",
        "plan.versions": ["10.14.1.48"],
        "plan.bytes": 4096,
        "plan.stated_bytes": 4096,
        "plan.sms": [90],
        "tensorrt": "10.14.1.48",
    }
    assert artifact.facts["plan.version"].where.endswith("model.plan: bytes 24 to 27")


def test_a_plan_of_tensorrt_rtx_is_no_plan_of_tensorrt(plan):
    artifact = plan(plan_bytes("1.7.1.116", "tensorrt-rtx", sm=120))
    assert artifact.text("plan.product") == "TensorRT-RTX"
    assert artifact.text("plan.version") == "1.7.1.116"
    assert artifact.items("plan.sms") == [120]
    assert not artifact.has("tensorrt")


@pytest.mark.parametrize("layout", ["8.6", "10.9"])
@pytest.mark.parametrize("sm", [70, 75, 80, 86, 87, 89, 90, 100, 103, 120, 121])
def test_the_gpu_is_read_from_both_layouts(layout, sm):
    assert parse_plan_header(plan_bytes("10.6.0.26", sm=sm, layout=layout), 4096).sms == (sm,)


def test_properties_that_cannot_be_a_gpus_are_not_believed():
    unknown, clockless = bytearray(plan_bytes(sm=89)), bytearray(plan_bytes(sm=89))
    at = unknown.index(struct.pack("<I", 2_520_000))
    clockless[at : at + 4] = bytes(4)
    assert parse_plan_header(bytes(clockless), 4096).sms == ()
    assert parse_plan_header(plan_bytes(sm=99), 4096).sms == ()


def test_a_plan_before_8_6_has_no_header_of_its_own(plan):
    artifact = plan(old_plan_bytes("8.2.1.8", sm=86))
    assert artifact.text("plan.version") == "8.2.1.8"
    assert artifact.get("plan.stated_bytes") == 4096
    assert not artifact.has("plan.truncated")


@pytest.mark.parametrize(
    ("data", "fact", "words"),
    [
        (plan_bytes()[:1000], "plan.truncated", "model.plan: has 1,000 bytes where its header says 4,096"),
        (
            plan_bytes(product="tensorrt-rtx")[:100],
            "plan.truncated",
            "has 100 bytes where its header says 4,096",
        ),
        (plan_bytes()[:27], "plan.truncated", "has 27 bytes, too few for a plan's header"),
        (old_plan_bytes()[:-1], "plan.truncated", "has 4,095 bytes where its header says 4,096"),
        (plan_bytes() + b"more", "plan.overlong", "something was appended"),
        (b"", "plan.foreign", "is empty"),
        (bytes(4096), "plan.foreign", "holds only zeros"),
        (b"\x08\x0a\x12\x07pytorch", "plan.foreign", "is an ONNX model"),
        (b"PK\x03\x04rest", "plan.foreign", "is a PyTorch file (a zip archive)"),
        (b"<!DOCTYPE html><html>", "plan.foreign", "is a web page"),
        (b"something else altogether", "plan.foreign", "does not begin with a plan's tag"),
        (b"version https://git-lfs.github.com/spec/v1\n", "weights.lfs_pointers", "model.plan"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_fact(plan, data, fact, words):
    artifact = plan(data)
    assert [name for name in FAULTS if artifact.has(name)] == [fact]
    assert words in artifact.items(fact)[0]


FAULTS = ("plan.truncated", "plan.overlong", "plan.foreign", "weights.lfs_pointers")


def test_a_safetensors_file_named_engine_is_told(tmp_path):
    write_safetensors(tmp_path / "rank0.engine", {"weight": ("F16", (4, 4))})
    assert read_plan_header(HOST, str(tmp_path / "rank0.engine")).problem == "is a safetensors file"


def test_the_metadata_that_ultralytics_writes_before_a_plan_is_told():
    metadata = json.dumps({"description": "Ultralytics YOLO"}).encode()
    data = struct.pack("<I", len(metadata)) + metadata + plan_bytes()
    assert "Ultralytics" in parse_plan_header(data, len(data)).problem


def test_a_header_of_an_unknown_format_is_not_interpreted():
    data = bytearray(plan_bytes())
    data[4] = 1
    header = parse_plan_header(bytes(data), 10)
    assert (header.product, header.version, header.stated_bytes) == ("TensorRT", "", None)


def test_ten_gigabytes_cost_a_header(tmp_path):
    path = tmp_path / "rank0.engine"
    start = bytearray(plan_bytes())
    start[16:24] = struct.pack("<Q", 10 << 30)
    path.write_bytes(start)
    os.truncate(path, 10 << 30)
    header = read_plan_header(HOST, str(path))
    assert (header.bytes, header.stated_bytes, header.fault) == (10 << 30, 10 << 30, "")


def test_a_file_that_vanished_or_cannot_be_opened_is_noted(tmp_path):
    assert read_plan_header(HOST, str(tmp_path / "gone.engine")).fault == "unreadable"
    artifact = READER.read(HOST, str(tmp_path / "gone.engine"))
    assert artifact.facts == {}
    assert artifact.unread


def test_directories_and_other_files_are_left_to_other_readers(tmp_path):
    (tmp_path / "notes.txt").write_text("ftr")
    assert not READER.recognise(HOST, probe_path(HOST, str(tmp_path)))
    assert not READER.recognise(HOST, probe_path(HOST, str(tmp_path / "notes.txt")))


@given(st.binary(max_size=400), st.integers(0, 2**63), st.sampled_from([b"", b"ftrt", b"vtrt", b"ptrt"]))
@example(plan_bytes()[4:200], 4096, b"ftrt")
def test_no_bytes_make_it_raise(data, size, tag):
    header = parse_plan_header(tag + data, size)
    assert header.bytes == size
    assert bool(header.fault) == bool(header.problem)


BUILD = """
import sys
import numpy as np
import tensorrt_rtx as trt
class Quiet(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
    def log(self, severity, message):
        pass
logger = Quiet()
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
x = network.add_input("x", trt.float16, (-1, 64))
weights = network.add_constant((64, 64), trt.Weights(np.ones((64, 64), np.float16)))
none = trt.MatrixOperation.NONE
y = network.add_matrix_multiply(x, none, weights.get_output(0), none).get_output(0)
network.mark_output(y)
config = builder.create_builder_config()
profile = builder.create_optimization_profile()
profile.set_shape("x", (1, 64), (2, 64), (4, 64))
config.add_optimization_profile(profile)
targets = sys.argv[2:]
config.num_compute_capabilities = len(targets)
for at, name in enumerate(targets):
    config.set_compute_capability(getattr(trt.ComputeCapability, name), at)
open(sys.argv[1], "wb").write(bytes(builder.build_serialized_network(network, config)))
print(trt.__version__)
"""


@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="tensorrt_rtx is not installed")
@pytest.mark.parametrize("targets", [("SM89",), ("SM80", "SM120")])
def test_a_plan_that_tensorrt_rtx_built_is_read_as_it_is(tmp_path, targets):
    path = tmp_path / "real.plan"
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(path), *targets],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    header = read_plan_header(HOST, str(path))
    assert header.version == done.stdout.split()[-1]
    assert header.product == "TensorRT-RTX"
    assert header.stated_bytes == header.bytes == path.stat().st_size
    assert header.sms == tuple(int(name[2:]) for name in targets)
    path.write_bytes(path.read_bytes()[:-1])
    assert read_plan_header(HOST, str(path)).fault == "truncated"
