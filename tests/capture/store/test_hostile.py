"""Captures from a stranger: nothing in them is believed before it is checked."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from trtdx.capture.store import format as disk
from trtdx.capture.store.format import CaptureError, CaptureHeader, TensorLayout
from trtdx.capture.store.reader import Capture, is_capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.tensors.statistics import STATISTICS_STRUCT, source_from_array
from trtdx.tensors.taps import Place

PLACE = Place("model.layers.0.mlp", op="MLP")


def hostile(folder, *frames, magic=disk.INDEX_MAGIC):
    folder.mkdir()
    header = disk.encode_frame(disk.HEADER, msgspec.json.encode(CaptureHeader()))
    (folder / "rank0.index").write_bytes(magic + header + b"".join(frames))
    (folder / "rank0.values").write_bytes(disk.VALUES_MAGIC + bytes(64))
    return folder


def row(*, place=0, layout=0, offset=-1, size=8, count=1):
    head = disk.ROW_HEAD.pack(0, place, layout, offset, size, bytes(16), 0)
    return head + STATISTICS_STRUCT.pack(count, *[0] * 18)


TOLD = disk.encode_places([PLACE]) + disk.encode_layouts([TensorLayout("float64", (1,), "cpu")])


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([disk.encode_frame(disk.ROWS, row())], "never told"),
        ([TOLD, disk.encode_frame(disk.ROWS, row(place=1))], "never told"),
        ([TOLD, disk.encode_frame(disk.ROWS, row(layout=2**32 - 1))], "never told"),
        ([TOLD, disk.encode_frame(disk.ROWS, row()[:-1])], "not whole"),
        ([TOLD, disk.encode_frame(disk.ROWS, row(size=2**63))], "not its shape's"),
        ([TOLD, disk.encode_frame(disk.ROWS, row(count=2))], "not its shape's"),
        ([disk.encode_layouts([TensorLayout("float64", (2**61, 2**61), "cpu")])], "too large"),
        ([disk.encode_layouts([TensorLayout("float64", (-1,), "cpu")])], "impossible"),
        ([disk.encode_layouts([TensorLayout("float64", (1,) * 65, "cpu")])], "impossible"),
        ([disk.encode_layouts([TensorLayout("object", (1,), "cpu")])], "no type is called 'object'"),
        ([disk.encode_places([Place("x" * 5000)])], "too long"),
        ([disk.encode_frame(disk.PLACES, b'[["a", 1]]')], "is damaged"),
        ([disk.encode_places([Place("x", number=-1)])], "is damaged"),
        ([disk.encode_places([Place("x", number=1 << 40)])], "is damaged"),
        ([disk.encode_layouts([TensorLayout("float64", (10**30,), "cpu")])], "is damaged"),
        ([disk.encode_frame(disk.PLACES, b"[" * 100_000)], "is damaged"),
        ([disk.encode_frame(disk.NOTE, b"\xff")], "is damaged"),
        ([b"\xff\xff\xff\xff" + bytes(8)], "is cut off"),
        ([b"\0" * 11], "is cut off"),
    ],
)
def test_hostile_indexes_are_told(tmp_path, frames, message):
    with Capture(hostile(tmp_path / "c", *frames)) as capture:
        assert message in capture.partial[0]
        assert list(capture.records()) == []


@pytest.mark.parametrize("offset", [0, 1, 63, 65, 128, 192, 2**62, 2**63 - 1, -5])
def test_rows_that_point_outside_the_log(tmp_path, offset):
    with Capture(hostile(tmp_path / "c", TOLD, disk.encode_frame(disk.ROWS, row(offset=offset)))) as capture:
        record = next(capture.records())
        assert capture.query("select kept from tensors").rows == [(False,)]
        if offset != 65:  # inside, but where no writer puts anything
            with pytest.raises(CaptureError, match=r"cut off|were not kept"):
                capture.values(record)


def test_a_tensor_that_cannot_be_captured_leaves_no_trace(tmp_path):
    good = source_from_array(np.ones(3))
    with CaptureWriter(tmp_path, CaptureHeader(), parquet=False) as writer:
        writer.add(0, PLACE, good, values=True)
        with pytest.raises(KeyError):
            writer.add(0, PLACE, good._replace(dtype="float7"), values=True)
        writer.add(0, PLACE, good, values=True)
    with Capture(tmp_path) as capture:
        assert [capture.values(each).tolist() for each in capture.records()] == [[1, 1, 1]] * 2
        assert capture.partial == ()


def test_odd_names_can_be_asked_for(tmp_path):
    names = ["nul\0", "new\nline", "\x1b[31m", "é" * 100, "'\"; --", ""]
    with CaptureWriter(tmp_path, CaptureHeader(), parquet=False) as writer:
        for name in names:
            writer.add(0, Place(name, tensor=name), source_from_array(np.ones(1)))
    with Capture(tmp_path) as capture:
        assert [record.place.path for record in capture.records()] == names
        assert [name for (name,) in capture.query("select path from tensors").rows] == names


def test_kinds_of_frames_from_the_future_are_passed_over(tmp_path):
    with Capture(
        hostile(tmp_path / "c", disk.encode_frame(99, b"?"), TOLD, disk.encode_frame(disk.ROWS, row()))
    ) as capture:
        assert len(capture) == 1
    newer = disk.encode_frame(disk.HEADER, msgspec.json.encode(CaptureHeader(schema_version=2)))
    with pytest.raises(CaptureError, match="version 2"):
        Capture(hostile(tmp_path / "d", newer))
    with pytest.raises(CaptureError, match="not the index of a capture"):
        Capture(hostile(tmp_path / "e", magic=b"TRTDXIX9"))


def test_links_pipes_and_folders_are_refused(tmp_path):
    folder = tmp_path / "c"
    with CaptureWriter(folder, CaptureHeader(), parquet=False) as writer:
        writer.add(0, PLACE, source_from_array(np.ones(3)), values=True)
    for name in ("rank0.values", "rank0.index"):
        file = folder / name
        content = file.read_bytes()
        (tmp_path / "secret").write_bytes(content)
        for make in (lambda at: at.symlink_to(tmp_path / "secret"), os.mkfifo, Path.mkdir):
            file.unlink()
            make(file)
            with pytest.raises(CaptureError):
                Capture(folder)
            file.rmdir() if file.is_dir() else file.unlink()
            file.write_bytes(content)
    assert is_capture(folder)
    assert not is_capture(tmp_path)
    assert not is_capture(tmp_path / "absent")
    with pytest.raises(CaptureError, match="holds no capture"):
        Capture(tmp_path)


def test_a_damaged_capture_is_not_resumed(tmp_path):
    damaged = hostile(tmp_path / "damaged", disk.encode_frame(disk.NOTE, b"?"), TOLD)
    before = (damaged / "rank0.index").read_bytes()
    with pytest.raises(CaptureError, match="is damaged"):
        CaptureWriter(damaged, CaptureHeader(), resume=True)
    assert (damaged / "rank0.index").read_bytes() == before  # what a user may still want to look at
