"""Networks that a user would define in a file, for the compiling process to run by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import tensorrt_rtx as trt  # noqa: TID253 - a user's file

from trtdx.engines.tensorrt import register as register_anywhere

WIDTH = 64


def mlp(network, layers=3):
    """Add layers of a product and a ReLU, which production computes in one kernel each."""
    hidden = []
    tensor = network.add_input("x", trt.float32, (-1, WIDTH))
    for number in range(layers):
        weights = network.add_constant((WIDTH, WIDTH), np.full((WIDTH, WIDTH), number + 1, np.float32))
        weights.name = f"layers.{number}.weight"
        none = trt.MatrixOperation.NONE
        product = network.add_matrix_multiply(tensor, none, weights.get_output(0), none)
        product.name = f"layers.{number}.fc"
        relu = network.add_activation(product.get_output(0), trt.ActivationType.RELU)
        relu.name = f"layers.{number}.act"
        tensor = relu.get_output(0)
        hidden.append(product.get_output(0))
    tensor.name = "y"
    network.mark_output(tensor)
    return hidden


def registered(network, register):
    for number, tensor in enumerate(mlp(network)[:2]):
        register(f"hidden{number}", tensor)


def registered_deep_inside(network):
    register_anywhere("deep", mlp(network)[1])


def looped(network, times=30):
    """Add a loop with many layers inside."""
    tensor = network.add_input("x", trt.float32, (4, 4))
    loop = network.add_loop()
    count = network.add_constant((), np.array(3, np.int32)).get_output(0)
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    recurrence = loop.add_recurrence(tensor)
    inside = recurrence.get_output(0)
    for number in range(times):
        layer = network.add_activation(inside, trt.ActivationType.TANH)
        layer.name = f"body.{number}.tanh"
        inside = layer.get_output(0)
    recurrence.set_input(1, inside)
    last = loop.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0)
    after = network.add_activation(last.get_output(0), trt.ActivationType.RELU)
    after.name = "after"
    network.mark_output(after.get_output(0))


class Model:
    """Has TensorRT-LLM's way to name tensors."""

    def __init__(self, network):
        self._hidden = mlp(network)

    def named_network_outputs(self):
        yield from ((f"model.layers.{number}.fc", tensor) for number, tensor in enumerate(self._hidden))


def like_tensorrt_llm(network):
    return Model(network)


def told_its_id(network):
    """Tell which process this is, and never come to an end."""
    Path(os.environ["TRTDX_TEST_PID"]).write_text(str(os.getpid()))
    time.sleep(600)


def killed(network):
    mlp(network)
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(network):
    os._exit(0)


def prints(network):
    print("the user's own words")  # noqa: T201
    mlp(network)
