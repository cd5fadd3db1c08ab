"""Files are read within bounds, and what cannot be read has a reason in words."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.formats.documents import UnreadableError, parse_json, read_file_bytes, read_json, read_range
from trtdx.host import RealHost, RecordedHost


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"   \n", "is empty"),
        (b"[1, 2]", "holds a list, not an object"),
        (b'{"a": ', "is not JSON"),
        (b"\x00\x01\x02", "is not JSON"),
        (b'{"a": "\xff\xfe"}', "is not JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "is a Git-LFS pointer"),
        (b'{"a":' + b"[" * 200_000, "is nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(data, reason):
    with pytest.raises(UnreadableError, match=reason):
        parse_json(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1}',
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        b'{ // a comment, as TensorRT-LLM tolerates it\n "a": /* so */ 1}',
    ],
)
def test_what_tensorrt_llm_reads_is_read(data):
    assert parse_json(data) == {"a": 1}


def test_comment_marks_inside_texts_stay():
    assert parse_json(b'{"url": "http://x/y", /* c */ "b": "/* no */"}') == {
        "url": "http://x/y",
        "b": "/* no */",
    }


@given(st.binary(max_size=400))
def test_any_bytes_give_a_document_or_a_reason(data):
    with contextlib.suppress(UnreadableError):
        assert isinstance(parse_json(data), dict)


def test_a_document_knows_the_place_of_each_value():
    document = read_json(
        RecordedHost({"engine/config.json": b'{"build_config": {"max_batch_size": 8}}'}), "engine/config.json"
    )
    assert document.value_at("build_config.max_batch_size") == 8
    assert document.place_of("build_config.max_batch_size") == "engine/config.json: build_config.max_batch_size"
    assert document.value_at("build_config.max_batch_size.deeper") is None


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(UnreadableError, match="is larger than"):
        read_file_bytes(RealHost(), str(tmp_path / "config.json"), 1 << 20)


def test_a_file_that_vanished_has_a_reason(tmp_path):
    with pytest.raises(UnreadableError, match="No such file"):
        read_range(RealHost(), str(tmp_path / "gone.json"), 0, 10)


def test_a_part_of_a_file_is_read_alone():
    assert read_range(RecordedHost({"a": b"0123456789"}), "a", 4, 3) == b"456"
    assert read_range(RecordedHost({"a": b"0123456789"}), "a", 8, 30) == b"89"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UnreadableError, match="not a regular file"):
        read_json(RealHost(), str(tmp_path / "config.json"))
