"""Whole comparisons: two sides in, the first tensor that is really wrong and its cause out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

from trtdx.compare.run import Plan, compare
from trtdx.compare.side import Question, Spec, parse_side
from trtdx.errors import InputError, UnknownNameError
from trtdx.host import RealHost
from trtdx.render import render_json, render_text

TINY = Path(__file__).parent.parent.parent / "examples" / "tiny"
QUESTION = Question(prompts=((5, 17, 42, 9, 8, 7),), new_tokens=2)


def compared(book, reference, candidate, question=QUESTION, **more):
    plan = Plan(reference=str(reference), candidate=str(candidate), question=question, **more)
    return compare(RealHost(), plan, book)


@pytest.mark.parametrize(
    "candidate", ["onnx:{}/model.onnx", "trt:{}/model.onnx", "hf:{}/model?dtype=bfloat16&attention=sdpa"]
)
def test_another_engine_or_type_is_noise(book, candidate):
    if candidate.startswith("trt"):
        pytest.importorskip("tensorrt_rtx")
    report = compared(
        book,
        f"hf:{TINY}/model",
        candidate.format(TINY),
        Question(prompts=((5, 17, 42), (9, 3)), new_tokens=2),
    )
    assert report.findings == ()
    assert report.summary.text.startswith("no difference beyond what the precision explains")
    assert {row.verdict for row in report.tensors} <= {"same", "noise", "unknown"}


def test_a_planted_mistake_is_found_and_named(book):
    report = compared(book, f"hf:{TINY}/model", f"onnx:{TINY}/rotary-mistake.onnx")
    (finding,) = report.findings
    assert finding.slug == "rotary-interleaved" or "interleaved" in finding.message
    assert finding.where.layer == 0
    assert finding.where.module == "model.layers.0.self_attn"
    assert finding.where.step == 0
    assert (
        finding.evidence[1].text.endswith("of the difference; runner-up: none")
        or "runner-up: DX" in finding.evidence[1].text
    )
    assert finding.verify.startswith(
        f"trtdx compare hf:{TINY}/model onnx:{TINY}/rotary-mistake.onnx --tokens '5 17"
    )
    document = json.loads(render_json(report))
    assert set(document["findings"][0]["where"]) == {"step", "layer", "module", "tensor", "rank", "tokens"}
    first = next(row for row in document["tensors"] if row["verdict"] == "wrong")
    assert first["ratio"] > 1000
    assert "is the first of" in render_text(report)


def test_two_captures_are_compared_without_their_models(book, tmp_path):
    kept = compared(book, f"hf:{TINY}/model", f"hf:{TINY}/model", keep=str(tmp_path / "kept"))
    assert kept.findings == ()
    again = compared(book, tmp_path / "kept" / "reference", tmp_path / "kept" / "candidate")
    assert again.findings == ()
    changed = shutil.copytree(TINY / "model", tmp_path / "changed")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    report = compared(book, tmp_path / "kept" / "reference", f"hf:{changed}")
    (finding,) = report.findings
    assert finding.where.tensor == "model.layers.0.input_layernorm:out"


def test_between_two_graphs_a_cause_is_tried_out_in_a_twin_and_the_files_are_a_second_witness(book):
    report = compared(book, f"onnx:{TINY}/model.onnx", f"onnx:{TINY}/rotary-mistake.onnx")
    (finding,) = report.findings
    assert finding.code == "DX961"
    assert finding.where.module == "model.layers.0.self_attn"
    (tried,) = [each for each in finding.evidence if each.where.startswith("tried out in a torch twin of it")]
    assert "explains 100 % of the difference" in tried.text
    assert any("in the files" in each.where or "the files agree" in each.where for each in finding.evidence)


def test_pairs_can_be_saved_and_given_again(book, tmp_path):
    first = compared(
        book, f"hf:{TINY}/model", f"onnx:{TINY}/model.onnx", save_mapping=str(tmp_path / "map.yaml")
    )
    assert "model.layers.0.mlp:out" in (tmp_path / "map.yaml").read_text()
    again = compared(book, f"hf:{TINY}/model", f"onnx:{TINY}/model.onnx", mapping=str(tmp_path / "map.yaml"))
    assert len(again.tensors) == len(first.tensors)


def test_sides_are_told_by_what_they_are(tmp_path):
    host = RealHost()
    assert parse_side(host, f"hf:{TINY}/model?dtype=float16") == Spec(
        "hf", f"{TINY}/model", {"dtype": "float16"}
    )
    assert parse_side(host, str(TINY / "model.onnx")).kind == "onnx"
    assert parse_side(host, str(TINY / "model")).kind == "hf"
    (tmp_path / "dump.npz").write_bytes(b"")
    assert parse_side(host, str(tmp_path / "dump.npz")).kind == "dump"
    with pytest.raises(InputError, match="there is no nothing"):
        parse_side(host, "nothing")
    with pytest.raises(UnknownNameError, match="no option of hf: is called 'dtyp'"):
        parse_side(host, f"hf:{TINY}/model?dtyp=float16")
