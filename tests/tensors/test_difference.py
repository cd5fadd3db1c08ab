"""Comparing two tensors: against plain NumPy, in pieces, and with values that are no numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.errors import InputError
from trtdx.tensors.difference import DifferenceSums, TensorComparer, TensorDifference, measure_difference
from trtdx.tensors.dtypes import DTYPES, numpy_dtype
from trtdx.tensors.statistics import INSTRUCTIONS, use_kernel

HERE = [name for name in INSTRUCTIONS if use_kernel(name) == name]
use_kernel(INSTRUCTIONS[0])
FLOATS = ["float64", "float32", "float16", "bfloat16"]
EXACT = set(DifferenceSums._fields[:12])


@pytest.fixture(autouse=True)
def best_kernel_afterwards():
    yield
    use_kernel(INSTRUCTIONS[0])


def tensor(rng, count, dtype):
    if rng.random() < 0.5 and dtype != "float64":  # any bits at all
        return rng.integers(0, 256, count * DTYPES[dtype].bytes, dtype=np.uint8).view(numpy_dtype(dtype))
    values = rng.normal(0, 10, count)
    values[rng.random(count) < 0.05] = rng.choice([np.nan, np.inf, -np.inf, 0.0])
    return values.astype(numpy_dtype(dtype))


@settings(max_examples=120, deadline=None)
@given(
    reference=st.sampled_from(FLOATS),
    candidate=st.sampled_from(FLOATS),
    rows=st.integers(0, 5),
    length=st.sampled_from([1, 3, 4, 64, 2048, 2051]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_kernels_agree(reference, candidate, rows, length, seed):
    rng = np.random.default_rng(seed)
    one = tensor(rng, rows * length, reference)
    with np.errstate(all="ignore"):
        other = tensor(rng, rows * length, candidate) if seed % 2 else one.astype(numpy_dtype(candidate))
    found = {}
    for name in HERE:
        use_kernel(name)
        comparer = TensorComparer(one.size, row_length=length)
        comparer.add(one, other)
        found[name] = comparer.sums, comparer.rows()
    sums, lines = found["numpy"]
    for name in HERE[:-1]:
        for field, a, b in zip(DifferenceSums._fields, found[name][0], sums, strict=True):
            if field in EXACT:
                assert a == b, field
            elif field != "block_max":
                assert math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12 * (sums.rr + sums.cc)), field
        np.testing.assert_allclose(found[name][1], lines, rtol=1e-9)


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from(["float16", "bfloat16"]),
    count=st.sampled_from([15, 16, 17, 1000, 1024, 3001]),
    apart=st.sampled_from([1, 3, 40, 2000, 40000]),
    kind=st.sampled_from(["any", "zeros", "tiny", "far", "negated"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sixteen_bits_agree_where_many_errors_are_equal(dtype, count, apart, kind, seed):
    rng = np.random.default_rng(seed)
    infinite = 0x7C00 if dtype == "float16" else 0x7F80
    one = rng.integers(0, 9 if kind == "tiny" else infinite, count)
    other = np.clip(one + rng.integers(-apart, apart + 1, count), 0, infinite - 1)
    signs = rng.integers(0, 2, count) << 15
    turned = signs ^ ((rng.random(count) < 0.1) << 15) if kind == "negated" else signs
    one, other = one | signs, other | turned
    if kind == "zeros":
        for each in (one, other):
            each[rng.random(count) < 0.3] &= 0x8000
        other[rng.random(count) < 0.1] ^= 0x8000
    r, c = (each.astype(np.uint16).view(numpy_dtype(dtype)) for each in (one, other))
    if kind == "far":
        c = (c.astype(np.float32) * np.float32(1e-4)).astype(numpy_dtype(dtype))
    found = {}
    for name in HERE:
        use_kernel(name)
        comparer = TensorComparer(count)
        comparer.add(np.ones(4), np.array([1, 1, 1, 1.003]))  # the worst so far is none of these types
        comparer.add(r, c)
        found[name] = comparer.sums
    sums = found.pop("numpy")
    for name, each in found.items():
        assert each[:12] == sums[:12], name
        for a, b in zip(each[12:18], sums[12:18], strict=True):
            assert math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12 * (sums.rr + sums.cc)), name


@pytest.mark.parametrize("name", HERE)
def test_the_metrics_are_what_they_say(name):
    use_kernel(name)
    rng = np.random.default_rng(0)
    reference = rng.normal(0, 1, (30, 50)).astype(np.float32)
    candidate = reference + rng.normal(0, 1e-3, reference.shape).astype(np.float32)
    found = measure_difference(reference, candidate, row_length=50)
    r, c = reference.astype(np.float64), candidate.astype(np.float64)
    d = c - r
    assert found.sums.max_abs == np.abs(d).max()
    assert found.sums.worst_at == np.abs(d).argmax()
    assert found.sums.max_rel == pytest.approx(np.abs(d / r).max(), rel=1e-15)
    assert found.rms == pytest.approx(np.sqrt((d**2).mean()))
    assert found.bias == pytest.approx(d.mean())
    assert found.mean_abs == pytest.approx(np.abs(d).mean())
    assert found.relative_l2 == pytest.approx(np.linalg.norm(d) / np.linalg.norm(r))
    assert found.cosine == pytest.approx((r * c).sum() / np.linalg.norm(r) / np.linalg.norm(c), abs=1e-15)
    assert (found.not_finite, found.sums.compared) == (0, r.size)


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(FLOATS), count=st.integers(0, 300), seed=st.integers(0, 2**32 - 1))
def test_a_tensor_compared_with_itself_differs_nowhere(dtype, count, seed):
    array = tensor(np.random.default_rng(seed), count, dtype)
    found = measure_difference(array, array)
    assert (found.sums.differing, found.sums.max_abs, found.sums.max_rel, found.not_finite) == (0, 0, 0, 0)
    if found.sums.compared:
        assert (found.rms, found.relative_l2, found.ulp_max) == (0, 0, 0)
        assert found.cosine == pytest.approx(1)


@pytest.mark.parametrize("name", HERE)
def test_pieces_add_up_to_the_whole(name):
    use_kernel(name)
    rng = np.random.default_rng(3)
    one, other = rng.normal(0, 1, (2, 6000))
    other[[5, 4000]] = np.nan, np.inf
    whole = measure_difference(one, other)
    comparer = TensorComparer(6000, row_length=500)
    for start in (0, 2000, 4500):
        end = {0: 2000, 2000: 4500, 4500: 6000}[start]
        comparer.add(one[start:end], other[start:end])
    parts = comparer.result()
    assert parts.sums[:12] == whole.sums[:12]
    np.testing.assert_allclose(parts.sums[12:18], whole.sums[12:18], rtol=1e-12)
    np.testing.assert_allclose(parts[2:], whole[2:], rtol=1e-12)
    assert comparer.rows().shape == (12, 3)
    assert comparer.rows()[:, 2].sum() == 5998


def test_what_is_no_number_is_counted_and_left_out():
    nan, inf = np.nan, np.inf
    found = measure_difference(
        np.array([nan, nan, 1.0, inf, inf, -inf, 0.0, 0.0]),
        np.array([nan, 1.0, nan, inf, -inf, 5.0, 0.0, 2.0]),
    )
    assert found.sums == DifferenceSums(
        pairs=8, compared=2, differing=1, from_zero=1, nan_reference=1, nan_candidate=1, nan_both=1,
        inf_differing=2, inf_equal=1, worst_at=7, max_abs=2.0, dd=4.0, cc=4.0, d=2.0, abs_d=2.0, block_max=2.0,
    )  # fmt: skip
    assert found.not_finite == 4
    assert found.relative_l2 == inf


def test_ulps_are_of_the_coarser_type():
    one = np.full(10, 1.0, np.float32)
    assert measure_difference(one, one + np.float32(2.0**-23)).ulp_max == 1
    assert measure_difference(one, np.full(10, 1.0 + 2.0**-7, numpy_dtype("bfloat16"))).ulp_max == 1
    assert measure_difference(np.zeros(3, np.float16), np.full(3, 2.0**-24, np.float16)).ulp_p50 == 1
    tiny = np.full(3, 2.0**-149, np.float32)
    assert measure_difference(tiny, 2 * tiny).ulp_max == 1


def test_nothing_to_compare():
    found = measure_difference(np.array([np.nan]), np.array([1.0]))
    assert isinstance(found, TensorDifference)
    assert math.isnan(found.rms)
    assert math.isnan(measure_difference(np.zeros(0), np.zeros(0)).cosine)
    with pytest.raises(InputError, match="3 values cannot be compared with 4"):
        measure_difference(np.zeros(3), np.zeros(4))
    with pytest.raises(InputError, match="complex64"):
        measure_difference(np.zeros(3, np.complex64), np.zeros(3))


def test_whole_numbers_and_eight_bits_compare_too():
    assert measure_difference(np.arange(5), np.arange(5) + 1).rms == 1
    found = measure_difference(np.array([1.0, 2.0]), np.array([1.0, 2.5], numpy_dtype("float8_e4m3fn")))
    assert found.sums.max_abs == 0.5
