"""The statistics kernel and its NumPy twin: one law, every type, every instruction set there is here."""

import math
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.errors import InputError
from trtdx.tensors import statistics as stats
from trtdx.tensors.dtypes import DTYPES, numpy_dtype
from trtdx.tensors.statistics import (
    INSTRUCTIONS,
    Statistics,
    TensorSource,
    array_statistics,
    kernel_in_use,
    measure_into,
    source_from_array,
    source_from_torch,
    source_statistics,
    use_kernel,
)

MEASURED = [dtype.name for dtype in DTYPES.values() if dtype.code >= 0]
HERE = [name for name in INSTRUCTIONS if use_kernel(name) == name]
use_kernel(INSTRUCTIONS[0])
ROUNDED = {"mean", "std", "l2"}  # everything else is exact


@pytest.fixture(autouse=True)
def best_kernel_afterwards():
    yield
    use_kernel(INSTRUCTIONS[0])


def agree(one: Statistics, other: Statistics, relative: float = 1e-9) -> None:
    scale = max(other.absmax, 0.0) if not math.isnan(other.absmax) else 0.0
    for name, a, b in zip(Statistics._fields, one, other, strict=True):
        if name in ROUNDED:
            assert a == b or math.isclose(a, b, rel_tol=relative, abs_tol=1e-13 * scale) or (a != a and b != b), (
                name,
                a,
                b,
            )
        else:
            assert a == b or (a != a and b != b), (name, a, b)


def with_each(address: int, count: int, dtype: str) -> dict[str, Statistics]:
    found = {}
    for name in HERE:
        use_kernel(name)
        found[name] = source_statistics(TensorSource(address, count, dtype, (count,)))
    return found


def test_the_kernel_is_in_use_here():
    assert HERE[-1] == "numpy"
    assert len(HERE) > 1, "the tests need the compiled kernel: .venv/bin/python setup.py build_ext --inplace"


@pytest.mark.parametrize("dtype", MEASURED)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_all_kernels_agree_on_any_bits_at_any_address(dtype, data):
    size = DTYPES[dtype].bytes
    count = data.draw(st.one_of(st.integers(0, 70), st.sampled_from([255, 256, 257, 2047, 2048, 2049, 5000])))
    offset = data.draw(st.integers(0, 7))
    seed = data.draw(st.integers(0, 2**32 - 1))
    special = data.draw(st.sampled_from(["any bits", "small numbers", "few values", "one value"]))
    rng = np.random.default_rng(seed)
    if special == "any bits":  # NaN of all kinds, infinities, subnormals
        raw = rng.integers(0, 256, count * size, dtype=np.uint8)
    else:
        how_many = {"small numbers": max(count, 1), "few values": 3, "one value": 1}[special]
        numbers = rng.choice(rng.normal(0, 30, how_many), count) if count else np.zeros(0)
        with np.errstate(invalid="ignore"):
            raw = np.frombuffer(numbers.astype(numpy_dtype(dtype)).tobytes(), np.uint8)
    held = np.zeros(count * size + 16, np.uint8)
    held[offset : offset + count * size] = raw
    found = with_each(held.ctypes.data + offset, count, dtype)
    for name in HERE[:-1]:
        agree(found[name], found["numpy"])


VALUES = {
    "float64": [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -2.0, 1e308, -1e308],
    "float32": [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -2.0, 3e38, 1e-38],
    "float16": [0.0, -0.0, math.nan, math.inf, -math.inf, 6e-8, -2.0, 65504.0, 6e-5],
    "bfloat16": [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-40, -2.0, 3e38, 1e-39],
    "float8_e4m3fn": [0.0, -0.0, math.nan, -2.0, 448.0, 2.0**-9],
    "float8_e5m2": [0.0, -0.0, math.nan, math.inf, -math.inf, -2.0, 57344.0, 2.0**-16],
}


@pytest.mark.parametrize("dtype", VALUES)
def test_counts_and_extremes_are_those_of_the_type_itself(dtype):
    array = np.array(VALUES[dtype], numpy_dtype(dtype))
    info = (ml_dtypes.finfo if dtype not in ("float16", "float32", "float64") else np.finfo)(array.dtype)
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    for name in HERE:
        use_kernel(name)
        found = array_statistics(array)
        assert (found.elements, found.nan) == (array.size, np.isnan(wide).sum())
        assert (found.pos_inf, found.neg_inf) == ((wide == math.inf).sum(), (wide == -math.inf).sum())
        assert found.zeros == 2
        assert found.subnormals == ((finite != 0) & (np.abs(finite) < float(info.smallest_normal))).sum() > 0
        assert (found.min, found.max, found.absmax) == (finite.min(), finite.max(), np.abs(finite).max())
        assert math.copysign(1, array_statistics(np.array([-0.0], array.dtype)).min) == 1


@pytest.mark.parametrize("name", HERE)
def test_mean_and_deviation_survive_a_large_mean(name):
    use_kernel(name)
    array = np.float64(1e9) + np.random.default_rng(0).normal(0, 1e-3, 100_003)
    found = array_statistics(array)
    away = array - array[0]  # exact
    mean = math.fsum(away) / array.size
    assert found.mean == array[0] + mean
    assert math.isclose(found.std, math.sqrt(math.fsum((away - mean) ** 2) / array.size), rel_tol=1e-12)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("factor", [1e-320, 1e-200, 1e-160, 1.0, 1e160, 1e300])
def test_squares_that_no_double_holds(name, factor):
    use_kernel(name)
    found = array_statistics(np.array([3.0, 4.0, 0.0]) * factor)
    assert math.isclose(found.l2, 5 * factor, rel_tol=1e-3 if factor < 1e-310 else 1e-12)
    assert math.isclose(found.mean, 7 / 3 * factor, rel_tol=1e-3 if factor < 1e-310 else 1e-12)


@pytest.mark.parametrize("name", HERE)
def test_quantiles_are_exact_up_to_the_sample_and_close_beyond(name):
    use_kernel(name)
    ordered = np.arange(101, dtype=np.float32)
    small = array_statistics(np.random.default_rng(0).permutation(ordered))
    assert small[12:19] == (1, 5, 25, 50, 75, 95, 99)
    rng = np.random.default_rng(1)
    large = rng.normal(0, 1, (500, 512)).astype(np.float32)
    large[:, 7] = 1000.0  # an outlier channel must not fall in step with the sample
    found = array_statistics(large)
    exact = np.quantile(large, [0.01, 0.05, 0.25, 0.5, 0.75, 0.95])
    assert np.abs(np.array(found[12:18]) - exact).max() < 0.5
    assert found.p50 == pytest.approx(exact[3], abs=0.15)


def test_empty_scalar_and_strided():
    empty = array_statistics(np.zeros((0, 3), np.float16))
    assert empty.elements == 0
    assert math.isnan(empty.mean)
    assert empty.l2 == 0
    assert array_statistics(np.array(3.5)).mean == 3.5
    grid = np.arange(24.0).reshape(4, 6)
    assert array_statistics(grid[::2, ::-3]) == array_statistics(np.ascontiguousarray(grid[::2, ::-3]))
    assert array_statistics(grid.T) == array_statistics(np.ascontiguousarray(grid.T))
    assert array_statistics(grid.astype(">f8")) == array_statistics(grid)


def test_the_hash_is_xxh3_of_the_bytes_alone():
    array = np.arange(12, dtype=np.int16)
    expected = xxhash.xxh3_128_hexdigest(array.tobytes())
    assert array_statistics(array).hash == array_statistics(array.reshape(3, 4)).hash == expected
    assert array_statistics(array.view(np.float16)).hash == expected
    assert array_statistics(np.zeros(0)).hash == xxhash.xxh3_128_hexdigest(b"")


def test_torch_tensors_are_measured_where_they_lie():
    torch = pytest.importorskip("torch")
    tensor = torch.randn(3, 5, dtype=torch.bfloat16)
    source = source_from_torch(tensor)
    assert source.address == tensor.data_ptr()
    assert (source.dtype, source.shape, source.device) == ("bfloat16", (3, 5), "cpu")
    wide = tensor.double()
    found = source_statistics(source)
    assert found.mean == pytest.approx(wide.mean().item())
    assert found.max == wide.max().item()
    turned = source_from_torch(tensor.t())
    assert (turned.shape, source_statistics(turned).max) == ((5, 3), found.max)
    eight = torch.randn(7).to(torch.float8_e4m3fn)
    assert source_statistics(source_from_torch(eight)).absmax == eight.float().abs().max().item()


def test_flushing_subnormals_to_zero_does_not_change_what_is_seen():
    torch = pytest.importorskip("torch")
    array = np.array([1e-40, -3e-41, 0.0], np.float32)
    expected = array_statistics(array)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found = array_statistics(array)
    finally:
        torch.set_flush_denormal(False)
    assert found == expected
    assert found.subnormals == 2
    assert found.min < 0


def measured(array):
    source, row = source_from_array(array), bytearray(stats.STATISTICS_STRUCT.size)
    special = measure_into(row, 0, source.address, source.elements, DTYPES[source.dtype].code)
    return special, stats.STATISTICS_STRUCT.unpack(row)


def test_what_is_not_finite_is_counted():
    special, row = measured(np.array([1.0, np.nan, np.inf, -np.inf]))
    assert (special, row[:4]) == (3, (4, 1, 1, 1))


def test_complex_numbers_are_counted_and_not_measured():
    special, row = measured(np.array([1 + 2j, complex("nan")]))
    assert (special, row[0]) == (0, 2)
    assert np.isnan(row[6])


def test_a_type_that_cannot_be_captured_is_refused_by_name():
    with pytest.raises(InputError, match="datetime64"):
        array_statistics(np.array(["2020-01-01"], "datetime64[D]"))


def test_a_row_that_does_not_fit_is_refused():
    if kernel_in_use() == "numpy":
        pytest.skip("no kernel")
    array = np.zeros(3)
    from trtdx import _stats

    for at in (1, -1, 152):
        with pytest.raises(ValueError, match="does not fit"):
            _stats.measure(bytearray(152), at, array.ctypes.data, 3, 0)
    with pytest.raises(ValueError, match="no such type"):
        _stats.measure(bytearray(152), 0, array.ctypes.data, 3, 99)
    with pytest.raises(ValueError, match="no address"):
        _stats.measure(bytearray(152), 0, 0, 3, 0)


def test_without_a_compiler_numpy_does_it(tmp_path):
    """The package as it is where nothing could be compiled: the same numbers, and it says so."""
    script = (
        "import sys; sys.modules['trtdx._stats'] = None\n"
        "import numpy as np\n"
        "from trtdx.tensors.statistics import array_statistics, kernel_in_use\n"
        "from trtdx.tensors.difference import measure_difference\n"
        "assert kernel_in_use() == 'numpy'\n"
        "a = np.linspace(-1, 1, 1000, dtype=np.float32)\n"
        "print(array_statistics(a).max, array_statistics(a).hash, measure_difference(a, a + np.float32(1)).sums.max_abs)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, timeout=60)
    array = np.linspace(-1, 1, 1000, dtype=np.float32)
    assert done.stdout.split()[:2] == ["1.0", array_statistics(array).hash], done.stderr
