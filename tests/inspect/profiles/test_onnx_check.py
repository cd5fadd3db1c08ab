"""Faults inside an ONNX graph are found without profiles, and only those that the real TensorRT refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

from support import make_onnx as make
from trtdx.errors import MissingExtraError
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.agreements.model import onnx as onnx_agreements
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.profiles.onnx_check import COMPARED_DTYPES, SHAPE_FAILURE_OPERATORS, SINGLE_TYPE_OPERATORS
from trtdx.inspect.profiles.onnx_operators import IMPORTED_OPERATORS
from trtdx.inspect.profiles.onnx_shapes import check_deployment_shapes
from trtdx.inspect.readers.onnx import onnx_file as onnx
from trtdx.knowledge.load import load_book
from trtdx.model import Severity

HOST = RealHost()
BOOK = load_book(HOST)
HALF = TensorProto.FLOAT16
PARSE = """
import json, os, sys
import tensorrt_rtx as trt
class Quiet(trt.ILogger):
    def __init__(self): trt.ILogger.__init__(self)
    def log(self, severity, message): pass
logger = Quiet()
builder = trt.Builder(logger)
def parser_of(network): return trt.OnnxParser(network, logger)
def accepts(path):
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    if not parser_of(network).parse_from_file(path):
        return False
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    return builder.build_serialized_network(network, config) is not None
asked = json.load(sys.stdin)
network = builder.create_network(0)
names = [name for name in asked["names"] if parser_of(network).supports_operator(name)]
print(json.dumps({"names": names, "models": [accepts(path) for path in asked["models"]]}))
"""


def ask(models=(), names=()):
    """Return what TensorRT-RTX says of models and operators, in a process of its own: it may abort."""
    make.needs("tensorrt_rtx")
    asked = json.dumps({"models": list(models), "names": list(names)})
    done = subprocess.run(
        [sys.executable, "-c", PARSE], input=asked, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def checked(path):
    return check_deployment_shapes(HOST, Deployment((onnx.read_onnx_file(HOST, path),)))


@pytest.fixture
def findings(tmp_path):
    def check(made):
        return judge_findings(agreements_in(onnx_agreements), checked(make.saved(tmp_path / "model.onnx", made)), BOOK)

    return check


def one(op, *shapes, kinds=(), weights=(), opset=17, extra=(), outputs=("z",), **attributes):
    """Return a model of one node; its inputs are a, b, c and then `extra`."""
    inputs = [
        (name, shape, *kinds[position : position + 1])
        for position, (name, shape) in enumerate(zip("abc", shapes, strict=False))
    ]
    names = [name for name, *_ in inputs]
    made_node = make.node(op, [*names, *extra], list(outputs), "it", **attributes)
    return make.model([made_node], inputs, [("z", None)], weights, opset=opset, ir_version=8)


def axes(*values, name="t"):
    return make.weight(name, np.array(values, np.int64))


WRONG = {
    "BatchNormalization": one("BatchNormalization", [2, 3, 4, 4], [4], extra=("b", "b", "b")),
    "Concat": one("Concat", [2, 3], [2, 4], axis=0),
    "Conv": one("Conv", [1, 3, 8], [4, 3, 3, 3]),
    "Einsum": one("Einsum", [2, 3], [4], equation="ij,jk->ik"),
    "Expand": one("Expand", [2, 3], extra=("t",), weights=[axes(4, 3)]),
    "Flatten": one("Flatten", [2, 3], axis=5),
    "Gather": one("Gather", [2, 3], extra=("t",), weights=[axes(1)], axis=3),
    "Gemm": one("Gemm", [2, 3], [4, 5]),
    "MatMul": one("MatMul", ["n", 3], [4, 5]),
    "Pad": one("Pad", [2, 3], extra=("t",), weights=[axes(1, 1)]),
    "Reshape": one("Reshape", [2, 3], extra=("t",), weights=[axes(4, -1)]),
    "Softmax": one("Softmax", [2, 3], axis=4),
    "Squeeze": one("Squeeze", [2, 3], extra=("t",), weights=[axes(1)]),
    "Transpose": one("Transpose", [2, 3], perm=[0, 2, 1]),
    "Unsqueeze": one("Unsqueeze", [2, 3], extra=("t",), weights=[axes(7)]),
    "Where": one("Where", [2, 3], [2, 3], [4], kinds=(TensorProto.BOOL,)),
}
LOGICAL = {"And", "Or", "Xor"}


def wrong(op):
    """Return a model in which the sizes at one node of this operator contradict each other."""
    if op in WRONG:
        return WRONG[op]
    if op.startswith("Reduce"):
        moved = op == "ReduceSum"
        weights, extra = ([axes(5)], ("t",)) if moved else ([], ())
        return one(op, [2, 3], extra=extra, weights=weights, **({} if moved else {"axes": [5]}))
    kinds = (TensorProto.BOOL, TensorProto.BOOL) if op in LOGICAL else ()
    return one(op, [2, 3], [2, 4], kinds=kinds, **({"fmod": 1} if op == "Mod" else {}))


def mixed(op, first, second):
    """Return a model in which one node combines two types."""
    shapes = {"Conv": ([1, 2, 4, 4], [2, 2, 1, 1]), "LayerNormalization": ([2, 2], [2])}.get(op, ([2, 2], [2, 2]))
    attributes = {"Concat": {"axis": 0}, "Einsum": {"equation": "ij,jk->ik"}}.get(op, {})
    model = one(op, *shapes, kinds=(first, second), **attributes)
    if op == "Where":
        model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, [2, 2]))
        model.graph.node[0].input[:] = ["c", "a", "b"]
    return model


@pytest.mark.parametrize("op", sorted(SHAPE_FAILURE_OPERATORS))
def test_sizes_that_contradict_each_other_are_found(findings, op):
    (finding,) = findings(wrong(op))
    assert (finding.code, finding.severity) == ("DX162", Severity.ERROR)
    assert f"the inputs of the {op} node it do not fit together" in finding.message


def test_tensorrt_refuses_each_of_them(tmp_path):
    ops = sorted(SHAPE_FAILURE_OPERATORS)
    answers = ask([make.saved(tmp_path / f"{op}.onnx", wrong(op)) for op in ops])["models"]
    assert [op for op, accepted in zip(ops, answers, strict=True) if accepted] == []


@pytest.mark.parametrize("op", sorted(SINGLE_TYPE_OPERATORS))
def test_types_that_differ_are_found(findings, op):
    (finding,) = findings(mixed(op, TensorProto.FLOAT, HALF))
    assert (finding.code, finding.severity) == ("DX161", Severity.WARNING)
    assert f"the {op} node it combines float32 (a) and float16 (b)" in finding.message


def test_tensorrt_refuses_mixed_types_too(tmp_path):
    pairs = [
        (TensorProto.FLOAT, HALF),
        (TensorProto.BFLOAT16, TensorProto.FLOAT),
        (HALF, TensorProto.BFLOAT16),
    ]
    made = [(op, *pair) for op in sorted(SINGLE_TYPE_OPERATORS) for pair in pairs]
    numbers = [kind for kind, name in COMPARED_DTYPES.items() if name.startswith("int")]
    made += [
        ("Add", *numbers),
        ("Concat", *numbers),
        ("Where", *numbers),
        ("Mul", TensorProto.FLOAT, numbers[1]),
    ]
    answers = ask([make.saved(tmp_path / f"{at}.onnx", mixed(*each)) for at, each in enumerate(made)])["models"]
    assert [each for each, accepted in zip(made, answers, strict=True) if accepted] == []


INVALID = [
    (one("Unsqueeze", [2, 3], extra=("t",), weights=[axes(1)], opset=12), "Unsqueeze node it has no attribute axes"),
    (one("Slice", [2, 3], extra=("t", "e"), weights=[axes(0), axes(1, name="e")], opset=9), "no attribute ends"),
    (one("Slice", [2, 3], starts=[0], ends=[1], opset=13), "has 1 of the 3 inputs that opset 13 requires"),
    (one("Pad", [2, 3], pads=[0, 0, 1, 1], opset=13), "has 1 of the 2 inputs that opset 13 requires"),
    (one("TopK", [2, 3], k=2, opset=11, outputs=("z", "i")), "has 1 of the 2 inputs that opset 11 requires"),
    (one("Cast", [2, 3]), "the Cast node it has no attribute to, which opset 17 requires"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "words"), INVALID)
def test_nodes_of_another_opset_are_found_once(findings, made, words):
    (finding,) = findings(made)
    assert (finding.code, finding.severity) == ("DX192", Severity.ERROR)
    assert words in finding.message


def test_tensorrt_refuses_nodes_of_another_opset(tmp_path):
    paths = [make.saved(tmp_path / f"{at}.onnx", made) for at, (made, _) in enumerate(INVALID)]
    assert ask(paths)["models"] == [False] * len(INVALID)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (one("Squeeze", [1, 1, 3], axes=[1], opset=13), "has axes as an attribute, which is an input in opset 13"),
        (one("Squeeze", [1, 1, 3], extra=("t",), weights=[axes(1)], opset=11), "has axes as an input, which is an attribute"),
        (one("Split", [4], split=[1, 3], opset=13, outputs=("z", "y")), "has split as an attribute"),
    ],
)  # fmt: skip
def test_what_tensorrt_goes_on_without_is_a_warning(findings, made, words):
    (finding,) = findings(made)
    assert (finding.code, finding.severity) == ("DX192", Severity.WARNING)
    assert words in finding.message


@pytest.mark.parametrize(
    "made",
    [
        one("Unsqueeze", [2, 3], axes=[0], opset=17),  # the parser takes both forms
        one("ReduceMean", [2, 3], axes=[1], opset=20),
        one("Split", [2, 3], extra=("t",), weights=[axes(1, 1)], axis=1, outputs=("z", "y")),
        one("Tile", [2, 3], extra=("t",), weights=[axes(1)]),
        one("Relu", [2, 3], unknown=1),
        one("LayerNormalization", [2, 3], [3], opset=13),  # newer than its opset
        one("Pow", [2, 3], [2, 3], kinds=(HALF, TensorProto.FLOAT)),
        one("Add", [2, 3], [2, 3], kinds=(TensorProto.DOUBLE, TensorProto.FLOAT)),
        one("MatMul", ["n", "k"], ["m", 5]),
    ],
)
def test_what_onnx_forbids_and_tensorrt_takes_gives_nothing(findings, made):
    assert findings(made) == []


@pytest.mark.parametrize(("op", "kept"), [("Reshape", (3, 2)), ("Expand", (2, 3)), ("Unsqueeze", (0,))])
def test_a_shape_that_is_kept_in_another_file_gives_nothing(tmp_path, op, kept):
    model = one(op, [2, 3], extra=("t",), weights=[axes(*kept)])
    (tensor,) = model.graph.initializer
    (tmp_path / "shape.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="shape.bin")
    deployment = checked(make.saved(tmp_path / "a.onnx", model))
    assert judge_findings(agreements_in(onnx_agreements), deployment, BOOK) == []


def test_a_branch_that_cannot_work_gives_nothing(findings):
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    bad = helper.make_graph([make.node("Squeeze", ["x", "t"], ["y"])], "bad", [], out)
    good = helper.make_graph([make.node("Identity", ["x"], ["y"])], "good", [], out)
    model = make.model(
        [make.node("If", ["condition"], ["z"], then_branch=bad, else_branch=good)],
        [("x", [2, 3]), ("condition", [], TensorProto.BOOL)],
        [("z", None)],
        [axes(1)],
    )
    assert findings(model) == []


def test_operators_of_other_domains_need_a_plugin(findings):
    model = one("Rope", [2, 3], domain="com.acme")
    (finding,) = findings(model)
    assert (finding.code, finding.severity) == ("DX140", Severity.WARNING)
    assert finding.message.endswith("takes for plugins: com.acme::Rope")


def test_domains_that_tensorrt_does_not_mind_give_nothing(findings):
    assert findings(one("Gelu", [2, 3], domain="com.microsoft")) == []
    assert findings(one("EfficientNMS_TRT", [2, 3], domain="TRT")) == []
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("local", "Rope", ["a"], ["b"], body, [helper.make_opsetid("", 20)])
    calls = [make.node("Rope", ["x"], ["z"], domain="local")]
    assert findings(make.model(calls, [("x", [2])], [("z", [2])], functions=[function])) == []


def test_the_parser_imports_exactly_the_names_we_have():
    others = ["FusedMatMul", "BiasGelu", "SkipLayerNormalization", "ATen", "TreeEnsemble", "MyCustomOp"]
    assert set(ask(names=[*IMPORTED_OPERATORS, *others])["names"]) == IMPORTED_OPERATORS


def test_without_the_onnx_package_the_answer_says_what_was_not_checked(tmp_path, monkeypatch):
    def absent(package, *, extra, purpose):
        raise MissingExtraError(f"{package} is needed to {purpose}", fix=f"pip install 'trtdx[{extra}]'")

    monkeypatch.setattr("trtdx.formats.onnx.shape_inference.import_optional", absent)
    deployment = checked(make.saved(tmp_path / "a.onnx", one("Rope", [2], domain="com.acme")))
    assert deployment.first_of("onnx").unread == (
        "the types and shapes inside the graph were not checked: "
        "onnx is needed to check types and shapes inside the graph (pip install 'trtdx[onnx]')",
    )
    findings = judge_findings(agreements_in(onnx_agreements), deployment, BOOK)
    assert [finding.code for finding in findings] == ["DX140"]


@pytest.mark.parametrize(("depth", "words"), [(40, "unfold to too many"), (400, "too deeply")])
def test_functions_that_unfold_without_end_are_not_followed(tmp_path, depth, words):
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]

    def function(level):
        inner = [("Relu", "")] if level == 0 else [(f"F{level - 1}", "local")] * 2
        nodes = [
            helper.make_node(op, [f"v{at}"], [f"v{at + 1}"], domain=domain) for at, (op, domain) in enumerate(inner)
        ]
        return helper.make_function("local", f"F{level}", ["v0"], [f"v{len(inner)}"], nodes, opsets)

    call = [make.node(f"F{depth}", ["x"], ["z"], domain="local")]
    model = make.model(call, [("x", [2])], [("z", [2])], functions=[function(level) for level in range(depth + 1)])
    assert words in checked(make.saved(tmp_path / "a.onnx", model)).first_of("onnx").unread[0]


def test_a_function_that_calls_itself_and_a_huge_split_are_not_followed(tmp_path):
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    body = [helper.make_node("F", ["a"], ["b"], domain="local")]
    function = helper.make_function("local", "F", ["a"], ["b"], body, opsets)
    call = [make.node("F", ["x"], ["z"], domain="local")]
    model = make.model(call, [("x", [2])], [("z", [2])], functions=[function])
    assert "call themselves" in checked(make.saved(tmp_path / "a.onnx", model)).first_of("onnx").unread[0]
    model = one("Split", [4], num_outputs=10**9, opset=18)
    assert "claims more outputs" in checked(make.saved(tmp_path / "b.onnx", model)).first_of("onnx").unread[0]
