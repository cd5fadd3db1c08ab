"""Mistakes made for real with TensorRT's API and parser, and the finding that each becomes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.paths import SUPPORT

pytest.importorskip("tensorrt_rtx", reason="compiles with the real TensorRT")
onnx = pytest.importorskip("onnx")

from trtdx.capture.build.findings import findings_from_build, render_build_log  # noqa: E402
from trtdx.engines.tensorrt.build.build import build_plan  # noqa: E402
from trtdx.engines.tensorrt.build.errors import BuildError  # noqa: E402
from trtdx.engines.tensorrt.build.nouns import BuildMessage, BuildOptions  # noqa: E402
from trtdx.model import Severity  # noqa: E402

NETWORKS = f"{SUPPORT / 'faulty_networks.py'}:"
FLOAT, STRING = 1, 8
X = "x:1x64,2x64,4x64"

# What is done wrong, the options it is done with, the rule that knows it, and words of its message.
REFUSED = [
    ("plain", {}, "DX142", "dynamic inputs x"),
    ("two_inputs", {"profiles": [X]}, "DX142", "profile 0 has no .* dynamic inputs y"),
    ("plain", {"profiles": ["x:8x64,4x64,2x64"]}, "DX143", "min 8, opt 4, max 2 in axis 0"),
    ("plain", {"profiles": ["x:1x32,2x32,4x32"]}, "DX143", "which is 64 in the model"),
    ("plain", {"profiles": ["x:1x64x1,2x64x1,4x64x1"]}, "DX143", "has 3 dimensions, the input has 2"),
    ("plain", {"profiles": [f"{X} inputs:1x1"]}, "DX936", "shapes for inputs, which is not an input"),
    ("two_inputs", {"profiles": ["x:2x64,3x64,4x64 y:5x64,6x64,7x64"]}, "DX143", "at the layer residual"),
    ("reshape_dynamic", {"profiles": ["x:1x64,3x64,4x64"]}, "DX143", "impossible shapes inside"),
    ("matmul_shapes", {}, "DX162", "inner dimensions differ: 64 and 32"),
    ("matmul_types", {}, "DX161", "Half and Float"),
    ("elementwise_types", {}, "DX161", "Float and Half"),
    ("broadcast", {}, "DX162", "do not broadcast"),
    ("concat", {}, "DX162", "concatenation"),
    ("reshape_volume", {}, "DX163", r"\[8,64\] to \[7,64\]"),
    ("no_output", {}, "DX176", "no output"),
    ("output_is_input", {}, "DX176", "tensor x is a network input"),
    ("empty_name", {}, "DX924", "empty name"),
    ("weights_count", {}, "DX162", "100 weights where its shape needs 8192"),
    ("convolution_weights", {}, "DX162", "96 weights where its shape needs 144"),
    ("convolution_types", {}, "DX161", "Convolution layer conv1 is Half, but its kernel is Float"),
    ("attention", {}, "DX179", "fused attention"),
    ("raises", {}, "DX149", "add_nothing"),
    ("fp4_left_open", {}, "DX198", r"compiler crashed \(SIGSEGV\)"),
    ("fp8", {"options": BuildOptions(compute_capabilities=("8.0",))}, "DX102", "fp8_e4m3"),
    ("matmul", {"options": BuildOptions(compute_capabilities=("7.5",))}, "DX150", "compute capability"),
    ("matmul", {"options": BuildOptions(flags=("VERSION_COMPATIBLE",))}, "DX189", "libnvinfer_lean"),
]
ACCEPTED = [
    ("same_tensor_name", "DX177", "the tensor name y is already in use; it keeps the name second_output"),
    ("same_layer_name", "DX177", "the layer name L is already in use"),
    ("same_input", "DX177", "name is used twice"),
]


def written(path, nodes, inputs, outputs, *weights, opset=20, functions=()):
    helper = onnx.helper
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        list(weights),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))
    path.write_bytes(model.SerializeToString())


def node(*args, **more):
    return onnx.helper.make_node(*args, **more)


def weight(values, name):
    return onnx.numpy_helper.from_array(np.asarray(values), name)


def vectors(size=4, kind=FLOAT):
    return [("x", kind, [size])], [("y", kind, [size])]


def shapes(path):
    product = node("MatMul", ["x", "w"], ["y"], name="layers.3.mlp.gate_proj")
    bad = weight(np.ones((32, 64), np.float32), "w")
    written(path, [product], [("x", FLOAT, [8, 64])], [("y", FLOAT, [8, 64])], bad)


def types(path):
    written(path, [node("Add", ["x", "w"], ["y"], name="add")], *vectors(), weight(np.ones(4, np.float16), "w"))


def unsupported_type(path):
    written(path, [node("StringNormalizer", ["x"], ["y"], name="norm")], *vectors(kind=STRING))


def unsupported_operator(path):
    written(path, [node("Mine", ["x"], ["y"], domain="mine")], *vectors())


def undeclared(path):
    written(path, [node("Add", ["x", "nowhere"], ["y"], name="add")], *vectors())


def circle(path):
    nodes = [node("Add", ["x", "c"], ["b"]), node("Add", ["b", "x"], ["c"])]
    written(path, nodes, [("x", FLOAT, [4])], [("c", FLOAT, [4])])


def no_data(path):
    absent = onnx.TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=1)
    absent.external_data.add(key="location", value="ext.data")
    written(path, [node("Add", ["x", "w"], ["y"])], *vectors(), absent)


def cut_off(path):
    written(path, [node("Add", ["x", "w"], ["y"])], *vectors(512), weight(np.ones(512, np.float32), "w"))
    path.write_bytes(path.read_bytes()[:1000])


def calls_itself(path):
    """Kills TensorRT-RTX 1.7's parser: a file of some hundred bytes."""
    opsets = [onnx.helper.make_opsetid("mine", 1)]
    again = node("F", ["a"], ["b"], domain="mine")
    function = onnx.helper.make_function("mine", "F", ["a"], ["b"], [again], opsets)
    written(path, [node("F", ["x"], ["y"], domain="mine")], *vectors(), functions=[function])


def no_model(path):
    path.write_bytes(b"hello world" * 100)


def nothing(path):
    path.write_bytes(b"")


def index_beyond(path):
    nodes = [node("Gather", ["w", "i"], ["a"]), node("Add", ["a", "x"], ["y"])]
    written(path, nodes, *vectors(), weight(np.ones((3, 4), np.float32), "w"), weight(7, "i"))


def opset_of_the_future(path):
    written(path, [node("Relu", ["x"], ["y"])], *vectors(), opset=99)


REFUSED_FILES = [
    (shapes, "DX162", "layers.3.mlp.gate_proj do not fit"),
    (types, "DX161", "the Add node add combines"),
    (unsupported_type, "DX172", "STRING"),
    (unsupported_operator, "DX140", "Mine"),
    (undeclared, "DX192", "nothing makes nowhere"),
    (circle, "DX192", "cycle"),
    (no_data, "DX164", "ext.data"),
    (cut_off, "DX166", "ends too early"),
    (calls_itself, "DX198", r"ONNX parser crashed \(SIGSEGV\)"),
    (no_model, "DX166", "no ONNX model"),
    (nothing, "DX166", "it is empty"),
]
ACCEPTED_FILES = [(index_beyond, "DX943", "index 7 into w"), (opset_of_the_future, "DX169", "opset 99")]


def failed(source, **options):
    with pytest.raises(BuildError) as caught:
        build_plan(source, **options)
    return caught.value


def says(finding, words):
    return re.search(words, finding.message)


@pytest.mark.parametrize(("fault", "options", "code", "words"), REFUSED)
def test_a_network_that_is_refused(fault, options, code, words, book):
    first = findings_from_build(failed(NETWORKS + fault, **options), book)[0]
    assert (first.code, first.severity) == (code, Severity.ERROR)
    assert says(first, words), first.message


@pytest.mark.parametrize(("fault", "code", "words"), REFUSED_FILES)
def test_a_file_that_is_refused(fault, code, words, book, tmp_path):
    fault(tmp_path / "model.onnx")
    first = findings_from_build(failed(tmp_path / "model.onnx"), book)[0]
    assert (first.code, first.severity) == (code, Severity.ERROR)
    assert says(first, words), first.message


@pytest.mark.parametrize(("fault", "code", "words"), ACCEPTED)
def test_a_network_that_is_accepted_and_wrong(fault, code, words, book):
    found = findings_from_build(build_plan(NETWORKS + fault), book)
    assert [each.code for each in found] == [code]
    assert says(found[0], words), found[0].message


@pytest.mark.parametrize(("fault", "code", "words"), ACCEPTED_FILES)
def test_a_file_that_is_accepted_and_wrong(fault, code, words, book, tmp_path):
    fault(tmp_path / "model.onnx")
    found = findings_from_build(build_plan(tmp_path / "model.onnx"), book)
    assert [each.code for each in found] == [code]
    assert says(found[0], words), found[0].message


def test_nothing_is_found_in_what_is_right(book):
    assert findings_from_build(build_plan(NETWORKS + "matmul"), book) == []


def test_an_error_of_the_callers_is_no_finding(book):
    assert findings_from_build(failed(NETWORKS + "matmull"), book) == []


def test_a_missing_driver_is_not_the_cause():
    """Without one, TensorRT follows each error with a line about it."""
    error = failed(NETWORKS + "matmul_types")
    assert any("cudaError 35" in message.text for message in error.messages)
    assert "cudaError 35" not in render_build_log(error)


def test_what_is_unknown_is_said_to_be(book):
    error = BuildError("TensorRT does not compile it", stage="compile")
    error.messages = (BuildMessage(0.1, "ERROR", "Error Code 99: The flux compensator is not calibrated"),)
    assert [each.code for each in findings_from_build(error, book)] == ["DX000"]
