"""What --reduce takes for right where two files differ in more than one operation."""

from __future__ import annotations

import shlex
import shutil

import pytest

from support.paths import TINY as EXAMPLES

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.search.reduce import reduce_candidate
from trtdx.compare.search.same_tensors import same_tensors
from trtdx.compare.sides.side import ComparisonQuestion
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph, ValueKind
from trtdx.host import RealHost

HOST = RealHost()


@pytest.mark.heavy
@pytest.mark.parametrize("engine", ["onnx", "trt"])
def test_tensors_that_only_share_a_name_are_not_taken_for_right(tmp_path, book, trtdx, engine):
    """The other rotary embedding has a slice_4 of its own; what both have are the cache and what it is made of."""
    if engine == "trt":
        pytest.importorskip("tensorrt_rtx")
    plan = ComparisonPlan(
        reference=f"{engine}:{EXAMPLES / 'model.onnx'}",
        candidate=f"{engine}:{EXAMPLES / 'rotary-mistake.onnx'}",
        question=ComparisonQuestion(prompts=((1, 15, 27, 3),)),
        attribute=False,
    )
    where = compare(HOST, plan, book).findings[0].where
    done = reduce_candidate(HOST, plan, where, str(tmp_path / "report"), book)
    assert {"cos", "sin", "transpose_1"} <= set(done.inputs)
    assert not {"MatMul", "Softmax"} & set(done.operators)  # what rotates the keys, and no more
    assert done.confirmed
    shutil.move(tmp_path / "report", tmp_path / "elsewhere")
    found = trtdx(*shlex.split(done.command)[1:], cwd=tmp_path / "elsewhere")
    assert found.returncode == 1, found.stderr


def test_what_is_the_same_in_two_files_is_told_by_how_it_is_made():
    ours, theirs = (OnnxGraph(open_model(EXAMPLES / f"{name}.onnx")) for name in ("rotary-mistake", "model"))
    same = same_tensors(ours, theirs)
    assert same["transpose_1"] == "transpose_1"
    assert same["present.0.key"] == "present.0.key"
    assert "slice_4" not in same
    assert "matmul" not in same  # scores of rotated queries, of which nobody knows whether they are the same
    itself = same_tensors(theirs, theirs)
    data = [name for name, value in theirs.values.items() if theirs.kind(value) is ValueKind.DATA]
    assert itself == {name: name for name in itself}
    assert len(itself) > 0.9 * len(data)
