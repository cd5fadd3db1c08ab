"""ONNX to TensorRT-RTX by the template, with the real compiler."""

from __future__ import annotations

import re
import sys

import pytest

from trtdx.build.plan.templates import read_template
from trtdx.build.run import examine_plan, repeat_plan, run_plan
from trtdx.host import RealHost
from trtdx.inspect.run import InspectQuestion, inspect_artifacts
from trtdx.knowledge.load import load_book

pytest.importorskip("blake3")
pytest.importorskip("tensorrt_rtx")
onnx = pytest.importorskip("onnx")
BOOK = load_book(RealHost())


def write_model(path, width=8):
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, width]) for name in ("x", "y")]
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [width, width], [0.5] * width * width)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        onnx.helper.make_node("Relu", ["product"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "tiny", value[:1], value[1:], [weight])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rtx")
    write_model(folder / "model.onnx")
    text = re.sub(r"python3 -c", f"{sys.executable} -c", read_template("onnx-rtx"))
    (folder / "plan.yaml").write_text(text.replace("tools: [onnx]", "tools: []"))
    report = run_plan(RealHost(), str(folder / "plan.yaml"), BOOK)
    assert report.findings == (), report.findings
    return folder


def test_both_variants_are_compiled_and_share_the_check(project):
    assert (project / "out/model-check.txt").read_text() == "sound\n"
    assert (project / "out/production/model.plan").stat().st_size > 1000
    assert (project / "out/debug/model.plan").stat().st_size > 1000
    report = examine_plan(RealHost(), str(project / "plan.yaml"))
    assert {row[1] for row in report.sections[0].rows} == {"fresh"}


def test_inspect_says_what_a_plan_was_built_from(project):
    question = InspectQuestion(paths=(str(project / "out/production/model.plan"),))
    report = inspect_artifacts(RealHost(), question, BOOK)
    section = next(section for section in report.sections if section.key == "built-from")
    assert [row[0] for row in section.rows] == ["compile@production", "verify-model"]
    assert "model.onnx" in section.rows[0][2]


def test_a_plan_compiled_twice_is_the_same_program(project):
    report = repeat_plan(RealHost(), str(project / "plan.yaml"), BOOK, steps=["compile@production"])
    rows = {row[0]: row for row in report.sections[0].rows}
    assert rows["compile@production"][1] in ("yes", "same program, other bytes")
    assert rows["compile@production"][4] == "same"


def test_another_model_is_another_program(project):
    before = (project / "out/production/model.plan").read_bytes()
    write_model(project / "model.onnx", width=16)
    try:
        report = repeat_plan(RealHost(), str(project / "plan.yaml"), BOOK, steps=["compile@production"])
        assert report.findings[0].code == "DX1213"
        assert (project / "out/production/model.plan").read_bytes() == before
    finally:
        write_model(project / "model.onnx")
