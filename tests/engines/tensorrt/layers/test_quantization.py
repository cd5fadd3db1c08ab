"""Quantise and dequantise in every type TensorRT has for it, per tensor, channel and block."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")

HELD = {
    "int8": np.int8,
    "int4": ml_dtypes.int4,
    "fp8": ml_dtypes.float8_e4m3fn,
    "fp4": ml_dtypes.float4_e2m1fn,
}
RANGES = {"int8": (-128, 127), "int4": (-8, 7), "fp8": (-448, 448), "fp4": (-6, 6)}


def expected_of(value, scale, kind):
    """Divide, cut off, round to the nearest and to even between two, as ml_dtypes and numpy do."""
    low, high = RANGES[kind]
    divided = np.clip((value / scale).astype(np.float32), low, high)
    return (np.rint(divided) if kind.startswith("int") else divided).astype(HELD[kind])


def quantize(net, value, scale, kind, axis=-1):
    x = net.input("x", value.shape)
    layer = net.add_quantize(x, net.constant(scale), getattr(trt, kind))
    if axis >= 0:
        layer.axis = axis
    net.out(layer)
    return net.run(x=value)["y"]


def test_ties_go_to_even_and_the_rest_is_cut_off(net):
    value = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 126.5, 127.5, 1e9, -1e9, np.nan], np.float32)
    found = quantize(net, value, np.float32(1), "int8")
    assert found.tolist() == [0, 2, 2, 0, -2, 126, 127, 127, -128, 0]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_one_scale_for_all(net, rng, kind):
    value = rng.standard_normal((4, 64)).astype(np.float32) * 100
    scale = np.float32(0.37)
    found = quantize(net, value, scale, kind)
    assert found.dtype == np.dtype(HELD[kind])
    np.testing.assert_array_equal(found.astype(np.float32), expected_of(value, scale, kind).astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1])
def test_one_scale_for_each_channel(net, rng, axis):
    value = rng.standard_normal((4, 8)).astype(np.float32) * 100
    scale = rng.random(value.shape[axis]).astype(np.float32) + 0.1
    along = scale.reshape((-1, 1) if axis == 0 else (1, -1))
    np.testing.assert_array_equal(quantize(net, value, scale, "int8", axis), expected_of(value, along, "int8"))


@pytest.mark.parametrize(("kind", "block"), [("int4", 64), ("fp4", 16)])
def test_one_scale_for_each_block(net, rng, kind, block):
    value = rng.standard_normal((128, 8)).astype(np.float32) * 5
    scale = rng.random((128 // block, 8)).astype(np.float32) + 0.2
    x = net.input("x", value.shape)
    layer = net.add_quantize(x, net.constant(scale), getattr(trt, kind))
    net.out(layer)
    found = net.run(x=value)["y"]
    assert found.dtype == np.dtype(HELD[kind])
    expected = expected_of(value, scale.repeat(block, 0), kind)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


def packed_bytes(values, kind):
    """Two values a byte, the first in the low half, as TensorRT wants weights."""
    codes = values.astype(np.int8).view(np.uint8) if kind == "int4" else values.view(np.uint8)
    codes = codes.reshape(-1) & 15
    return np.ascontiguousarray(codes[::2] | codes[1::2] << 4)


@pytest.mark.parametrize("kind", ["int4", "fp4", "fp8", "int8"])
@pytest.mark.parametrize("to", ["float32", "float16", "bfloat16"])
def test_weights_are_dequantised(net, rng, kind, to):
    if kind.startswith("int"):
        weights = rng.integers(*RANGES[kind], (128, 4), endpoint=True).astype(HELD[kind])
    else:
        weights = rng.uniform(*RANGES[kind], (128, 4)).astype(HELD[kind])
    block = {"int4": 64, "fp4": 16}.get(kind)
    scale = rng.random((128 // block, 4) if block else ()).astype(np.float32) + 0.5
    raw = packed_bytes(weights, kind) if block else weights.view(np.uint8).reshape(-1)
    held = net.packed(raw, getattr(trt, kind), weights.shape)
    layer = net.add_dequantize(held, net.constant(scale), getattr(trt, to))
    net.out(layer)
    found = net.run(taps=[held.name])
    np.testing.assert_array_equal(found[held.name].astype(np.float32), weights.astype(np.float32))
    exact = weights.astype(np.float32) * (scale.repeat(block, 0) if block else scale)
    narrow = ml_dtypes.bfloat16 if to == "bfloat16" else to
    np.testing.assert_array_equal(found["y"].astype(np.float32), exact.astype(narrow).astype(np.float32))


def test_a_linear_layer_with_quantised_weights_and_activations(net, rng):
    """Q and DQ around a product, as explicit quantisation writes it."""
    value, weights = (
        rng.standard_normal((4, 32)).astype(np.float32),
        rng.integers(-127, 128, (32, 8)).astype(np.int8),
    )
    scale = rng.random(8).astype(np.float32) / 100
    x = net.input("x", value.shape)
    step = net.constant(np.float32(0.05))
    q = net.add_quantize(x, step, trt.int8).get_output(0)
    left = net.add_dequantize(q, step, trt.float32).get_output(0)
    right = net.add_dequantize(net.constant(weights), net.constant(scale), trt.float32)
    right.axis = 1
    none = trt.MatrixOperation.NONE
    net.out(net.add_matrix_multiply(left, none, right.get_output(0), none))
    rounded = np.clip(np.rint(value / np.float32(0.05)), -128, 127) * np.float32(0.05)
    np.testing.assert_allclose(net.run(x=value)["y"], rounded @ (weights * scale), rtol=1e-4, atol=1e-5)


def test_nvfp4_scales_blocks_of_sixteen_in_two_levels(net, rng):
    value = rng.standard_normal((2, 32)).astype(np.float32)
    outer = np.float32(np.abs(value).max() / 6 / 448)
    layer = net.add_dynamic_quantize(net.input("x", value.shape), 1, 16, trt.fp4, trt.fp8)
    layer.set_input(1, net.constant(outer))
    net.out(layer, "y", 0)
    net.out(layer, "scale", 1)
    found = net.run(x=value)
    largest = np.abs(value.reshape(2, 2, 16)).max(-1)
    scale = (largest / 6 / outer).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(found["scale"].astype(np.float32), scale.astype(np.float32))
    factor = scale.astype(np.float32).repeat(16, 1) * outer
    expected = np.clip(value / factor, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(found["y"].astype(np.float32), expected.astype(np.float32))


def test_mxfp8_scales_blocks_of_thirty_two_by_powers_of_two(net, rng):
    value = rng.standard_normal((2, 64)).astype(np.float32) * 1000
    value[0, :32] = 0
    layer = net.add_dynamic_quantize(net.input("x", value.shape), 1, 32, trt.fp8, trt.e8m0)
    net.out(layer, "y", 0)
    net.out(layer, "scale", 1)
    found = net.run(x=value)
    scale = found["scale"].astype(np.float32)
    assert found["scale"].dtype == np.dtype(ml_dtypes.float8_e8m0fnu)
    largest = np.abs(value.reshape(2, 2, 32)).max(-1)
    assert (np.log2(scale) % 1 == 0).all()
    assert (largest / scale <= 448).all()  # nothing is cut off
    assert (largest[largest > 0] / scale[largest > 0] > 224).all()  # and no smaller power would do
    again = found["y"].astype(np.float32) * scale.repeat(32, 1)
    np.testing.assert_allclose(again, value, rtol=0.07)


def test_values_of_every_type_go_in_and_come_out(make_net):
    """An identity of each type that can be an input gives back what was put in, in ml_dtypes' types."""
    kinds = {
        "bfloat16": ml_dtypes.bfloat16,
        "fp8": ml_dtypes.float8_e4m3fn,
        "int4": ml_dtypes.int4,
        "bool": bool,
    }
    for kind, held in {
        **kinds,
        "float16": np.float16,
        "int8": np.int8,
        "int64": np.int64,
        "uint8": np.uint8,
    }.items():
        net = make_net()
        value = np.array([0, 1, 1, 0], held)
        net.out(net.add_shuffle(net.input("x", (4,), getattr(trt, kind))))
        found = net.run(x=value)["y"]
        assert found.dtype == np.dtype(held)
        np.testing.assert_array_equal(found.astype(np.float32), value.astype(np.float32))


@pytest.mark.parametrize("kind", ["bfloat16", "fp8"])
def test_narrow_floats_are_moved_as_they_are(net, kind):
    """Slices, gathers, joins and transpositions of types that numpy and torch half know."""
    held = {"bfloat16": ml_dtypes.bfloat16, "fp8": ml_dtypes.float8_e4m3fn}[kind]
    value = np.arange(12, dtype=np.float32).reshape(3, 4).astype(held)
    x = net.input("x", (3, 4), getattr(trt, kind))
    cut = net.add_slice(x, (2, 0), (3, 2), (-1, 2)).get_output(0)
    picked = net.add_gather(cut, net.constant(np.array([1, 1, 0], np.int32)), 0).get_output(0)
    both = net.add_concatenation([picked, cut])
    both.axis = 1
    turned = net.add_shuffle(both.get_output(0))
    turned.first_transpose = (1, 0)
    net.out(turned)
    part = value[::-1, ::2]
    expected = np.concatenate([part[[1, 1, 0]], part], 1).T
    np.testing.assert_array_equal(net.run(x=value)["y"].astype(np.float32), expected.astype(np.float32))
