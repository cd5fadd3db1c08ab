"""Parses and computes ONNX's node tests, one after the other, in a process that a parser may bring down.

Usage: python -m support.onnx_node_worker OUT FIRST STRIDE. Appends a JSON line before and after each test.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import tensorrt_rtx as trt  # noqa: TID253 - a process of its own, started where both are there
import torch  # noqa: TID253 - likewise
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.runner import Runner, _normalize_tensor
from onnx.reference import ReferenceEvaluator

from support.onnx_node_deviations import deviation_of
from trtdx.engines.tensorrt import prepare_network
from trtdx.engines.tensorrt.network.values import trt_numpy_dtype

LOGGER = trt.Logger(trt.Logger.INTERNAL_ERROR)


def arrays_of(values):
    return [np.asarray(_normalize_tensor(value)) for value in values]


def narrowed(array):
    """TensorRT has no double: the parser makes it a float."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def feed_of(model, inputs, tensors):
    """Return inputs by the network's names; the parser may call one otherwise, and keeps the order."""
    names = [each.name for each in model.graph.input]
    by_name = dict(zip(names, map(narrowed, inputs), strict=True))
    if len(names) == len(tensors):
        return {tensor.name: by_name[name] for name, tensor in zip(names, tensors, strict=True)}
    return {tensor.name: by_name[tensor.name] for tensor in tensors}


def check_layers(ready, feed):
    """Compare every layer's output with the type and shape that TensorRT itself finds for it."""
    count = 0
    for layer, outputs in ready.iterate_layers(feed, "all"):
        for number, tensor in enumerate(layer.outputs):
            value, shape = outputs[tensor.name], layer.trt.get_output(number).shape
            assert value.dtype == trt_numpy_dtype(tensor.dtype), f"{layer.name}: {value.dtype} is not {tensor.dtype}"
            fits = len(shape) == value.ndim and all(a in (-1, b) for a, b in zip(shape, value.shape, strict=True))
            assert fits, f"{layer.name}: {value.shape} is not {tuple(shape)}"
            count += 1
    return count


def as_understood(case, inputs):
    """Return what ONNX's reference gives for the model as the parser understood it, or None."""
    deviation = deviation_of(case.name)
    if deviation is None or deviation.understood is None:
        return None
    model = copy.deepcopy(case.model)
    for node in model.graph.node:
        deviation.understood(node)
    names = [each.name for each in model.graph.input]
    return ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))


def outcome(case):
    builder = trt.Builder(LOGGER)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    if not trt.OnnxParser(network, LOGGER).parse(case.model.SerializeToString()):
        return {"status": "rejected"}
    ready = prepare_network(network)
    layers = 0
    for inputs, outputs in case.data_sets:
        feed = feed_of(case.model, arrays_of(inputs), ready.graph.inputs)
        result = ready(feed)
        found = [result[each.name] for each in case.model.graph.output]
        layers += check_layers(ready, feed)
        try:
            Runner.assert_similar_outputs(list(map(narrowed, arrays_of(outputs))), found, case.rtol, case.atol)
        except AssertionError as err:
            expected = as_understood(case, arrays_of(inputs))
            if expected is None:
                return {"status": "differs", "layers": layers, "why": " ".join(str(err).split())[:300]}
            Runner.assert_similar_outputs(expected, found, case.rtol, case.atol)
            return {"status": "understood otherwise", "layers": layers}
    return {"status": "agrees", "layers": layers}


def main(out, first, stride):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = collect_testcases(None)
    with Path(out).open("a", encoding="utf-8") as file:

        def tell(**what):
            file.write(json.dumps(what) + "\n")
            file.flush()

        for number in range(first, len(cases), stride):
            tell(number=number, name=cases[number].name)
            try:
                told = outcome(cases[number])
            except Exception as err:
                told = {"status": "failed", "why": " ".join(str(err).split())[:300]}
            tell(number=number, name=cases[number].name, **told)
        tell(done=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
