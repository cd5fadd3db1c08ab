"""Where nodes belong that a quantiser, a converter or ONNX Runtime itself put into a file, with their real files."""

from __future__ import annotations

import numpy as np
import pytest

from support.paths import TINY

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

import onnx

from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.side import ComparisonQuestion
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph
from trtdx.formats.onnx.places import all_taps
from trtdx.host import RealHost

onnxruntime = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")
PROMPT = (1, 15, 27, 3, 40, 22)
LAYER = "model.layers.0"
BORDERS = (
    "model.embed_tokens:out", f"{LAYER}.input_layernorm:in", f"{LAYER}.input_layernorm:out", f"{LAYER}.self_attn:in",
    f"{LAYER}.self_attn:in[1]", f"{LAYER}.self_attn:in[2]", f"{LAYER}.self_attn:out", f"{LAYER}.mlp:in", f"{LAYER}.mlp:out",
    f"{LAYER}:in", f"{LAYER}:out", "model.norm:out", "model:in", "model:in[1]", "model:out",
)  # fmt: skip
PROJECTIONS = tuple(
    f"{LAYER}.{path}:{port}"
    for path in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    for port in ("in", "out")
)


class Calibration(quantization.CalibrationDataReader):
    """The prompt, once."""

    def __init__(self):
        ids = np.array([PROMPT])
        cache = {
            f"past_key_values.{layer}.{part}": np.zeros((1, 2, 0, 8), np.float32)
            for layer in (0, 1)
            for part in ("key", "value")
        }
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(len(PROMPT))[None],
        }
        self._feeds = iter([feeds | cache])

    def get_next(self):
        return next(self._feeds, None)


def static(path, form):
    linear = [
        each.name
        for each in onnx.load(TINY / "model.onnx").graph.node
        if each.op_type == "MatMul" and "linear" in each.name
    ]
    quantization.quantize_static(
        TINY / "model.onnx", path, Calibration(), quant_format=form, weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=["MatMul"], nodes_to_quantize=linear,
    )  # fmt: skip


def half(path):
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    model = onnx.load(TINY / "model.onnx")
    onnx.save(float16.convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=True), path)


def optimised(path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    onnxruntime.InferenceSession(TINY / "model.onnx", options, providers=["CPUExecutionProvider"])


MADE = {
    "dynamic": lambda path: quantization.quantize_dynamic(
        TINY / "model.onnx", path, weight_type=quantization.QuantType.QInt8
    ),
    "by channel": lambda path: quantization.quantize_dynamic(
        TINY / "model.onnx", path, weight_type=quantization.QuantType.QInt8, per_channel=True
    ),
    "static pairs": lambda path: static(path, quantization.QuantFormat.QDQ),
    "static operators": lambda path: static(path, quantization.QuantFormat.QOperator),
    "half": half,
    "optimised": optimised,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    for name, make in MADE.items():
        make(folder / f"{name}.onnx")
    return folder


def borders(path):
    """Return the tensor at each border of a module."""
    taps = all_taps(OnnxGraph(open_model(path)))
    return {tap.place.name: tap.value for tap in taps if tap.place.path and not tap.place.tensor}


@pytest.mark.parametrize("name", ["dynamic", "by channel", "static pairs", "static operators", "half"])
def test_modules_have_the_borders_they_had(files, name):
    before, after = borders(TINY / "model.onnx"), borders(files / f"{name}.onnx")
    found = {each: after[each].removesuffix("_DequantizeLinear_Output") for each in BORDERS}
    assert found == {each: before[each] for each in BORDERS}


def test_quantisers_are_part_of_the_module_they_stand_before(files):
    """Also one that three projections share: none of them is given anything but what it was."""
    before, after = borders(TINY / "model.onnx"), borders(files / "static pairs.onnx")
    entering = [each for each in PROJECTIONS if each.endswith(":in")]
    assert {each: after[each] for each in entering} == {each: before[each] for each in entering}
    leaving = {each: after[each] for each in PROJECTIONS if each.endswith(":out")}
    assert all(value.endswith("DequantizeLinear_Output") for value in leaving.values())  # and no integers


def test_products_of_integers_are_where_their_result_is_used_or_comes_from(files):
    graph = OnnxGraph(open_model(files / "dynamic.onnx"))
    found = [
        graph.scopes[at][-1] if graph.scopes[at] else ""
        for at, node in enumerate(graph.nodes)
        if node.op_type == "MatMulInteger"
    ]
    attention, mlp = f"{LAYER}.self_attn", f"{LAYER}.mlp"
    assert sorted(found[:7]) == sorted([attention] * 4 + [mlp] * 3)
    assert found[-1] == ""  # the head, of which the file tells nothing


def test_the_order_in_which_nodes_stand_is_not_the_order_of_inputs(tmp_path):
    """Tools that rewrite files sort them anew."""
    model = onnx.load(TINY / "model.onnx")
    made = {output for node in model.graph.node for output in node.output}
    waiting, ordered, known = list(model.graph.node), [], set()
    while waiting:  # the last that can be computed comes first
        at = max(at for at, node in enumerate(waiting) if all(each in known or each not in made for each in node.input))
        ordered.append(waiting.pop(at))
        known |= set(ordered[-1].output)
    del model.graph.node[:]
    model.graph.node.extend(ordered)
    onnx.save(model, tmp_path / "sorted.onnx")
    before, after = borders(TINY / "model.onnx"), borders(tmp_path / "sorted.onnx")
    entering = [name for name in before if ":in" in name]
    assert {name: after[name] for name in entering} == {name: before[name] for name in entering}


def test_names_with_a_stroke_in_them_are_no_paths_where_others_have_none(files):
    graph = OnnxGraph(open_model(files / "optimised.onnx"))
    assert any("/" in (node.name or "") for node in graph.nodes)
    assert set(graph.scopes) == {()}  # ONNX Runtime does not keep what the exporter told


@pytest.mark.heavy
@pytest.mark.parametrize("reference", [f"onnx:{TINY / 'model.onnx'}?threads=1", f"hf:{TINY / 'model'}?threads=1"])
@pytest.mark.parametrize("name", ["dynamic", "by channel", "static pairs", "optimised"])
def test_a_file_straight_from_the_quantiser_gives_no_alarm(files, book, reference, name):
    if reference.startswith("hf:"):
        pytest.importorskip("transformers")
    plan = ComparisonPlan(
        reference=reference,
        candidate=f"onnx:{files / f'{name}.onnx'}?threads=1",
        question=ComparisonQuestion(prompts=(PROMPT,)),
        attribute=False,
    )
    report = compare(RealHost(), plan, book)
    assert not report.findings, report.summary.text
    assert report.tensors
