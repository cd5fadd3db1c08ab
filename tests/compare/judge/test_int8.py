"""Files from ONNX Runtime's own quantisers: healthy ones are silent, and a mistake in one is found and placed."""

from __future__ import annotations

import numpy as np
import pytest

from support.paths import TINY

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

import onnx
from onnx import numpy_helper

from trtdx.compare.align.modules_by_weight import modules_by_weights
from trtdx.compare.judge.cut_graph import CutGraph
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.side import ComparisonQuestion, SideSpec
from trtdx.formats.onnx.dequantise import dequantise_graph
from trtdx.formats.onnx.module_names import known_modules
from trtdx.host import RealHost

FLOAT = TINY / "model.onnx"
REFERENCES = {"torch": f"hf:{TINY / 'model'}?threads=1", "graph": f"onnx:{FLOAT}?threads=1"}
PROMPT = (1, 15, 27, 3, 40, 22)


def quantiser():
    return pytest.importorskip("onnxruntime.quantization")


class Samples:
    """What a static quantiser looks at: some prompts without a cache."""

    def __init__(self, prompts):
        self._left = iter(prompts)

    def get_next(self):
        prompt = next(self._left, None)
        if prompt is None:
            return None
        empty = np.zeros((1, 2, 0, 8), np.float32)
        past = {f"past_key_values.{at}.{part}": empty for at in range(2) for part in ("key", "value")}
        length = len(prompt)
        return {
            "input_ids": np.array([prompt]), "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(length)[None], **past,
        }  # fmt: skip


def static(path, form, prompts):
    """Quantise all products, those of attention too."""
    quantization = quantiser()
    quantization.quantize_static(
        str(FLOAT), str(path), Samples(prompts), quant_format=form, per_channel=False,
        weight_type=quantization.QuantType.QInt8, op_types_to_quantize=["MatMul"],
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    quantization, folder = quantiser(), tmp_path_factory.mktemp("int8")
    many = [PROMPT, *np.random.default_rng(0).integers(0, 128, (40, 12)).tolist()]
    forms = quantization.QuantFormat
    found = {
        "qdq": static(folder / "qdq.onnx", forms.QDQ, many),
        "operators": static(folder / "operators.onnx", forms.QOperator, many),
        "narrow": static(folder / "narrow.onnx", forms.QOperator, [(1, 15, 27), (5, 17, 42)]),
        "dynamic": folder / "dynamic.onnx",
    }
    int8 = quantization.QuantType.QInt8
    quantization.quantize_dynamic(FLOAT, found["dynamic"], weight_type=int8, per_channel=True)
    return found


def asked(book, reference, candidate):
    plan = ComparisonPlan(
        reference=REFERENCES[reference],
        candidate=f"onnx:{candidate}?threads=1",
        question=ComparisonQuestion(prompts=(PROMPT,)),
    )
    return compare(RealHost(), plan, book)


def changed(source, path, name, factor):
    """Multiply a scale that a file has."""
    model = onnx.load(source)
    (held,) = [each for each in model.graph.initializer if each.name == name]
    held.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held) * np.float32(factor), name))
    onnx.save(model, path)
    return path


@pytest.mark.heavy
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("kind", ["qdq", "operators", "dynamic"])
def test_healthy_files_are_silent(book, files, kind, reference):
    report = asked(book, reference, files[kind])
    assert not report.findings
    assert any(each.tensor == "model.layers.0.self_attn.q_proj:out" for each in report.tensors)


@pytest.mark.heavy
@pytest.mark.parametrize("reference", REFERENCES)
def test_a_weight_scale_that_is_twice_too_large_is_found(book, files, tmp_path, reference):
    wrong = changed(files["qdq"], tmp_path / "wrong.onnx", "val_229_scale", 2)  # of layer 0's up_proj
    (finding,) = asked(book, reference, wrong).findings
    assert finding.code == "DX948"
    assert finding.where.tensor == "model.layers.0.mlp.up_proj:out"


def scale_read_by(path, product):
    """Return the scale of what is multiplied first in a product."""
    nodes = onnx.load(path).graph.node
    given = next(each.input[0] for each in nodes if each.name == product)
    return next(each.input[1] for each in nodes if given in each.output)


@pytest.mark.heavy
def test_a_scale_of_attention_scores_that_is_too_small_holds_them(book, files, tmp_path):
    scale = scale_read_by(files["qdq"], "node_matmul_1")
    wrong = changed(files["qdq"], tmp_path / "wrong.onnx", scale, 0.5)
    (finding,) = asked(book, "torch", wrong).findings
    assert finding.code == "DX947"
    assert finding.where.tensor == "model.layers.0.self_attn.o_proj:in"


@pytest.mark.heavy
def test_numbers_beyond_what_calibration_saw_are_told_as_such(book, files):
    (finding,) = asked(book, "torch", files["narrow"]).findings
    assert finding.code == "DX947"
    assert "% of its values" in finding.message


@pytest.mark.heavy
def test_a_mistake_in_one_product_is_placed_though_the_file_names_none(book, files, tmp_path):
    wrong = changed(files["dynamic"], tmp_path / "wrong.onnx", "val_229_scale", 1.5)
    (finding,) = asked(book, "torch", wrong).findings
    assert finding.code == "DX948"
    assert finding.where.tensor == "model.layers.0.mlp.up_proj:out"


@pytest.mark.heavy
@pytest.mark.parametrize("reference", [SideSpec("hf", str(TINY / "model")), SideSpec("onnx", str(FLOAT))])
def test_weights_tell_the_modules_of_products(files, reference):
    made = modules_by_weights(reference, SideSpec("onnx", str(files["dynamic"])))
    nodes = onnx.load(files["dynamic"]).graph.node
    found = {node.input[1]: made[node.output[0]] for node in nodes if node.output[0] in made}
    assert found["val_229_quantized"] == "model.layers.0.mlp.up_proj"
    assert found["val_381_quantized"] == "lm_head"
    assert len(set(found.values())) == 15
    assert not modules_by_weights(reference, SideSpec("onnx", str(FLOAT))), "it tells them all"


def test_what_is_known_of_a_file_is_known_inside_the_block_only(files):
    nodes = onnx.load(files["dynamic"]).graph.node
    product = next(node for node in nodes if "val_229_quantized" in node.input)
    names = {product.output[0]: "model.layers.0.mlp.up_proj"}
    with known_modules(files["dynamic"], names):
        inside = {place.path for place in CutGraph(files["dynamic"]).value_by_place}
    outside = {place.path for place in CutGraph(files["dynamic"]).value_by_place}
    assert "model.layers.0.mlp.up_proj" in inside - outside


def test_a_graph_in_floats_has_no_quantiser_of_what_it_computes(files):
    for kind in ("qdq", "operators"):
        cut = CutGraph(files[kind], lambda graph: dequantise_graph(graph, steps=False))
        operators = {node.op_type for node in cut.graph.model.graph}
        assert not operators & {"QuantizeLinear", "QLinearMatMul"}
        assert all(each.low <= 0 < each.high for each in cut.change_result)
