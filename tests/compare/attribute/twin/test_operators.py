"""Every operator that twins compute gives what `onnx.reference` gives, and ONNX Runtime's own what ONNX Runtime gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from trtdx.compare.attribute.twin.contrib_operators import CONTRIB_OPERATORS
from trtdx.compare.attribute.twin.operators import CONTRIB_DOMAIN, OPERATORS, compute_operator

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

ANY = np.random.default_rng(7)
OPSET = 23


class Case(NamedTuple):
    op: str
    given: tuple[Any, ...]
    settings: dict[str, Any] = {}  # noqa: RUF012
    outputs: int = 1
    domain: str = ""
    opset: int = OPSET
    loose: float = 2e-5
    only: tuple[int, ...] = ()  # outputs to look at

    @property
    def name(self) -> str:
        return f"{self.op} {self.settings or ''} {[None if each is None else each.shape for each in self.given]}"


def f(*shape: int) -> Any:
    return ANY.standard_normal(shape).astype(np.float32)


def i(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Any:
    return ANY.integers(low, high, shape).astype(dtype)


def n(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def one(value: float, dtype: Any = np.float32) -> Any:
    return np.array(value, dtype)


def arithmetic() -> Iterator[Case]:
    a, b = f(2, 3, 4), f(3, 1)
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum"):
        yield Case(op, (a, b))
    yield Case("Max", (a, b, f(4)))
    yield Case("Div", (i(-9, 9, 5), n(2, -2, 3, -3, 4)))
    yield Case("Pow", (np.abs(a), b))
    yield Case("Pow", (a, one(2, np.int64)))
    for fmod in (0, 1):
        yield Case("Mod", (n(-4, 7, 5, 4, -7, 8), n(2, -3, 8, -2, 3, 5)), {"fmod": fmod})
    yield Case("Mod", (f(6), f(6)), {"fmod": 1})
    for op in ("And", "Or", "Xor"):
        yield Case(op, (f(3, 4) > 0, f(3, 1) > 0))
    yield Case("Not", (f(3) > 0,))
    for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        yield Case(op, (i(0, 3, 2, 5), i(0, 3, 5)))
    yield Case("Where", (f(3, 1) > 0, f(3, 4), f(1, 4)))


def elementwise() -> Iterator[Case]:
    x = f(3, 5)
    for op in ("Neg", "Abs", "Reciprocal", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Relu", "Erf", "Floor", "Ceil",
               "Sign", "Softplus", "Mish", "HardSwish", "Identity"):  # fmt: skip
        yield Case(op, (x,))
    for op in ("Sqrt", "Log"):
        yield Case(op, (np.abs(x) + 0.1,))
    yield Case("Round", (np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4], np.float32),))
    odd = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    yield Case("IsNaN", (odd,))
    for settings in ({}, {"detect_negative": 0}, {"detect_positive": 0}):
        yield Case("IsInf", (odd,), settings)
    for how in ("none", "tanh"):
        yield Case("Gelu", (x,), {"approximate": how})
    yield Case("Swish", (x,), {"alpha": 1.5}, opset=24)
    for alpha in (0.1, 0.7):
        yield Case("LeakyRelu", (x,), {"alpha": alpha})
        yield Case("Elu", (x,), {"alpha": alpha})
    for axis in (-1, 0, 1):
        yield Case("Softmax", (f(2, 3, 4),), {"axis": axis})
        yield Case("LogSoftmax", (f(2, 3, 4),), {"axis": axis})
    yield Case("Clip", (x, one(-0.5), one(0.5)))
    yield Case("Clip", (x, None, one(0.5)))
    for to in (1, 6, 7, 9, 11):
        yield Case("Cast", (x * 3,), {"to": to})
    yield Case("CastLike", (x * 3, n(1)))
    yield Case("Dropout", (x,))


def shapes() -> Iterator[Case]:
    x = f(2, 3, 4)
    for axis in (0, 1, 2, 3, -1):
        yield Case("Flatten", (x,), {"axis": axis})
    for settings in ({}, {"perm": [1, 2, 0]}):
        yield Case("Transpose", (x,), settings)
    yield Case("Reshape", (x, n(0, -1)))
    yield Case("Reshape", (f(0, 3), n(3, 0)), {"allowzero": 1})
    yield Case("Squeeze", (f(1, 3, 1), n(-1)))
    yield Case("Squeeze", (f(1, 3, 1),))
    yield Case("Unsqueeze", (x, n(0, -1)))
    for axis in (0, -1):
        yield Case("Concat", (x, f(2, 3, 4)), {"axis": axis})
    yield Case("Split", (x, n(1, 3)), {"axis": 2}, outputs=2)
    yield Case("Split", (f(7, 2),), {"num_outputs": 3}, outputs=3)
    yield Case("Slice", (x, n(1, 0), n(2**62, 3), n(1, 2), n(1, 2)))
    yield Case("Slice", (x, n(-1), n(-(2**63 - 1)), n(-1), n(-1)))
    yield Case("Slice", (x, n(0), n(-1)))
    yield Case("Expand", (f(3, 1), n(2, 1, 4)))
    yield Case("Tile", (x, n(1, 2, 2)))
    for settings in ({}, {"start": 1}, {"start": -2, "end": 2}):
        yield Case("Shape", (x,), settings)
    yield Case("Size", (x,))
    yield Case("ConstantOfShape", (n(2, 3),))
    yield Case("ConstantOfShape", (n(2),), {"value": onnx.numpy_helper.from_array(np.array([5], np.int64))})
    yield Case("Constant", (), {"value": onnx.numpy_helper.from_array(f(2, 2))})
    yield Case("Constant", (), {"value_ints": [3, 4]})
    yield Case("Range", (one(1, np.int64), one(9, np.int64), one(3, np.int64)))
    yield Case("Range", (one(1.0), one(-2.0), one(-0.5)))


def picking() -> Iterator[Case]:
    x = f(3, 4, 2)
    for axis in (0, 1, -1):
        yield Case("Gather", (x, i(-2, 2, 2, 2)), {"axis": axis})
        yield Case("GatherElements", (x, i(-2, 2, 3, 4, 2)), {"axis": axis})
    yield Case("GatherND", (x, n(0, 1, 2, 3).reshape(2, 2)))
    yield Case("GatherND", (x, n(1, 0, 3).reshape(3, 1)), {"batch_dims": 1})
    at = n(0, 2, 0).reshape(3, 1)
    for how in ("none", "add", "mul", "max", "min"):
        where = at if how != "none" else n(0, 2, 1).reshape(3, 1)
        yield Case("ScatterND", (f(3, 4), where, f(3, 4)), {"reduction": how})
    for largest in (0, 1):
        yield Case("TopK", (x, n(2)), {"axis": 1, "largest": largest}, outputs=2)
    for settings in ({}, {"axis": -1, "keepdims": 0}, {"axis": 1, "select_last_index": 1}):
        yield Case("ArgMax", (i(0, 3, 3, 4, 2).astype(np.float32),), settings)
    for upper in (0, 1):
        for by in (-1, 0, 2):
            yield Case("Trilu", (f(3, 4), one(by, np.int64)), {"upper": upper})


def sums() -> Iterator[Case]:
    x = f(2, 3, 4)
    for op in (
        "ReduceMean",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
    ):
        for axes in (n(1), n(0, -1), n(0, 1, 2)):
            for keep in (0, 1):
                yield Case(op, (x, axes), {"keepdims": keep})
        yield Case(op, (x,))
        yield Case(op, (x, np.zeros(0, np.int64)), {"noop_with_empty_axes": 1})
    for exclusive in (0, 1):
        for reverse in (0, 1):
            for axis in (0, -1):
                yield Case("CumSum", (x, one(axis, np.int64)), {"exclusive": exclusive, "reverse": reverse})


def products() -> Iterator[Case]:
    yield Case("MatMul", (f(2, 1, 3, 4), f(5, 4, 2)))
    yield Case("MatMul", (f(4), f(4, 2)))
    for first in (0, 1):
        for second in (0, 1):
            given = f(*((4, 3) if first else (3, 4))), f(*((2, 4) if second else (4, 2))), f(2)
            yield Case("Gemm", given, {"transA": first, "transB": second, "alpha": 0.5, "beta": 2.0})
    yield Case("Einsum", (f(2, 3, 4), f(2, 4, 5)), {"equation": "bij,bjk->bik"})
    yield Case("Conv", (f(2, 3, 8, 8), f(4, 3, 3, 3), f(4)), {"strides": [2, 2], "pads": [1, 1, 1, 1]})
    yield Case("Conv", (f(2, 4, 9), f(4, 2, 3)), {"group": 2, "dilations": [2]})
    for axis in (-1, 1):
        shape = (4,) if axis == -1 else (3, 4)
        yield Case("LayerNormalization", (f(2, 3, 4), f(*shape), f(*shape)), {"axis": axis, "epsilon": 0.1})
        yield Case("RMSNormalization", (f(2, 3, 4), f(*shape)), {"axis": axis, "epsilon": 0.1})
    yield Case("LayerNormalization", (f(2, 3, 4), f(4)))
    for cap in (0.0, 2.0):
        for causal in (0, 1):
            yield Case(
                "Attention",
                (f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 8)),
                {"is_causal": causal, "softcap": cap},
            )
    yield Case("Attention", (f(2, 3, 8), f(2, 3, 8), f(2, 3, 8), f(3, 5), f(2, 2, 2, 4), f(2, 2, 2, 4)),
               {"q_num_heads": 2, "kv_num_heads": 2, "scale": 0.3}, outputs=3)  # fmt: skip
    yield Case("Attention", (f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4), f(3, 3) > -0.5))
    for woven in (0, 1):
        at = i(0, 9, 2, 3)
        yield Case("RotaryEmbedding", (f(2, 2, 3, 8), f(9, 4), f(9, 4), at), {"interleaved": woven})
        yield Case("RotaryEmbedding", (f(2, 3, 16), f(2, 3, 4), f(2, 3, 4)), {"interleaved": woven, "num_heads": 2})
    yield Case("RotaryEmbedding", (f(2, 2, 3, 8), f(9, 2), f(9, 2), i(0, 9, 2, 3)), {"rotary_embedding_dim": 4})


def quantised() -> Iterator[Case]:
    x = f(3, 4)
    yield Case("QuantizeLinear", (x, one(0.02), one(120, np.uint8)))
    yield Case("QuantizeLinear", (x, one(0.02), one(3, np.int8)))
    yield Case("QuantizeLinear", (x, np.abs(f(4)) / 50 + 0.01, i(-3, 3, 4, dtype=np.int8)), {"axis": 1})
    yield Case("DequantizeLinear", (i(0, 255, 3, 4, dtype=np.uint8), one(0.02), one(120, np.uint8)))
    yield Case(
        "DequantizeLinear",
        (i(-99, 99, 3, 4, dtype=np.int8), np.abs(f(3)), i(-3, 3, 3, dtype=np.int8)),
        {"axis": 0},
    )
    yield Case("DequantizeLinear", (i(-99, 99, 3, 4, dtype=np.int8), np.abs(f(3, 2))), {"axis": 1, "block_size": 2})
    yield Case("DynamicQuantizeLinear", (x,), outputs=3)
    given = i(0, 255, 3, 4, dtype=np.uint8), i(-99, 99, 4, 2, dtype=np.int8)
    yield Case("MatMulInteger", (*given, one(7, np.uint8), one(-3, np.int8)))
    yield Case("MatMulInteger", given)
    steps = one(0.02), one(120, np.uint8)
    yield Case(
        "QLinearMatMul",
        (
            i(0, 255, 3, 4, dtype=np.uint8),
            *steps,
            i(0, 255, 4, 2, dtype=np.uint8),
            *steps,
            one(0.1),
            one(99, np.uint8),
        ),
    )


STANDARD = [case for some in (arithmetic, elementwise, shapes, picking, sums, products, quantised) for case in some()]


def own_products() -> Iterator[Case]:
    for first in (0, 1):
        for second in (0, 1):
            given = f(2, *((4, 3) if first else (3, 4))), f(2, *((2, 4) if second else (4, 2)))
            yield Case("FusedMatMul", given, {"transA": first, "transB": second, "alpha": 0.5})
    yield Case("FusedGemm", (f(3, 4), f(4, 2), f(2)), {"activation": "LeakyRelu", "activation_alpha": 0.2})
    for op in ("BiasGelu", "FastGelu"):
        yield Case(op, (f(3, 4), f(4)))
    yield Case("FastGelu", (f(3, 4),))
    yield Case("Gelu", (f(3, 4),))
    yield Case("QuickGelu", (f(3, 4),), {"alpha": 1.0})
    yield Case("QuickGelu", (f(3, 4),))
    for more in ((), (f(8),), (f(8), f(8))):
        yield Case(
            "SkipLayerNormalization",
            (f(2, 3, 8), f(2, 3, 8), f(8), *more),
            {"epsilon": 0.1},
            outputs=4,
            only=(0, 3),
        )
    for more in ((), (f(8),)):
        yield Case(
            "SkipSimplifiedLayerNormalization",
            (f(2, 3, 8), f(2, 3, 8), f(8), *more),
            {"epsilon": 0.1},
            outputs=4,
            only=(0, 3),
        )
    ids, kinds = i(0, 9, 2, 5, dtype=np.int32), i(0, 2, 2, 5, dtype=np.int32)
    yield Case(
        "EmbedLayerNormalization",
        (ids, kinds, f(9, 8), f(7, 8), f(2, 8), f(8), f(8)),
        {"epsilon": 0.1},
        outputs=3,
        only=(0, 2),
    )
    yield Case("EmbedLayerNormalization", (ids, None, f(9, 8), f(7, 8), None, f(8), f(8)), outputs=2, only=(0,))


def own_blocks() -> Iterator[Case]:
    for bits in (4, 8):
        bytes_of = 32 * bits // 8
        data, scales = i(0, 255, 6, 2, bytes_of, dtype=np.uint8), np.abs(f(6, 2))
        settings = {"K": 64, "N": 6, "bits": bits, "block_size": 32}
        zeros = i(0, 255, 6, 2 * bits // 8, dtype=np.uint8)
        for more in ((), (zeros,), (zeros, None, f(6))):
            yield Case("MatMulNBits", (f(3, 64), data, scales, *more), settings, loose=1e-4)
    table, scales = i(0, 255, 9, 16, dtype=np.uint8), np.abs(f(9, 2))
    for more in ((), (i(0, 255, 9, 1, dtype=np.uint8),)):
        yield Case(
            "GatherBlockQuantized",
            (table, i(0, 9, 2, 3), scales, *more),
            {"block_size": 16, "bits": 4, "quantize_axis": 1},
        )


def own_attention() -> Iterator[Case]:
    at = n(0, 1, 2, 3, 4, 5).reshape(2, 3)
    for woven in (0, 1):
        yield Case("RotaryEmbedding", (f(2, 2, 3, 8), at, f(9, 4), f(9, 4)), {"interleaved": woven})
        yield Case("RotaryEmbedding", (f(2, 3, 16), n(2), f(9, 4), f(9, 4)), {"interleaved": woven})
    yield Case("RotaryEmbedding", (f(2, 3, 16), at, f(9, 2), f(9, 2)), {"num_heads": 2, "rotary_embedding_dim": 4})
    yield Case("Attention", (f(2, 5, 8), f(8, 24), f(24)), {"num_heads": 2})
    yield Case("Attention", (f(2, 5, 8), f(8, 24), f(24), n(5, 3).astype(np.int32)), {"num_heads": 2})
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], np.int32)
    yield Case("Attention", (f(2, 5, 8), f(8, 24), f(24), mask), {"num_heads": 2, "scale": 0.2})
    yield Case(
        "Attention",
        (f(2, 5, 8), f(8, 24), f(24), None, f(2, 2, 2, 3, 4)),
        {"num_heads": 2, "unidirectional": 1},
        outputs=2,
    )
    yield Case("MultiHeadAttention", (f(2, 3, 8), f(2, 5, 8), f(2, 5, 8)), {"num_heads": 2})
    yield Case("MultiHeadAttention", (f(2, 3, 8), f(2, 3, 8), f(2, 3, 8), f(24), None, f(1, 1, 3, 5), f(2, 2, 2, 4), f(2, 2, 2, 4)),
               {"num_heads": 2, "scale": 0.4}, outputs=3)  # fmt: skip
    yield Case(
        "MultiHeadAttention",
        (f(2, 5, 8), f(2, 5, 8), f(2, 5, 8), None, mask),
        {"num_heads": 2, "unidirectional": 1},
    )
    yield from grouped()


def grouped() -> Iterator[Case]:
    whole = {"num_heads": 4, "kv_num_heads": 2}
    nothing = np.zeros((2, 2, 0, 16), np.float32)
    first = nothing, nothing, np.array([4, 4], np.int32), one(5, np.int32)
    tables = f(16, 8), f(16, 8)
    for settings in (
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"softcap": 2.0},
        {"local_window_size": 3},
        {"scale": 0.2},
    ):
        turning = tables if settings.get("do_rotary") else ()
        given = f(2, 5, 64), f(2, 5, 32), f(2, 5, 32)
        yield Case("GroupQueryAttention", (*given, *first, *turning), {**whole, **settings}, outputs=3)
    yield Case(
        "GroupQueryAttention",
        (f(2, 5, 128), None, None, *first, *tables),
        {**whole, "do_rotary": 1},
        outputs=3,
    )
    later = f(2, 2, 6, 16), f(2, 2, 6, 16), np.array([6, 6], np.int32), one(7, np.int32)
    given = f(2, 1, 64), f(2, 1, 32), f(2, 1, 32)
    yield Case("GroupQueryAttention", (*given, *later, *tables), {**whole, "do_rotary": 1}, outputs=3)


def own_quantised() -> Iterator[Case]:
    def u(*shape: int) -> Any:
        return i(0, 255, *shape, dtype=np.uint8)

    steps, to = (one(0.02), one(120, np.uint8)), (one(0.05), one(99, np.uint8))
    for op in ("QLinearAdd", "QLinearMul"):
        yield Case(op, (u(3, 4), *steps, u(4), *steps, *to), loose=1)
    yield Case("QLinearConcat", (*to, u(3, 4), *steps, u(3, 2), *to), {"axis": 1}, loose=1)
    yield Case(
        "QGemm",
        (
            u(3, 4),
            *steps,
            i(-99, 99, 4, 2, dtype=np.int8),
            one(0.01),
            one(2, np.int8),
            i(-99, 99, 2, dtype=np.int32),
            *to,
        ),
        loose=1,
    )
    yield Case("QGemm", (u(3, 4), *steps, u(2, 4), *steps, None), {"transB": 1})
    fine = one(1 / 256), one(0, np.uint8)
    yield Case("QLinearSigmoid", (u(3, 4), *steps, *fine), loose=1)
    yield Case("QLinearSoftmax", (u(3, 4), *steps, *fine), {"axis": -1, "opset": 13}, loose=1)
    yield Case("QLinearLeakyRelu", (u(3, 4), *steps, *to), {"alpha": 0.2}, loose=1)
    weight = i(-30, 30, 4, 2, dtype=np.int8)
    yield Case("DynamicQuantizeMatMul", (f(3, 4), weight, one(0.01), one(3, np.int8), f(2)), loose=1e-2)
    yield Case(
        "MatMulIntegerToFloat",
        (u(3, 4), weight, one(0.02), one(0.01), one(120, np.uint8), one(3, np.int8), f(2)),
    )


OWN = [
    case._replace(domain=CONTRIB_DOMAIN)
    for some in (own_products, own_blocks, own_attention, own_quantised)
    for case in some()
]
OWN.append(Case("SimplifiedLayerNormalization", (f(2, 3, 8), f(8)), {"axis": -1, "epsilon": 0.1}, opset=20))


@pytest.mark.parametrize("case", STANDARD, ids=lambda case: case.name)
def test_operators_of_onnx_are_as_its_reference_computes_them(case: Case) -> None:
    from onnx.reference import ReferenceEvaluator

    model, feeds = _model(case)
    _hold(case, ReferenceEvaluator(model).run(None, feeds))


@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_operators_of_onnx_runtime_are_as_it_computes_them(case: Case) -> None:
    model, feeds = _model(case)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    _hold(case, session.run(None, feeds))


def test_every_operator_that_a_twin_computes_is_held_against_another_who_computes_it() -> None:
    seen = {case.op for case in STANDARD}
    assert set(OPERATORS) - seen <= {"Silu", "SimplifiedLayerNormalization"}
    assert set(CONTRIB_OPERATORS) <= {case.op for case in OWN} | seen


def _hold(case: Case, wanted: list[Any]) -> None:
    given = [None if each is None else torch.from_numpy(np.array(each)) for each in case.given]
    settings = {name: _as_read(value) for name, value in case.settings.items()}
    dtype = torch.float32
    with torch.no_grad():
        made = compute_operator(case.op, given, {**settings, "_outputs": case.outputs}, dtype, domain=case.domain)
    for at, right in zip(case.only or range(case.outputs), map(np.asarray, wanted), strict=True):
        found = np.asarray(made[at])
        assert found.shape == right.shape
        np.testing.assert_allclose(found.astype(np.float64), right.astype(np.float64), rtol=case.loose, atol=case.loose)


def _as_read(value: Any) -> Any:
    import onnx_ir

    return onnx_ir.serde.deserialize_tensor(value) if isinstance(value, onnx.TensorProto) else value


def _model(case: Case) -> tuple[Any, dict[str, Any]]:
    helper = onnx.helper
    names = ["" if each is None else f"x{at}" for at, each in enumerate(case.given)]
    outputs = ["" if case.only and at not in case.only else f"y{at}" for at in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.settings)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in zip(names, case.given, strict=True)
        if name
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
    graph = helper.make_graph([node], "one", inputs, results)
    imports = [helper.make_opsetid("", case.opset), helper.make_opsetid(CONTRIB_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model, {name: each for name, each in zip(names, case.given, strict=True) if name}
