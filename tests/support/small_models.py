"""Models and captures small enough to be made in a test: two matrices and a ReLU, as ONNX."""

from __future__ import annotations

import numpy as np

LAYERS = ("first", "second")


def make_onnx(path, *, scale=1.0, names=LAYERS):
    """Write x -> MatMul -> Relu -> MatMul -> z; `scale` is of the second matrix, `names` are of what leaves each."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    source = np.random.default_rng(0)
    weights = [source.standard_normal((8, 8)).astype("f4") for _ in names]
    weights[-1] = (weights[-1] * scale).astype("f4")
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], [names[0]]),
        helper.make_node("Relu", [names[0]], ["active"]),
        helper.make_node("MatMul", ["active", "w1"], [names[1]]),
        helper.make_node("Identity", [names[1]], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(weight, f"w{number}") for number, weight in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def layers(count=3, *, wrong=None, by=0.1, rows=5, dtype="f4"):
    """Return what leaves each layer as arrays by name; from the layer `wrong` on it is off."""
    source = np.random.default_rng(1)
    found = {}
    for number in range(count):
        array = source.standard_normal((rows, 16)).astype(dtype)
        off = source.standard_normal(array.shape)
        if wrong is not None and number >= wrong:
            array = (array + by * off).astype(dtype)
        found[f"model.layers.{number}:out"] = array
    return found
