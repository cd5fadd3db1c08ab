from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.capture.goldens.compare import CHANGED, CLOSE, MISSING, NEW, SAME, compare_with_golden
from trtdx.capture.goldens.store import (
    Golden,
    GoldenError,
    GoldenFile,
    choose_stored_values,
    content_key,
    format_goldens,
    golden_from_statistics,
    golden_path,
    parse_goldens,
)
from trtdx.host import RealHost
from trtdx.tensors.closeness import Tolerance, measure_closeness
from trtdx.tensors.statistics import array_statistics

ANY = Tolerance()


def golden(test, arrays, **more):
    tensors = tuple(
        golden_from_statistics(name, 0, array.dtype.name, array.shape, array_statistics(array))
        for name, array in arrays.items()
    )
    told = {"engine": "torch", "versions": {"torch": "2"}, "platform": "linux x86_64", "kernel": "avx2"}
    told |= {"recorded": "2026-01-02 03:04", "made_by": "trtdx 0"} | more
    return Golden(test=test, tensors=tensors, **told)


def key_of(array):
    return content_key(array.dtype.name, array_statistics(array).hash)


def compared(then, now, *, budget=1 << 20, tolerance=ANY):
    values = choose_stored_values({key_of(each): each for each in then.values()}, budget)
    arrays = {key_of(each): each for each in now.values()}
    return compare_with_golden(golden("t", then), values, golden("t", now).tensors, arrays, tolerance)


def outcomes(comparison):
    return {each.tensor.name: each.outcome for each in comparison.verdicts}


@given(
    st.text(),
    st.text(),
    st.lists(st.floats(width=64), max_size=8),
)
def test_what_is_written_is_read_again(test, name, numbers):
    whole = golden(test, {name: np.array(numbers)})
    assert list(parse_goldens(format_goldens("test_a.py", [whole]), "a")) == [whole]


def test_tests_are_sorted_and_tensors_keep_the_order_of_the_datas_flow():
    tensors = {"z": np.ones(1), "a": np.ones(2)}
    text = format_goldens("test_a.py", [golden("test_b", tensors), golden("test_a", tensors)])
    read = list(parse_goldens(text, "a"))
    assert [each.test for each in read] == ["test_a", "test_b"]
    assert [each.name for each in read[0].tensors] == ["z", "a"]


def test_a_damaged_file_is_told_with_its_line():
    text = format_goldens("test_a.py", [golden("test_a", {"a": np.ones(1)})])
    with pytest.raises(GoldenError, match="line 2, is not a line of goldens"):
        list(parse_goldens(text.replace(b'{"test"', b'<<<<<<< HEAD\n{"test"'), "a.jsonl"))
    with pytest.raises(GoldenError, match="newer trtdx"):
        list(parse_goldens(text.replace(b'"goldens":1', b'"goldens":2'), "a.jsonl"))
    with pytest.raises(GoldenError, match="not a file of goldens"):
        list(parse_goldens(text.partition(b"\n")[2], "a.jsonl"))


def test_recording_a_test_again_that_did_not_change_leaves_its_lines_alone(tmp_path):
    module = tmp_path / "test_a.py"
    arrays = {"a": np.arange(3.0)}
    file = GoldenFile(RealHost(), module)
    assert file.update([golden("test_a", arrays)], {}) == ["test_a"]
    before = golden_path(module).read_bytes()
    again = GoldenFile(RealHost(), module)
    assert again.update([golden("test_a", arrays, recorded="2027-01-01 00:00")], {}) == []
    assert golden_path(module).read_bytes() == before


def test_values_of_other_tests_stay_and_those_of_nobody_go(tmp_path):
    module = tmp_path / "test_a.py"
    one, two, three = np.arange(3.0), np.arange(4.0), np.arange(5.0)

    def record(test, array):
        values = choose_stored_values({key_of(array): array})
        GoldenFile(RealHost(), module).update([golden(test, {"a": array})], values)

    record("test_a", one)
    record("test_b", two)
    record("test_a", three)
    values = GoldenFile(RealHost(), module).values
    assert sorted(each.elements for each in values.values()) == [4, 5]
    GoldenFile(RealHost(), module).update([], {}, drop=["test_a", "test_b"])
    assert list(Path(tmp_path / "__trtdx__").iterdir()) == []


def test_each_tensor_is_same_close_changed_missing_or_new():
    then = {name: np.arange(4, dtype=np.float32) for name in ("same", "close", "changed", "gone", "shape")}
    now = dict(then, more=np.ones(1), close=then["close"] + 1e-6, changed=then["changed"] + 1)
    now["shape"] = now["shape"].reshape(2, 2)
    del now["gone"]
    found = compared(then, now)
    assert outcomes(found) == {
        "same": SAME, "close": CLOSE, "changed": CHANGED, "gone": MISSING, "shape": CHANGED, "more": NEW,
    }  # fmt: skip
    assert not found.is_fine


def test_equal_bytes_of_other_types_and_shapes_are_not_mixed_up():
    flat = np.array([1, 2, 3, 4], np.uint8)
    then = {"flat": flat, "square": flat.reshape(2, 2), "signed": flat.view(np.int8)}
    now = {name: np.where(array == 4, 5, array).astype(array.dtype) for name, array in then.items()}
    found = compared(then, now)
    assert [each.lines[1].partition(":")[0] for each in found.verdicts] == [
        "worst at [3]", "worst at [1, 1]", "worst at [3]",
    ]  # fmt: skip


def test_the_first_change_in_the_order_of_the_datas_flow_leads():
    then = {"z": np.zeros(3), "m": np.zeros(3), "a": np.zeros(3)}
    now = {"a": np.ones(3), "m": np.full(3, 0.5), "z": np.zeros(3)}
    lines = list(compared(then, now).lines(golden("t", now, versions={"torch": "3"})))
    assert lines[0] == "m changed since it was recorded (the first of 2 changes; 3 tensors compared)"
    assert "worst at [0]: 0.5 now, 0 recorded, 0.5 apart" in lines
    assert "also changed: a" in lines
    assert lines[-1] == "what differs since: torch 2 then, 3 now"


def test_a_new_tensor_is_no_failure_and_nothing_compared_is_one():
    a = {"a": np.zeros(3)}
    assert compared(a, a | {"b": np.ones(1)}).is_fine
    assert not compared({}, {"b": np.ones(1)}).is_fine
    assert not compared(a, {"b": np.ones(1)}).is_fine


class TestBeyondTheValueBudget:
    big = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)

    def test_noise_within_the_tolerance_is_close(self):
        assert outcomes(compared({"a": self.big}, {"a": self.big * np.float32(1 + 1e-7)}, budget=0)) == {"a": CLOSE}

    def test_other_numbers_with_the_same_statistics_are_a_change(self):
        found = compared({"a": self.big}, {"a": self.big[::-1].copy()}, budget=0)
        assert outcomes(found) == {"a": CHANGED}
        assert "judged by statistics and 64 elements, drawn evenly" in found.verdicts[0].lines

    def test_a_single_new_nan_is_a_change(self):
        now = self.big.copy()
        now[777] = np.nan
        found = compared({"a": self.big}, {"a": now}, budget=0)
        assert "NaN: 1 now, 0 recorded" in found.verdicts[0].lines

    def test_any_other_integer_is_a_change(self):
        then = np.arange(20_000)
        now = then.copy()
        now[[5, 6]] = now[[6, 5]]
        assert outcomes(compared({"a": then}, {"a": now}, budget=0)) == {"a": CHANGED}

    def test_what_is_kept_is_small(self):
        kept = choose_stored_values({str(n): self.big + np.float32(n) for n in range(3)} | {"s": self.big[:8]}, 100)
        assert sorted(len(each.data) for each in kept.values()) == [32, 256, 256, 256]


class TestClose:
    def test_a_tensor_is_close_to_itself_whatever_it_holds(self):
        odd = np.array([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-320])
        assert measure_closeness(odd, odd, Tolerance(0, 0)).is_fine

    def test_the_worst_element_is_named_and_counts_are_right(self):
        reference = np.zeros((2, 3))
        candidate = reference.copy()
        candidate[1, 2], candidate[0, 1] = 3.0, 1.0
        found = measure_closeness(reference, candidate, ANY)
        assert (found.beyond, found.worst_at, found.candidate, found.max_abs) == (2, (1, 2), 3.0, 3.0)

    def test_nan_and_infinity_are_close_to_nothing_else(self):
        found = measure_closeness(
            np.array([1, math.nan, math.inf, 1]), np.array([math.nan, 1, -math.inf, math.inf]), ANY
        )
        assert (found.beyond, found.nan_candidate, found.nan_reference, found.inf_differing) == (4, 1, 1, 2)

    def test_the_coarser_type_decides_on_the_tolerance(self):
        assert ANY.for_dtypes("float32", "float16") == ANY.for_dtypes("float16") == (1e-3, 1e-5)
        assert ANY.for_dtypes("int64") == (0, 0)
        assert Tolerance(atol=1).for_dtypes("float32")[1] == 1

    def test_large_integers_are_told_apart(self):
        big = np.array([2**60], np.int64)
        assert measure_closeness(big, big + 1, ANY).beyond == 1

    def test_empty_and_scalar_tensors_have_an_answer(self):
        assert measure_closeness(np.zeros((0, 3)), np.zeros((0, 3)), ANY).is_fine
        assert measure_closeness(np.array(1.0), np.array(2.0), ANY).worst_at == ()
