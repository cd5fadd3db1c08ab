"""A safetensors header is read without its weights, and judged as the safetensors library judges it."""

from __future__ import annotations

import json
import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_hf import write_safetensors
from trtdx.errors import InputError
from trtdx.formats.safetensors import (
    CORRUPT,
    LFS_POINTER,
    TRUNCATED,
    UNREADABLE,
    TensorEntry,
    read_safetensors_header,
)
from trtdx.host import RealHost, RecordedHost

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"


def file_bytes(header, data=b"", *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin, end, dtype="F32", shape=None):
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def header_of(data):
    return read_safetensors_header(RecordedHost({"m/model.safetensors": data}), "m/model.safetensors")


def test_names_types_shapes_and_offsets_are_read(tmp_path):
    write_safetensors(tmp_path / "m.safetensors", {"a": ("BF16", (2, 3)), "b": ("F32", ())}, {"format": "pt"})
    header = read_safetensors_header(RealHost(), str(tmp_path / "m.safetensors"))
    assert header.tensors == {
        "a": TensorEntry("BF16", (2, 3), (0, 12)),
        "b": TensorEntry("F32", (), (12, 16)),
    }
    assert (header.tensors["b"].begin, header.tensors["b"].end, header.tensors["b"].data_bytes) == (12, 16, 4)
    assert header.metadata == {"format": "pt"}
    assert (header.fault, header.problem) == ("", "")


def test_a_file_of_the_real_library_reads_the_same(tmp_path):
    numpy = pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file({"x": numpy.zeros((3, 4), "float16"), "none": numpy.zeros((0, 2))}, tmp_path / "m.safetensors")
    header = read_safetensors_header(RealHost(), str(tmp_path / "m.safetensors"))
    assert not header.fault
    assert {name: (each.dtype, each.shape) for name, each in header.tensors.items()} == {
        "x": ("F16", (3, 4)),
        "none": ("F64", (0, 2)),
    }


FAULTS = {
    "a Git-LFS pointer": (POINTER, LFS_POINTER, "Git-LFS pointer"),
    "an empty file": (b"", TRUNCATED, "is empty"),
    "less than a length": (b"\x01\x02", TRUNCATED, "2 bytes"),
    "a header that claims 2^60 bytes": (file_bytes(b"{}", length=2**60), CORRUPT, "claims a header of 1,152,921,504,606,846,976"),
    "a header of nothing": (file_bytes(b"", b"{}{}{}{}", length=0), CORRUPT, "claims a header of 0 bytes"),
    "the end inside the header": (file_bytes({"a": entry(0, 4)})[:30], TRUNCATED, "ends inside its header"),
    "the end inside the weights": (file_bytes({"a": entry(0, 64)}, bytes(60)), TRUNCATED, "60 bytes of weights where its header says 64"),
    "more than the header says": (file_bytes({"a": entry(0, 64)}, bytes(65)), CORRUPT, "1 bytes more"),
    "tensors that overlap": (file_bytes({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), CORRUPT, "'b' overlap with 'a'"),
    "a gap between tensors": (file_bytes({"a": entry(0, 8), "b": entry(12, 16)}, bytes(16)), CORRUPT, "leaves 4 bytes unused"),
    "a shape that needs more": (file_bytes({"a": entry(0, 8, shape=[3])}, bytes(8)), CORRUPT, "8 bytes where its shape needs 12"),
    "offsets that go back": (file_bytes({"a": entry(8, 4, shape=[1])}, bytes(8)), CORRUPT, "impossible"),
    "an entry without offsets": (file_bytes({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)), CORRUPT, "of 'a'"),
    "an entry that is a number": (file_bytes({"a": 7}, bytes(4)), CORRUPT, "not JSON"),
    "no JSON": (file_bytes(b'{"a": }'), CORRUPT, "not JSON"),
    "a list": (file_bytes(b"[1, 2]"), CORRUPT, "no JSON header"),
    "deep JSON": (file_bytes(b'{"a":' * 50_000 + b"1" + b"}" * 50_000), CORRUPT, ""),
    "a web page": (b"<!DOCTYPE html><html><body>403 Forbidden</body></html>", CORRUPT, "a web page"),
    "a pickle": (b"PK\x03\x04" + bytes(100), CORRUPT, "a PyTorch file"),
    "GGUF": (b"GGUF" + bytes(100), CORRUPT, "a GGUF file"),
    "zeros": (bytes(4096), CORRUPT, "only zeros"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_told(name):
    data, fault, words = FAULTS[name]
    header = header_of(data)
    assert header.fault == fault
    assert words in header.problem


@pytest.mark.parametrize("name", FAULTS)
def test_the_library_refuses_the_same_files(name, tmp_path):
    library = pytest.importorskip("safetensors")
    (tmp_path / "m.safetensors").write_bytes(FAULTS[name][0])
    with pytest.raises((library.SafetensorError, OSError)):
        library.safe_open(tmp_path / "m.safetensors", "np").__enter__()


@pytest.mark.parametrize("length", [0x280, 0x480, 0x4C5A])
def test_a_length_that_looks_like_the_start_of_a_pickle_is_a_length(length):
    text = json.dumps({"a": entry(0, 4)}).encode().ljust(length)
    assert not header_of(file_bytes(text, bytes(4))).fault


def test_an_unknown_dtype_is_told_and_the_rest_is_read():
    header = header_of(file_bytes({"a": entry(0, 4), "b": entry(4, 7, "Q3", [1])}, bytes(7)))
    assert header.unknown_dtypes == ("Q3",)
    assert set(header.tensors) == {"a", "b"}


def test_types_narrower_than_a_byte_count_their_bits():
    assert not header_of(file_bytes({"a": entry(0, 8, "F4", [4, 4])}, bytes(8))).fault


def test_a_shape_of_many_axes_is_refused_quickly():
    header = header_of(file_bytes({"a": entry(0, 4, shape=[9] * 2_000_000)}, bytes(4)))
    assert "impossible" in header.problem


def test_a_header_of_a_million_entries_is_not_unfolded():
    text = b"{" + b",".join(b'"%d":{}' % number for number in range(600_000)) + b"}"
    assert header_of(file_bytes(text)).fault == UNREADABLE


def test_a_file_of_ten_gigabytes_is_read_at_once(tmp_path):
    write_safetensors(tmp_path / "m.safetensors", {"a": ("BF16", (5 << 30,))})
    header = read_safetensors_header(RealHost(), str(tmp_path / "m.safetensors"))
    assert not header.fault
    assert header.file_bytes > 10 << 30


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.safetensors")
    assert read_safetensors_header(RealHost(), str(tmp_path / "m.safetensors")).fault == UNREADABLE


class VanishingHost(RealHost):
    """The file is there when it is asked for, and gone when it is opened or measured."""

    def __init__(self, at):
        self._at = at

    def open(self, path):
        if self._at == "open":
            raise InputError(f"cannot read {path}: Permission denied")
        return super().open(path)

    def size(self, path):
        if self._at == "size":
            raise FileNotFoundError(2, "No such file or directory")
        return super().size(path)


@pytest.mark.parametrize(("at", "words"), [("open", "Permission denied"), ("size", "No such file")])
def test_a_file_that_vanishes_or_is_closed_is_told(tmp_path, at, words):
    write_safetensors(tmp_path / "m.safetensors", {"a": ("BF16", (2,))})
    header = read_safetensors_header(VanishingHost(at), str(tmp_path / "m.safetensors"))
    assert header.fault == UNREADABLE
    assert words in header.problem


numbers = st.integers(-3, 40) | st.sampled_from([2**31, 2**63, 2**70])
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "Q1"]) | st.integers(),
        "shape": st.lists(numbers, max_size=3) | st.text(max_size=2),
        "data_offsets": st.tuples(numbers, numbers) | st.lists(numbers, max_size=3),
    },
)
headers = st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__"]), entries | st.none(), max_size=4)


@settings(deadline=None)
@given(st.binary(max_size=200) | st.builds(file_bytes, headers | st.binary(max_size=60), st.binary(max_size=40)))
def test_any_bytes_are_read_without_an_exception(data):
    header = header_of(data)
    assert bool(header.fault) == bool(header.problem)


@st.composite
def plausible_files(draw):
    """Files that are right but for a small change."""
    tensors, at = {}, 0
    for name in "abc"[: draw(st.integers(1, 3))]:
        dtype, size = draw(st.sampled_from([("F32", 4), ("BF16", 2), ("U8", 1)]))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        length = size
        for axis in shape:
            length *= axis
        begin = at + draw(st.sampled_from([0, 0, 0, 0, 0, 1, -1]))
        tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [max(begin, 0), at + length]}
        at += length
    extra = draw(st.sampled_from([0, 0, 0, 1, -1]))
    return file_bytes(tensors, bytes(max(at + extra, 0)))


@settings(max_examples=200, deadline=None)
@given(plausible_files())
def test_a_file_is_sound_exactly_where_the_library_opens_it(data):
    library = pytest.importorskip("safetensors")
    try:
        library.deserialize(data)
        opens = True
    except library.SafetensorError:
        opens = False
    assert (not header_of(data).fault) == opens
