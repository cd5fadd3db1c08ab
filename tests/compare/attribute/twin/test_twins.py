"""Causes where the reference is not a torch model: torch twins of its modules, the model a capture names, and the files."""

from __future__ import annotations

import sys

import pytest

from support.paths import TINY

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

import numpy as np
import onnx

from support.graph_edits import EDITS, edited
from trtdx.compare.attribute.files.constant_causes import FileCause
from trtdx.compare.attribute.files.file_cause import compare_files
from trtdx.compare.attribute.files.weigh_evidence import merge_file_cause
from trtdx.compare.attribute.suspect import Suspect
from trtdx.compare.attribute.twin.graph_reader import (
    GraphEmbedding,
    GraphLinear,
    GraphNorm,
    GraphReader,
    identify_part,
    load_graph,
)
from trtdx.compare.attribute.twin.operators import OPERATORS, UnknownOperatorError, compute_operator
from trtdx.compare.attribute.twin.stand_in import _captured_shapes, build_twin, check_stand_in, find_stand_in
from trtdx.compare.nouns import CauseHypothesis
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.side import ComparisonQuestion, open_side, parse_side
from trtdx.errors import InputError
from trtdx.formats.onnx.places import module_calls, module_nodes
from trtdx.host import RealHost

pytestmark = pytest.mark.heavy

torch = sys.modules["torch"]
LAYER = "layers.1"
QUESTION = ComparisonQuestion(prompts=((5, 17, 42, 9, 8, 7, 81, 33, 2, 61),), new_tokens=1)


def compared(book, reference, candidate, question=QUESTION):
    plan = ComparisonPlan(reference=str(reference), candidate=str(candidate), question=question)
    return compare(RealHost(), plan, book)


@pytest.fixture(scope="module")
def reference(llama_onnx, tmp_path_factory):
    """Return the side of a small Llama on ONNX Runtime."""
    host = RealHost()
    return open_side(
        host, parse_side(host, f"onnx:{llama_onnx}"), QUESTION, tmp_path_factory.mktemp("twins") / "reference"
    )


def suspect_in(side, path):
    """Return a suspect whose candidate is the reference itself."""
    records = list(side.capture.records(step=0))
    inside = [each for each in records if each.name.startswith((f"{path}:", f"{path}."))]
    entering = {each.name: side.capture.values(each) for each in inside if each.name.startswith(f"{path}:in")}
    leaving = {each.name: side.capture.values(each) for each in inside if each.name not in entering}
    return Suspect(path, reference=side, reference_inputs=entering, candidate_outputs=leaving)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (f"{LAYER}.input_layernorm", "TwinNorm"),
        (f"{LAYER}.self_attn.o_proj", "TwinLinear"),
        (f"{LAYER}.self_attn", "TwinScope"),
        (f"{LAYER}.mlp.act_fn", "TwinScope"),
        (f"{LAYER}.mlp", "TwinScope"),
        (LAYER, "TwinScope"),
        ("embed_tokens", "TwinEmbedding"),
        ("rotary_emb", "TwinScope"),
        ("m.lm_head", "TwinLinear"),
        ("m.model", "TwinScope"),
    ],
)
def test_a_twin_gives_what_the_graph_gave(reference, module, kind):
    graph = load_graph(reference.spec.path)
    path = next(each for each in module_nodes(graph) if each.endswith(module))
    found = find_stand_in(suspect_in(reference, path))
    assert type(found.suspect.engine.model.get_submodule(path)).__name__ == kind
    assert "made from" in found.description


def test_attention_and_rotary_embedding_are_led_where_mistakes_are_tried(reference):
    graph = load_graph(reference.spec.path)
    path = next(each for each in module_nodes(graph) if each.endswith(f"{LAYER}.self_attn"))
    module = build_twin(GraphReader(graph, _captured_shapes(graph, reference, 0)), path).get_submodule(path)
    units = module.program._ordered_units(frozenset())
    assert module.program.has_attention
    assert any(len(unit.outputs) == 2 and len(unit.inputs) == 4 for unit in units), "queries and keys turned"
    assert module.head_dim == 16


def test_what_does_not_give_the_references_values_is_not_used(reference):
    path = "m.lm_head"
    suspect = suspect_in(reference, path)
    off = {name: each + 1 for name, each in suspect.reference_inputs.items()}
    with pytest.raises(InputError, match="away from the reference"):
        find_stand_in(suspect._replace(reference_inputs=off))


@pytest.mark.parametrize(
    "name", ["epsilon", "weight transposed", "attention scale", "activation", "residual twice", "rotary base"]
)
def test_a_mistake_in_an_onnx_file_is_named_beside_an_onnx_reference(book, llama_onnx, tmp_path, name):
    bad, code, module = edited(llama_onnx, tmp_path / "bad.onnx", name, LAYER)
    (finding,) = compared(book, f"onnx:{llama_onnx}", f"onnx:{bad}").findings
    assert finding.code == code
    assert finding.where.module.endswith(module)
    told = {each.where.partition(" in a ")[0]: each.text for each in finding.evidence}
    assert "explains 100 % of the difference" in told["tried out"]
    assert "the files agree" in told


def test_a_tensorrt_reference_has_twins_too(book, llama_onnx, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    bad, code, module = edited(llama_onnx, tmp_path / "bad.onnx", "attention scale", LAYER)
    (finding,) = compared(book, f"trt:{llama_onnx}", f"trt:{bad}").findings
    assert (finding.code, finding.where.module.endswith(module)) == (code, True)


def test_the_model_that_a_capture_names_is_used(book, tmp_path):
    host = RealHost()
    open_side(host, parse_side(host, f"hf:{TINY}/model"), QUESTION, tmp_path / "captured")
    (finding,) = compared(book, tmp_path / "captured", f"onnx:{TINY}/rotary-mistake.onnx").findings
    assert finding.code == "DX961"
    assert "which the capture names" in finding.evidence[1].where


def test_a_capture_of_a_graph_has_twins_too(book, llama_onnx, tmp_path):
    host = RealHost()
    bad, code, _ = edited(llama_onnx, tmp_path / "bad.onnx", "epsilon", LAYER)
    for name, path in (("good", llama_onnx), ("bad", bad)):
        open_side(host, parse_side(host, f"onnx:{path}"), QUESTION, tmp_path / name)
    (finding,) = compared(book, tmp_path / "good", tmp_path / "bad", ComparisonQuestion()).findings
    assert finding.code == code


def test_a_model_that_changed_since_it_was_captured_is_not_used(book, tmp_path):
    host = RealHost()
    torch.manual_seed(0)
    side = open_side(host, parse_side(host, f"hf:{TINY}/model"), QUESTION, tmp_path / "captured")
    engine = side.spec.open("")
    for parameter in engine.model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    with pytest.raises(InputError, match="away from the reference"):
        check_stand_in(suspect_in(side, "model.layers.0.mlp.up_proj"), engine)
    engine.close()


# What the files tell.


@pytest.mark.parametrize("name", EDITS)
def test_the_files_alone_tell_the_mistake(llama_onnx, tmp_path, name):
    bad, code, module = edited(llama_onnx, tmp_path / "bad.onnx", name, LAYER)
    found = compare_files(str(llama_onnx), str(bad), module)[1]
    assert found is not None
    assert found.code == code


def test_the_files_tell_nothing_of_what_is_the_same_or_of_two_mistakes(llama_onnx, tmp_path):
    assert compare_files(str(llama_onnx), str(llama_onnx), LAYER)[1] is None
    once, _, _ = edited(llama_onnx, tmp_path / "once.onnx", "epsilon", LAYER)
    twice, _, _ = edited(once, tmp_path / "twice.onnx", "weight transposed", LAYER)
    assert compare_files(str(llama_onnx), str(twice), LAYER)[1] is None


SUM, SHARD = (CauseHypothesis(code, 1.0, {"alike": "both"}, "") for code in ("DX985", "DX984"))


def test_files_decide_between_what_explains_as_much():
    found = merge_file_cause([SUM, SHARD], FileCause("DX984", "half of it is zero"))
    assert [each.code for each in found] == ["DX984", "DX985"]
    assert found[0].values == {"files": "half of it is zero", "witness": "agrees"}


def test_files_alone_name_a_cause_that_is_less_sure():
    (found, *_) = merge_file_cause([CauseHypothesis("DX985", 0.3, {}, "")], FileCause("DX984", "zero"))
    assert (found.code, found.values["witness"]) == ("DX984", "alone")
    assert 0.5 < found.share < 0.9
    assert merge_file_cause([], None) == []


def test_files_say_what_is_wrong_with_weights_that_explain_it():
    found = merge_file_cause(
        [CauseHypothesis("DX977", 1.0, {}, "")], FileCause("DX962", "of another base", {"found": "2e5"})
    )
    assert (found[0].code, found[0].share, found[0].values["found"]) == ("DX962", 1.0, "2e5")


def test_files_do_not_outvote_what_explains_the_numbers():
    assert merge_file_cause([SUM], FileCause("DX975", "an epsilon")) == [SUM]


# What a part is, its structure tells.


def graph_file(tmp_path, nodes, weights, *, ids=False, width=8):
    made = onnx.helper
    kind = onnx.TensorProto.INT64 if ids else onnx.TensorProto.FLOAT
    shape = ["batch", 3] if ids else ["batch", 3, width]
    graph = made.make_graph(
        [made.make_node(op, reads, [makes], name=f"/block/part/{op}_{makes}", **more) for op, reads, makes, more in nodes],
        "g", [made.make_tensor_value_info("x", kind, shape)], [made.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(each, name) for name, each in weights.items()],
    )  # fmt: skip
    path = tmp_path / "part.onnx"
    onnx.save(made.make_model(graph, opset_imports=[made.make_opsetid("", 18)], ir_version=9), path)
    graph = load_graph(str(path))
    return identify_part(
        GraphReader(graph, {"x": (1, 3) if ids else (1, 3, width)}),
        module_calls(graph, module_nodes(graph)["block.part"])[0],
    )


ROW = np.linspace(0.5, 2, 8, dtype=np.float32)
MATRIX = np.arange(32, dtype=np.float32).reshape(8, 4)


def test_a_product_with_its_bias_is_known_by_its_operators(tmp_path):
    nodes = [("MatMul", ["x", "w"], "m", {}), ("Add", ["b", "m"], "y", {})]
    part = graph_file(tmp_path, nodes, {"w": MATRIX, "b": ROW[:4]})
    assert isinstance(part, GraphLinear)
    assert np.array_equal(part.weight, MATRIX.T)
    assert np.array_equal(part.bias, ROW[:4])


def test_a_layer_norm_in_single_operators_is_known(tmp_path):
    nodes = [
        ("ReduceMean", ["x", "axis"], "mean", {}), ("Sub", ["x", "mean"], "c", {}), ("Mul", ["c", "c"], "sq", {}),
        ("ReduceMean", ["sq", "axis"], "v", {}), ("Add", ["v", "eps"], "e", {}), ("Sqrt", ["e"], "s", {}),
        ("Div", ["c", "s"], "n", {}), ("Mul", ["n", "w"], "m", {}), ("Add", ["m", "b"], "y", {}),
    ]  # fmt: skip
    weights = {"axis": np.array([-1]), "eps": np.array(1e-3, np.float32), "w": ROW, "b": -ROW}
    part = graph_file(tmp_path, nodes, weights)
    assert isinstance(part, GraphNorm)
    assert part.centred
    assert part.eps == pytest.approx(1e-3)
    assert np.array_equal(part.weight, ROW)
    assert np.array_equal(part.bias, -ROW)


def test_a_table_and_its_factor_are_known(tmp_path):
    nodes = [("Gather", ["w", "x"], "g", {}), ("Mul", ["g", "f"], "y", {})]
    part = graph_file(tmp_path, nodes, {"w": MATRIX, "f": np.array(8, np.float32)}, ids=True)
    assert isinstance(part, GraphEmbedding)
    assert part.scale == 8


def test_two_products_are_no_part(tmp_path):
    nodes = [("MatMul", ["x", "w"], "m", {}), ("MatMul", ["m", "v"], "y", {})]
    assert graph_file(tmp_path, nodes, {"w": MATRIX, "v": MATRIX.T.copy()}) is None


# Operators.

X = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)
WHOLE = np.array
OPERATIONS = {
    "Slice backwards": ("Slice", [X, WHOLE([2]), WHOLE([-(2**63)]), WHOLE([1]), WHOLE([-1])], {}),
    "Slice": ("Slice", [X, WHOLE([1, 0]), WHOLE([9, 4]), WHOLE([1, 2]), WHOLE([1, 2])], {}),
    "Split": ("Split", [X, WHOLE([1, 3])], {"axis": 2}),
    "Gather": ("Gather", [X, WHOLE([[2, -1]])], {"axis": 1}),
    "GatherND": ("GatherND", [X, WHOLE([[1, 2], [0, 0]])], {}),
    "ScatterND": ("ScatterND", [X, WHOLE([[1, 2]]), np.ones((1, 4), np.float32)], {}),
    "Reshape": ("Reshape", [X, WHOLE([0, -1])], {}),
    "Unsqueeze": ("Unsqueeze", [X, WHOLE([-1, 0])], {}),
    "Trilu": ("Trilu", [X, np.array(1)], {"upper": 0}),
    "CumSum": ("CumSum", [X, np.array(1)], {"exclusive": 1}),
    "TopK": ("TopK", [X, WHOLE([2])], {}),
    "LayerNormalization": ("LayerNormalization", [X, X[0, 0], X[0, 1]], {"epsilon": 1e-3}),
    "Gemm": ("Gemm", [X[0], X[1], X[0, :, 0]], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    "ReduceSum": ("ReduceSum", [X, WHOLE([0, 2])], {"keepdims": 0}),
    "Gelu": ("Gelu", [X], {"approximate": "tanh"}),
    "QuantizeLinear": ("QuantizeLinear", [X, np.float32(0.02), np.uint8(128)], {}),
    "DequantizeLinear": ("DequantizeLinear", [np.int8([[1, -2], [3, 4]]), np.float32([0.5, 2])], {"axis": 0}),
    "Expand": ("Expand", [X[:, :1], WHOLE([3, 1])], {}),
    "Where": ("Where", [X > 0, X, np.float32(0)], {}),
    "Range": ("Range", [np.array(2), np.array(9), np.array(3)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operators_are_onnx_operators(name):
    """Beside ONNX's own reference, not its runtime."""
    from onnx.reference import ReferenceEvaluator

    op, given, settings = OPERATIONS[name]
    helper = onnx.helper
    count = {"Split": 2, "TopK": 2}.get(op, 1)
    values = [
        helper.make_tensor_value_info(f"i{at}", helper.np_dtype_to_tensor_dtype(np.asarray(each).dtype), None)
        for at, each in enumerate(given)
    ]
    node = helper.make_node(op, [each.name for each in values], [f"o{at}" for at in range(count)], **settings)
    outputs = [helper.make_tensor_value_info(each, 1, None) for each in node.output]
    graph = helper.make_graph([node], "g", values, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    right = ReferenceEvaluator(model).run(None, {each.name: np.asarray(given[at]) for at, each in enumerate(values)})
    made = compute_operator(op, [torch.as_tensor(np.asarray(each)) for each in given], settings, torch.float32)
    for one, other in zip(right, made, strict=True):
        np.testing.assert_allclose(other.numpy(), one, rtol=1e-5, atol=1e-5)


def test_an_operator_nobody_knows_is_an_error():
    assert "Loop" not in OPERATORS
    with pytest.raises(UnknownOperatorError, match="Loop"):
        compute_operator("Loop", [], {}, torch.float32)
