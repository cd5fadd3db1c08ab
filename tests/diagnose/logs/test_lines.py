"""Any bytes become segments that lose nothing and stay bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtdx.diagnose.logs.lines import CONTEXT_BYTES, MAX_LINE_BYTES, split_segments
from trtdx.formats.streams import BLOCK_BYTES
from trtdx.redact import redact_secrets


def joined(blocks):
    return b"".join(segment.data[segment.start : segment.end] for segment in split_segments(blocks))


def cut(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(
    st.binary(max_size=2000).filter(
        lambda data: (
            b"\0" not in data
            and b"\x1b" not in data
            and not data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf"))
        )
    ),
    st.integers(1, 700),
)
def test_segments_joined_are_the_input(data, size):
    assert joined(cut(data, size)) == data


def test_big_input_comes_in_bounded_segments_with_right_line_numbers():
    data = b"".join(b"line %d\n" % number for number in range(400_000))
    parts = list(split_segments(cut(data, BLOCK_BYTES)))
    assert len(parts) > 2
    for part in parts:
        assert len(part.data) <= BLOCK_BYTES + 3 * CONTEXT_BYTES
        begin, end = part.line_at(part.start)
        number = part.number_at(part.start)
        assert part.data[begin:end] == b"line %d" % (number - 1)


def test_a_line_of_100_megabytes_stays_bounded():
    parts = list(split_segments(b"x" * BLOCK_BYTES for _ in range(100)))
    assert max(len(part.data) for part in parts) <= BLOCK_BYTES + 3 * CONTEXT_BYTES
    begin, end = parts[3].line_at(parts[3].start + 500_000)
    assert end - begin <= 16384


def test_colours_and_nulls_are_taken_out_even_across_block_borders():
    data = b"\x1b[31m[TensorRT-LLM]\x1b[0m[ERROR] bo\0om\x1b]8;;http://x\x07link\x1b]8;;\x07\n"
    for size in (1, 2, 3, 5, 1000):
        assert joined(cut(data, size)) == b"[TensorRT-LLM][ERROR] boomlink\n"


def test_utf_16_is_read_with_and_without_a_mark():
    text = "[TensorRT-LLM][ERROR] größer als erlaubt, and some more text to be sure\n"
    assert joined([text.encode("utf-16")]) == text.encode()
    assert joined([text.encode("utf-16-le")]) == text.encode()
    assert joined(cut(text.encode("utf-16-be"), 37)) == text.encode()
    assert joined([b"\xef\xbb\xbf" + text.encode()]) == text.encode()


def test_a_progress_bar_that_redraws_itself_is_many_lines():
    segment = next(split_segments([b"10%\r50%\rRuntimeError: boom\r\nnext\n"]))
    begin, end = segment.line_at(segment.data.index(b"boom"))
    assert segment.data[begin:end] == b"RuntimeError: boom"


def test_a_long_line_is_cut_around_what_was_met_and_its_beginning_is_still_known():
    data = b"first\n[TensorRT-LLM][INFO] " + b"x" * 5000 + b" needle " + b"y" * 5000 + b"\nlast\n"
    (segment,) = split_segments([data])
    begin, end = segment.line_at(data.index(b"needle"))
    assert b"needle" in segment.data[begin:end]
    assert end - begin <= 2 * MAX_LINE_BYTES
    assert segment.head_of_cut(begin).startswith(b"[TensorRT-LLM][INFO] xxx")
    assert segment.head_of_cut(0) == segment.head_of_cut(len(b"first\n")) == b""


def test_a_cut_through_a_secret_leaves_none_of_it():
    for shift in range(40):
        data = b"z" * 4000 + b" token=S3cretS3cretS3cret " + b"x" * (1500 + shift) + b" needle "
        data += b"y" * (1490 + shift) + b" token=S3cretS3cretS3cret " + b"z" * 4000
        (segment,) = split_segments([data])
        begin, end = segment.line_at(data.index(b"needle"))
        assert b"needle" in segment.data[begin:end]
        assert "cretS" not in redact_secrets(segment.data[begin:end].decode())
