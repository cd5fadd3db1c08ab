"""Networks with one mistake each, as users make them; run in the compiling process by name."""

from __future__ import annotations

import numpy as np
import tensorrt_rtx as trt  # noqa: TID253 - a user's file

NONE = trt.MatrixOperation.NONE
WARM = np.ones((64, 64), np.float32)


def named(layer, name):
    layer.name = name
    return layer.get_output(0)


def out(network, tensor, name="y"):
    tensor.name = name
    network.mark_output(tensor)


def dynamic(network, shape=(-1, 64), name="x", dtype=trt.float32):
    return network.add_input(name, dtype, shape)


def relu(network, tensor, name="relu"):
    return named(network.add_activation(tensor, trt.ActivationType.RELU), name)


def plain(network):
    out(network, relu(network, dynamic(network)))


def two_inputs(network):
    both = network.add_elementwise(dynamic(network), dynamic(network, name="y"), trt.ElementWiseOperation.SUM)
    out(network, named(both, "residual"), "z")


def matmul_shapes(network):
    weights = network.add_constant((32, 64), np.ones((32, 64), np.float32)).get_output(0)
    product = network.add_matrix_multiply(dynamic(network, (8, 64)), NONE, weights, NONE)
    out(network, named(product, "layers.3.mlp.gate_proj"))


def matmul_types(network):
    weights = network.add_constant((64, 64), WARM).get_output(0)
    half = dynamic(network, (8, 64), dtype=trt.float16)
    out(network, named(network.add_matrix_multiply(half, NONE, weights, NONE), "fc"))


def elementwise_types(network):
    both = network.add_elementwise(
        dynamic(network, (8, 64)), dynamic(network, (8, 64), "y", trt.float16), trt.ElementWiseOperation.SUM
    )
    out(network, named(both, "add_residual"), "z")


def broadcast(network):
    both = network.add_elementwise(
        dynamic(network, (8, 64)), dynamic(network, (8, 32), "y"), trt.ElementWiseOperation.SUM
    )
    out(network, named(both, "residual"), "z")


def concat(network):
    layer = network.add_concatenation([dynamic(network, (8, 64)), dynamic(network, (7, 32), "y")])
    layer.axis = 1
    out(network, named(layer, "kv.concat"), "z")


def reshape_volume(network):
    layer = network.add_shuffle(dynamic(network, (8, 64)))
    layer.reshape_dims = (7, 64)
    out(network, named(layer, "attn.view"))


def reshape_dynamic(network):
    layer = network.add_shuffle(dynamic(network))
    layer.reshape_dims = (-1, 7)
    out(network, named(layer, "attn.view"))


def no_output(network):
    relu(network, dynamic(network, (8, 64)))


def output_is_input(network):
    network.mark_output(dynamic(network, (8, 64)))


def empty_name(network):
    out(network, relu(network, dynamic(network, (8, 64))), "")


def same_tensor_name(network):
    first = relu(network, dynamic(network, (8, 64)), "first")
    first.name = "y"
    second = relu(network, first, "second")
    out(network, second, "y")
    network.mark_output(first)


def same_layer_name(network):
    out(network, relu(network, relu(network, dynamic(network, (8, 64)), "L"), "L"))


def same_input(network):
    dynamic(network, (8, 64))
    network.add_input("x", trt.float32, (8, 64))
    out(network, relu(network, network.get_input(0)))


def weights_count(network):
    constant = network.add_constant((64, 128), np.ones(100, np.float32)).get_output(0)
    out(network, named(network.add_matrix_multiply(dynamic(network, (8, 64)), NONE, constant, NONE), "fc"))


def convolution_weights(network):
    layer = network.add_convolution_nd(dynamic(network, (1, 4, 8, 8)), 4, (3, 3), np.ones(96, np.float32))
    out(network, named(layer, "conv1"))


def convolution_types(network):
    half = dynamic(network, (1, 4, 8, 8), dtype=trt.float16)
    layer = network.add_convolution_nd(half, 4, (3, 3), np.ones(4 * 4 * 9, np.float32))
    out(network, named(layer, "conv1"))


def attention(network):
    sides = [dynamic(network, (1, 2, 16, 64), name) for name in ("q", "k", "v")]
    layer = network.add_attention(*sides, trt.AttentionNormalizationOp.SOFTMAX, False)
    out(network, layer.get_output(0))


def raises(network):
    network.add_nothing(dynamic(network))


def fp4_left_open(network):
    """Kills TensorRT-RTX 1.7: the FP4 output leads nowhere."""
    tensor = dynamic(network, (64, 64))
    scale = network.add_constant((1,), np.ones((1,), np.float32)).get_output(0)
    layer = network.add_dynamic_quantize(tensor, 1, 16, trt.DataType.FP4, trt.DataType.FP8)
    layer.set_input(1, scale)
    out(network, named(network.add_identity(tensor), "same"))
    network.mark_output(layer.get_output(1))


def fp8(network):
    scale = network.add_constant((), np.ones((), np.float32)).get_output(0)
    quantized = network.add_quantize(dynamic(network, (64, 64)), scale, trt.DataType.FP8).get_output(0)
    out(network, network.add_dequantize(quantized, scale, trt.float32).get_output(0))


def matmul(network):
    weights = network.add_constant((64, 64), WARM).get_output(0)
    out(network, named(network.add_matrix_multiply(dynamic(network, (8, 64)), NONE, weights, NONE), "fc"))
