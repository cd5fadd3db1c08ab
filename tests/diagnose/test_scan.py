"""Both scanners find exactly what a plain search finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.diagnose import scan
from trtdx.knowledge.literals import fold_case

_kernel = pytest.importorskip("trtdx._kernel", reason="the C kernel was not built: no compiler here")

TEXTS = st.lists(
    st.text(alphabet="abAB_ 1*", min_size=8, max_size=14).map(str.encode),
    min_size=1,
    max_size=20,
    unique=True,
)
DATA = st.lists(
    st.sampled_from([b"a", b"b", b"A", b"_", b" ", b"1", b"*", b"\n", b"abAB_ 1a", b"aaaaaaaa"]), max_size=200
).map(b"".join)


def expected(texts, data):
    folded = fold_case(data)
    return sorted(
        (at, number)
        for number, text in enumerate(texts)
        for at in range(len(data))
        if folded.startswith(fold_case(text), at)
    )


@pytest.mark.heavy
@settings(max_examples=300)
@given(TEXTS, DATA, st.integers(0, 30))
def test_scanners_agree_with_a_plain_search(texts, data, cut):
    muted = bytearray(len(texts))
    for scanner in (scan.KernelScanner(texts), scan.PythonScanner(texts)):
        assert sorted(scanner.find_hits(data, 0, len(data), muted)) == expected(texts, data)
    middle = min(cut, len(data))
    kernel = scan.KernelScanner(texts)
    inside = [(at, n) for at, n in expected(texts, data) if at >= middle]
    assert [hit for hit in sorted(kernel.find_hits(data, middle, len(data), muted)) if hit[0] >= middle] == inside


def test_texts_of_a_rule_are_found_whatever_their_case_and_place():
    texts = [f"text number {number} of many".encode() for number in range(5000)]
    scanner = scan.make_scanner(texts)
    for pad in range(16):
        data = b"x" * pad + b"TEXT Number 4321 OF MANY" + b"y" * (16 - pad)
        assert (pad, 4321) in list(scanner.find_hits(data, 0, len(data), bytearray(len(texts))))


def test_two_threads_find_what_one_finds(monkeypatch):
    texts = [b"text number %d of many" % number for number in range(50)]
    data = b"".join(b"%d filler " % (number % 977) + texts[number % 50] * (number % 5 == 0) for number in range(40_000))
    one = list(scan.KernelScanner(texts).find_hits(data, 0, len(data), bytearray(50)))
    monkeypatch.setattr(scan, "_TWO_THREADS_BYTES", 1 << 40)
    assert list(scan.KernelScanner(texts).find_hits(data, 0, len(data), bytearray(50))) == one
    assert sorted(one) == expected_fast(texts, data)


def expected_fast(texts, data):
    import re

    return sorted(
        (found.start(), number) for number, text in enumerate(texts) for found in re.finditer(b"(?=%s)" % text, data)
    )


def test_a_muted_text_is_no_longer_reported():
    texts = [b"illegal memory access", b"something else"]
    for scanner in (scan.KernelScanner(texts), scan.PythonScanner(texts)):
        muted = bytearray([1, 0])
        data = b"illegal memory access, something else, illegal memory access"
        assert [number for _, number in scanner.find_hits(data, 0, len(data), muted)] == [1]


@given(st.binary(max_size=500))
def test_newlines_are_counted(data):
    assert scan.count_newlines(data, 0, len(data)) == data.count(b"\n")


def test_the_kernel_refuses_arguments_that_do_not_fit():
    table = _kernel.build([(b"illegal memory access", 0)])
    for arguments in (
        (table[:-1], b"x", 0, 1, bytearray(1), 999),
        (b"", b"x", 0, 1, bytearray(1), 999),
        (table, b"x", 0, 5, bytearray(1), 999),
        (table, b"x", 0, 1, bytearray(0), 999),
        (table, b"x", 0, 1, bytearray(1), 9),
    ):
        with pytest.raises(ValueError, match="fit"):
            _kernel.scan(*arguments)
    with pytest.raises(ValueError, match="window"):
        _kernel.build([(b"short", 0)])
