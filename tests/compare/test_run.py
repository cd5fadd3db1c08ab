"""Whole comparisons: two sides in, the first tensor that is really wrong and its cause out."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from support.paths import TINY

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.side import ComparisonQuestion, SideSpec, open_side, parse_side
from trtdx.engines.generate import cache_outputs_by_input, complete_feeds
from trtdx.errors import InputError, UnknownNameError
from trtdx.host import RealHost
from trtdx.render import render_json, render_text

QUESTION = ComparisonQuestion(prompts=((5, 17, 42, 9, 8, 7),), new_tokens=2)


def compared(book, reference, candidate, question=QUESTION, **more):
    plan = ComparisonPlan(reference=str(reference), candidate=str(candidate), question=question, **more)
    return compare(RealHost(), plan, book)


@pytest.mark.heavy
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
        ComparisonQuestion(prompts=((5, 17, 42), (9, 3)), new_tokens=2),
    )
    assert report.findings == ()
    assert report.summary.text.startswith("no difference beyond what the precision explains")
    assert {row.verdict for row in report.tensors} <= {"same", "noise", "unknown"}


@pytest.mark.heavy
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
    assert finding.verify.startswith(f"trtdx compare hf:{TINY}/model onnx:{TINY}/rotary-mistake.onnx --tokens '5 17")
    document = json.loads(render_json(report))
    assert set(document["findings"][0]["where"]) == {"step", "layer", "module", "tensor", "rank", "tokens"}
    first = next(row for row in document["tensors"] if row["verdict"] == "wrong")
    assert first["ratio"] > 1000
    assert "is the first of" in render_text(report)


def test_two_captures_are_compared_without_their_models(book, tmp_path):
    kept = compared(book, f"hf:{TINY}/model", f"hf:{TINY}/model", keep=str(tmp_path / "kept"))
    assert kept.findings == ()
    captures = (tmp_path / "kept" / "reference", tmp_path / "kept" / "candidate")
    again = compared(book, *captures, question=ComparisonQuestion())
    assert again.findings == ()
    changed = shutil.copytree(TINY / "model", tmp_path / "changed")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    report = compared(book, tmp_path / "kept" / "reference", f"hf:{changed}")
    (finding,) = report.findings
    assert finding.where.tensor == "model.layers.0.input_layernorm:out"


@pytest.mark.heavy
def test_between_two_graphs_a_cause_is_tried_out_in_a_twin_and_the_files_are_a_second_witness(book):
    report = compared(book, f"onnx:{TINY}/model.onnx", f"onnx:{TINY}/rotary-mistake.onnx")
    (finding,) = report.findings
    assert finding.code == "DX961"
    assert finding.where.module == "model.layers.0.self_attn"
    (tried,) = [each for each in finding.evidence if each.where.startswith("tried out in a torch twin of it")]
    assert "explains 100 % of the difference" in tried.text
    assert any("in the files" in each.where or "the files agree" in each.where for each in finding.evidence)


@pytest.mark.heavy
def test_pairs_can_be_saved_and_given_again(book, tmp_path):
    first = compared(book, f"hf:{TINY}/model", f"onnx:{TINY}/model.onnx", save_mapping=str(tmp_path / "map.yaml"))
    assert "model.layers.0.mlp:out" in (tmp_path / "map.yaml").read_text()
    again = compared(book, f"hf:{TINY}/model", f"onnx:{TINY}/model.onnx", mapping=str(tmp_path / "map.yaml"))
    assert len(again.tensors) == len(first.tensors)


def test_sides_are_told_by_what_they_are(tmp_path):
    host = RealHost()
    assert parse_side(host, f"hf:{TINY}/model?dtype=float16") == SideSpec("hf", f"{TINY}/model", {"dtype": "float16"})
    assert parse_side(host, str(TINY / "model.onnx")).kind == "onnx"
    assert parse_side(host, str(TINY / "model")).kind == "hf"
    (tmp_path / "dump.npz").write_bytes(b"")
    assert parse_side(host, str(tmp_path / "dump.npz")).kind == "dump"
    with pytest.raises(InputError, match="there is no nothing"):
        parse_side(host, "nothing")
    with pytest.raises(UnknownNameError, match="no option of hf: is called 'dtyp'"):
        parse_side(host, f"hf:{TINY}/model?dtyp=float16")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "arrays",
    [
        {"input_ids": [[5, 17, 42, 9]]},
        {"input_ids": [[0, 17, 42, 9], [5, 17, 42, 9]], "attention_mask": [[0, 1, 1, 1], [1, 1, 1, 1]]},
    ],
)
def test_token_ids_in_a_file_are_enough_what_follows_from_them_is_derived(book, tmp_path, arrays):
    np.savez(tmp_path / "inputs.npz", **{name: np.array(each, np.int64) for name, each in arrays.items()})
    question = ComparisonQuestion(inputs=str(tmp_path / "inputs.npz"))
    report = compared(book, f"hf:{TINY}/model", f"onnx:{TINY}/model.onnx", question)
    assert not report.findings
    assert report.compared > 50


def test_a_file_that_goes_on_from_a_cache_has_its_positions_derived(tmp_path):
    engine = parse_side(RealHost(), f"onnx:{TINY}/model.onnx").open("")
    whole = engine.run(complete_feeds(engine, {"input_ids": np.array([[5, 17, 42, 9]])}))
    first = engine.run(complete_feeds(engine, {"input_ids": np.array([[5, 17, 42]])}))
    past = {name: first[present] for name, present in cache_outputs_by_input(engine).items()}
    last = engine.run(complete_feeds(engine, {"input_ids": np.array([[9]]), **past}))
    np.testing.assert_allclose(last["logits"][0, -1], whole["logits"][0, -1], rtol=1e-4, atol=1e-5)


def test_a_part_of_a_cache_that_holds_something_is_not_made_up():
    engine = parse_side(RealHost(), f"onnx:{TINY}/model.onnx").open("")
    first = engine.run(complete_feeds(engine, {"input_ids": np.array([[5, 17, 42]])}))
    name, present = next(iter(cache_outputs_by_input(engine).items()))
    with pytest.raises(InputError, match="not given"):
        engine.run(complete_feeds(engine, {"input_ids": np.array([[9]]), name: first[present]}))


def test_captures_of_outputs_and_caches_alone_name_what_is_wrong_before_the_output_projection(book, tmp_path):
    host = RealHost()
    for name, text in (("right", f"hf:{TINY}/model"), ("wrong", f"onnx:{TINY}/rotary-mistake.onnx")):
        spec = parse_side(host, text)
        open_side(host, spec, QUESTION, tmp_path / name, selector="**:out & is:module")
    (finding,) = compared(book, tmp_path / "right", tmp_path / "wrong", ComparisonQuestion()).findings
    assert finding.where.tensor == "present.0.key:new"
    assert finding.where.module == "model.layers.0.self_attn"
