"""Protobuf messages are walked by their headers: what is stepped over is never read."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.make_onnx import span, varint
from trtdx.formats.protobuf_wire import (
    FIXED32,
    FIXED64,
    LENGTH_DELIMITED,
    VARINT,
    WireError,
    WireLimitError,
    WireStream,
    int64_from_varint,
    iter_fields,
    unpack_varints,
)


class Counted(io.BytesIO):
    """A stream that counts what is read, in short reads as a raw file may give them."""

    taken = 0

    def read(self, size=-1):
        data = super().read(min(size, 1000))
        self.taken += len(data)
        return data


def source(data, **limits):
    return WireStream(Counted(data), len(data), **limits)


def walked(data, **options):
    return list(iter_fields(source(data), 0, len(data), **options))


def test_every_kind_of_field():
    data = b"\x08\x96\x01" + b"\x11" + bytes(8) + span(3, b"abc") + b"\x25" + bytes(4)
    assert walked(data) == [
        (1, VARINT, 150, 0),
        (2, FIXED64, 4, 12),
        (3, LENGTH_DELIMITED, 14, 17),
        (4, FIXED32, 18, 22),
    ]


def test_a_span_gives_its_bytes_and_text():
    data = span(1, "größe".encode()) + b"\x10\x01"
    walker = source(data)
    (_, _, start, end), *_ = iter_fields(walker, 0, len(data))
    assert walker.read_text(start, end) == "größe"


def test_large_fields_are_stepped_over():
    data = b"".join(span(number, bytes(1 << 20)) for number in range(1, 21))
    stream = Counted(data)
    assert [number for number, *_ in iter_fields(WireStream(stream, len(data)), 0, len(data))] == list(range(1, 21))
    assert stream.taken < 20 * 8192


def test_small_fields_are_read_in_large_pieces():
    data = span(1, b"x" * 50) * 20_000
    reads = []
    stream = Counted(data)
    seek = stream.seek
    stream.seek = lambda at: reads.append(at) or seek(at)
    assert sum(1 for _ in iter_fields(WireStream(stream, len(data)), 0, len(data))) == 20_000
    assert len(reads) < 20


def test_nested_messages_share_the_buffer():
    inner = span(1, b"a") + span(2, b"b" * 9000) + span(3, b"c")
    data = (span(1, inner) + span(2, b"after")) * 50
    walker = source(data)
    seen = [
        (
            number,
            [walker.read(x, y)[:1] for _, _, x, y in iter_fields(walker, start, end)]
            if number == 1
            else walker.read(start, end),
        )
        for number, _, start, end in iter_fields(walker, 0, len(data))
    ]
    assert seen == [(1, [b"a", b"b", b"c"]), (2, b"after")] * 50


@pytest.mark.parametrize(
    ("data", "truncated"),
    [
        (span(1, b"", says=5), True),
        (span(1, b"", says=2**63), True),
        (b"\x08", True),
        (b"\x08\x80", True),
        (b"\x11" + bytes(3), True),
        (b"\x00\x00", False),
        (b"\x0b", False),
        (b"\x0c", False),
        (b"\x0e", False),
        (b"\x08" + b"\xff" * 11, False),
        (b"\xff" * 11, False),
    ],
)
def test_what_is_no_message_is_told(data, truncated):
    with pytest.raises(WireError) as told:
        walked(data)
    assert told.value.is_truncated is truncated
    assert told.value.offset == 0


def test_a_field_longer_than_its_message():
    data = span(1, span(2, b"", says=5)) + bytes(20)
    walker = source(data)
    (_, _, start, end) = next(iter_fields(walker, 0, len(data)))
    with pytest.raises(WireError, match="longer than what it is part of"):
        list(iter_fields(walker, start, end))


def test_a_cut_off_field_can_be_had_as_far_as_it_goes():
    data = span(1, b"abc", says=10)
    found = []
    with pytest.raises(WireError):
        found += iter_fields(source(data), 0, len(data))
    clipped = iter_fields(source(data), 0, len(data), clip=True)
    assert next(clipped) == (1, LENGTH_DELIMITED, 2, 5)
    with pytest.raises(WireError):
        next(clipped)


def test_the_allowance_ends_a_walk():
    data = b"\x08\x01" * 100
    with pytest.raises(WireLimitError):
        list(iter_fields(source(data, most_fields=50), 0, len(data)))
    with pytest.raises(WireLimitError):
        list(iter_fields(source(data, most_bytes=50), 0, len(data)))


@given(st.integers(0, 2**64 - 1))
def test_numbers_survive(value):
    assert walked(b"\x08" + varint(value)) == [(1, VARINT, value, 0)]


@given(st.integers(-(2**63), 2**63 - 1))
def test_negative_numbers_survive(value):
    assert int64_from_varint(value % 2**64) == value


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_packed_numbers_survive(values):
    assert unpack_varints(b"".join(map(varint, values)), 100) == values


@given(st.lists(st.tuples(st.integers(1, 500), st.binary(max_size=300)), max_size=20))
def test_spans_survive(parts):
    data = b"".join(span(number, payload) for number, payload in parts)
    walker = source(data)
    assert [(number, walker.read(start, end)) for number, _, start, end in iter_fields(walker, 0, len(data))] == parts


@given(st.binary(max_size=200))
def test_any_bytes_end_in_fields_or_a_reason(data):
    at = -1
    try:
        for _, kind, start, end in walked(data):
            assert kind == VARINT or 0 <= start <= end <= len(data)
    except WireError as told:
        at = told.offset
    assert at < max(len(data), 1)
