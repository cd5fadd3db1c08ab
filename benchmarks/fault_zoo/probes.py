"""What this machine is like."""

from __future__ import annotations

from functools import cache

import numpy as np

from .nouns import EXACT, SATURATES


@cache
def saturates() -> bool:
    """Whether ONNX Runtime's products of unsigned by signed bytes are cut off at 16 bits here, as on x86 without VNNI."""
    import onnxruntime
    from onnx import TensorProto, helper

    node = helper.make_node("MatMulInteger", ["a", "b"], ["c"])
    inputs = [("a", TensorProto.UINT8, [1, 64]), ("b", TensorProto.INT8, [64, 1])]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info("c", TensorProto.INT32, [1, 1])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (total,) = session.run(None, {"a": np.full((1, 64), 255, np.uint8), "b": np.full((64, 1), 127, np.int8)})
    return int(total[0, 0]) != 255 * 127 * 64


def has(need: str) -> bool:
    """Whether the machine is as a fault needs it."""
    return {"": True, SATURATES: saturates(), EXACT: not saturates()}[need] if need else True
