"""What TensorRT's types and operators do where others do something else: rounding, overflow, NaN, casts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")

NAN, INF = np.nan, np.inf


def elementwise(net, operation, left, right, dtype):
    first, second = net.input("a", left.shape, dtype), net.input("b", right.shape, dtype)
    net.out(net.add_elementwise(first, second, getattr(trt.ElementWiseOperation, operation)))
    return net.run(a=left, b=right)["y"]


@pytest.mark.parametrize(
    ("operation", "left", "right", "expected"),
    [
        ("SUM", [2**31 - 1], [1], [-(2**31)]),  # integers wrap around
        ("PROD", [2**30], [4], [0]),
        ("SUB", [-(2**31)], [1], [2**31 - 1]),
        ("DIV", [7, -7, 7, -7], [2, 2, -2, -2], [3, -3, -3, 3]),  # cut towards zero
        ("FLOOR_DIV", [7, -7, 7, -7], [2, 2, -2, -2], [3, -4, -4, 3]),
        ("DIV", [5, -5, 0], [0, 0, 0], [-1, -1, -1]),  # as NVIDIA's GPUs give; no error
        ("DIV", [-(2**31)], [-1], [-(2**31)]),
        ("POW", [2, -1, 1, 3], [3, -1, -5, -2], [8, -1, 1, 0]),
        ("MAX", [1, -5], [2, -6], [2, -5]),
    ],
)
def test_integers(net, operation, left, right, expected):
    found = elementwise(net, operation, np.array(left, np.int32), np.array(right, np.int32), trt.int32)
    assert found.dtype == np.int32
    assert found.tolist() == expected


def test_long_integers_wrap_around(net):
    found = elementwise(net, "SUM", np.array([2**63 - 1]), np.array([1]), trt.int64)
    assert found.tolist() == [-(2**63)]


def test_integers_of_one_element_keep_their_shape(net):
    found = elementwise(net, "DIV", np.array(7), np.array(2), trt.int64)
    assert (found.shape, found.item()) == ((), 3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("MAX", [1, 1, NAN, 0]),  # a number wins over a NaN: NVIDIA/TensorRT#4758
        ("MIN", [1, 1, NAN, -INF]),
        ("SUM", [NAN, NAN, NAN, -INF]),
        ("EQUAL", [False, False, False, False]),
        ("LESS", [False, False, False, True]),
    ],
)
def test_nan_in_elementwise(net, dtype, operation, expected):
    kinds = {"float32": trt.float32, "float16": trt.float16, "bfloat16": trt.bfloat16}
    held = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    left, right = np.array([NAN, 1, NAN, -INF], held), np.array([1, NAN, NAN, 0], held)
    found = elementwise(net, operation, left, right, kinds[dtype])
    np.testing.assert_array_equal(found.astype(np.float32), np.array(expected, np.float32))


def test_division_by_zero_gives_infinities_without_a_warning(net):
    left, right = np.array([1, -1, 0], np.float32), np.zeros(3, np.float32)
    np.testing.assert_array_equal(elementwise(net, "DIV", left, right, trt.float32), [INF, -INF, NAN])


def test_elementwise_broadcasts_axes_of_length_one(net, rng):
    left, right = rng.random((2, 1, 3), np.float32), rng.random((1, 4, 3), np.float32)
    np.testing.assert_array_equal(elementwise(net, "PROD", left, right, trt.float32), left * right)


def test_the_exponents_most_used_are_right(make_net):
    base = np.array([[1.5, 2, 0.25]], np.float32)
    for exponent in (2, 3, 0.5, -1):
        found = elementwise(make_net(), "POW", base, np.array([[exponent]], np.float32), trt.float32)
        np.testing.assert_allclose(found, np.power(base, np.float32(exponent)), rtol=1e-6)


def test_large_values_are_computed_alike(make_net, rng):
    """Torch computes what is large, numpy what is small."""
    small = rng.standard_normal((1, 7)).astype(np.float32)
    large = np.tile(small, (1 << 16, 1))
    for operation in ("SUM", "DIV", "MAX", "POW", "FLOOR_DIV", "LESS"):
        few = elementwise(make_net(), operation, np.abs(small), small[:, ::-1], trt.float32)
        many = elementwise(make_net(), operation, np.abs(large), large[:, ::-1], trt.float32)
        np.testing.assert_allclose(many[:1], few, rtol=1e-6)
        np.testing.assert_array_equal(many, np.broadcast_to(many[:1], many.shape))


def unary(net, operation, value, dtype=trt.float32):
    net.out(net.add_unary(net.input("x", value.shape, dtype), getattr(trt.UnaryOperation, operation)))
    return net.run(x=value)["y"]


def test_round_goes_to_even(net):
    found = unary(net, "ROUND", np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4], np.float32))
    np.testing.assert_array_equal(found, [0, 2, 2, 0, -2, 2])


@pytest.mark.parametrize("operation", [*trt.UnaryOperation.__members__])
def test_unary_operations_against_torch(net, operation):
    if operation == "NOT":
        assert unary(net, "NOT", np.array([True, False]), trt.bool).tolist() == [False, True]
        return
    value = np.array([0.5, 0.25, 0.75, 1.0] if operation != "ACOSH" else [1, 1.5, 2, 9], np.float32)
    name = {"RECIP": "reciprocal"}.get(operation, operation.lower())
    np.testing.assert_allclose(unary(net, operation, value), getattr(torch, name)(torch.from_numpy(value)), rtol=1e-6)


def test_a_half_is_rounded_once(net, rng):
    """A product of halves is added up in float32: rounding after each step would give another number."""
    left = rng.standard_normal((4, 512)).astype(np.float16)
    right = rng.standard_normal((512, 8)).astype(np.float16)
    none = trt.MatrixOperation.NONE
    first, second = net.input("a", left.shape, trt.float16), net.input("b", right.shape, trt.float16)
    net.out(net.add_matrix_multiply(first, none, second, none))
    found = net.run(a=left, b=right)["y"]
    exact = left.astype(np.float64) @ right.astype(np.float64)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, exact.astype(np.float32).astype(np.float16))


def test_each_layer_rounds_to_its_type(net):
    """2048 + 1 + 1 is 2048 in half precision, 2050 if only the end were rounded."""
    x, one = net.input("x", (1,), trt.float16), net.input("one", (1,), trt.float16)
    total = net.add_elementwise(x, one, trt.ElementWiseOperation.SUM).get_output(0)
    net.out(net.add_elementwise(total, one, trt.ElementWiseOperation.SUM))
    assert net.run(x=np.array([2048], np.float16), one=np.ones(1, np.float16))["y"].tolist() == [2048]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("int32", [0, 2**31 - 1, -(2**31), 2**31 - 1, -1, 2]),  # NVIDIA/TensorRT#4775
        ("int64", [0, 2**63 - 1, -(2**63), 3 * 10**9, -1, 2]),
        ("int8", [0, 127, -128, 127, -1, 2]),
        ("uint8", [0, 255, 0, 255, 0, 2]),
        ("bool", [True, True, True, True, True, True]),
    ],
)
def test_floats_become_integers(net, kind, expected):
    value = np.array([NAN, INF, -INF, 3e9, -1.9, 2.9], np.float32)
    net.out(net.add_cast(net.input("x", value.shape), getattr(trt, kind)))
    assert net.run(x=value)["y"].tolist() == expected


def test_a_long_integer_is_cut_to_its_low_bits(net):
    net.out(net.add_cast(net.input("x", (2,), trt.int64), trt.int32))
    assert net.run(x=np.array([2**32 + 5, -1]))["y"].tolist() == [5, -1]


@pytest.mark.parametrize(
    ("kind", "held", "value", "expected"),
    [
        ("float16", np.float16, [65504, 65520, 1e-8], [65504, INF, 0]),
        ("bfloat16", ml_dtypes.bfloat16, [1.00390625, 1.01171875], [1.0, 1.015625]),  # ties to even
        ("fp8", ml_dtypes.float8_e4m3fn, [500, -1e9, 17, 19, NAN], [448, -448, 16, 20, NAN]),  # saturates
    ],
)
def test_floats_become_narrower_floats(net, kind, held, value, expected):
    net.out(net.add_cast(net.input("x", (len(value),)), getattr(trt, kind)))
    found = net.run(x=np.array(value, np.float32))["y"]
    assert found.dtype == np.dtype(held)
    np.testing.assert_array_equal(found.astype(np.float32), np.array(expected, np.float32))


def test_clip_takes_a_nan_for_its_lower_bound(net):
    layer = net.add_activation(net.input("x", (4,)), trt.ActivationType.CLIP)
    layer.alpha, layer.beta = -1, 2
    net.out(layer)
    found = net.run(x=np.array([NAN, 5, -5, 0.5], np.float32))["y"]
    np.testing.assert_array_equal(found, [-1, 2, -1, 0.5])  # NVIDIA/TensorRT#4773


def top_k(net, value, operation, k=3):
    layer = net.add_topk(net.input("x", value.shape), getattr(trt.TopKOperation, operation), k, 1 << (value.ndim - 1))
    net.out(layer, "values", 0)
    net.out(layer, "places", 1)
    found = net.run(x=value)
    return found["values"], found["places"]


@pytest.mark.parametrize(("operation", "expected"), [("MAX", [1, 3, 0]), ("MIN", [2, 0, 4])])
def test_top_k_puts_the_first_of_equals_first(net, operation, expected):
    value = np.array([0, 2, -1, 2, 0], np.float32)
    assert top_k(net, value, operation)[1].tolist() == expected


def test_top_k_hands_out_a_nan_only_when_numbers_run_out(net):
    values, places = top_k(net, np.array([NAN, 1, -INF], np.float32), "MAX")
    np.testing.assert_array_equal(values, [1, -INF, NAN])
    assert places.tolist() == [1, 2, 0]
    assert places.dtype == np.int32


def reduce(net, value, operation, axes, keep, dtype=trt.float32):
    net.out(net.add_reduce(net.input("x", value.shape, dtype), getattr(trt.ReduceOperation, operation), axes, keep))
    return net.run(x=value)["y"]


@pytest.mark.parametrize(
    ("operation", "expected"), [("SUM", 0), ("PROD", 1), ("MAX", -INF), ("MIN", INF), ("AVG", NAN)]
)
def test_reduction_of_nothing(net, operation, expected):
    x = net.input("x", (2, -1))
    net.out(net.add_reduce(x, getattr(trt.ReduceOperation, operation), 2, False))
    found = net.run(x=np.zeros((2, 0), np.float32))["y"]
    np.testing.assert_array_equal(found, np.full(2, expected, np.float32))


def test_the_largest_of_numbers_and_nan(net):
    value = np.array([[NAN, 1, 2], [NAN, NAN, NAN]], np.float32)
    np.testing.assert_array_equal(reduce(net, value, "MAX", 2, True), [[2], [NAN]])


def test_a_sum_of_integers_wraps_around(net):
    assert reduce(net, np.array([2**31 - 1, 1], np.int32), "SUM", 1, True, trt.int32).tolist() == [-(2**31)]


def test_random_fills_are_the_same_each_time_and_in_bounds(make_net):
    found = []
    for _ in range(2):
        net = make_net()
        layer = net.add_fill((1000,), trt.FillOperation.RANDOM_UNIFORM, trt.float32)
        layer.alpha, layer.beta = -2.0, 3.0
        net.out(layer)
        found.append(net.run()["y"])
    np.testing.assert_array_equal(found[0], found[1])
    assert -2 <= found[0].min() < -1.9 < 2.9 < found[0].max() <= 3


def test_gather_gives_zeros_for_what_is_out_of_bounds(net):
    data, index = net.input("x", (3, 2)), net.input("i", (4,), trt.int32)
    net.out(net.add_gather(data, index, 0))
    value = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    found = net.run(x=value, i=np.array([2, 3, -1, -4], np.int32))["y"]
    np.testing.assert_array_equal(found, [[5, 6], [0, 0], [5, 6], [0, 0]])
