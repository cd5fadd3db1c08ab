"""Networks of TensorRT's real API to compute, and a process-wide logger that keeps what it was told."""

from __future__ import annotations

import numpy as np
import pytest

from trtdx.engines.tensorrt import evaluate, prepare_network
from trtdx.engines.tensorrt.bindings import create_builder

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")


class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.told = []

    def log(self, severity, message):
        self.told.append((severity, message))


LOG = Log()  # TensorRT accepts one in a process


class Net:
    """A strongly typed network and the arrays its weights live in."""

    def __init__(self):
        self.builder = create_builder(trt, LOG)
        self.trt = self.builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        self.kept = []

    def __getattr__(self, name):
        return getattr(self.trt, name)

    def input(self, name, shape, dtype=trt.float32):
        return self.trt.add_input(name, dtype, shape)

    def constant(self, array, dtype=None):
        """Add weights; a type numpy cannot name is passed with its bytes."""
        array = np.array(array, order="C")
        self.kept.append(array)
        if dtype is None:
            return self.trt.add_constant(array.shape, array).get_output(0)
        return self.packed(array, dtype, array.shape)

    def packed(self, raw, dtype, shape):
        self.kept.append(raw)
        weights = trt.Weights(dtype, raw.ctypes.data, int(np.prod(shape)))
        return self.trt.add_constant(shape, weights).get_output(0)

    def out(self, layer, name="y", number=0):
        tensor = layer.get_output(number) if hasattr(layer, "get_output") else layer
        tensor.name = name
        self.trt.mark_output(tensor)
        return tensor

    def run(self, taps=None, **inputs):
        return evaluate(self.trt, inputs, taps)

    def prepare(self, **options):
        return prepare_network(self.trt, **options)
