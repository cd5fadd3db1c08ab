"""A run that was kept, made again: unchanged, changed and where first, or honestly neither."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.paths import TINY

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from typer.testing import CliRunner

from support.small_models import make_onnx
from trtdx.capture.run import CapturePlan, capture_run
from trtdx.capture.store import format as disk
from trtdx.capture.store.format import CaptureError
from trtdx.capture.store.reader import Capture
from trtdx.cli.main import app
from trtdx.compare.search.baseline import BaselineCheck, compare_with_baseline
from trtdx.engines.open_engine import EngineOptions
from trtdx.errors import InputError
from trtdx.host import RealHost

HOST = RealHost()


def kept(book, folder, model, *, values="**", **more):
    capture_run(HOST, CapturePlan(model=str(model), out=str(folder), values=values, **more), book)
    return folder


@pytest.fixture
def model(tmp_path):
    np.savez(tmp_path / "in.npz", **{"step0/x": np.ones((2, 8), "f4"), "step1/x": np.full((3, 8), -0.5, "f4")})
    return make_onnx(tmp_path / "model.onnx")


@pytest.fixture
def good(book, tmp_path, model):
    return kept(book, tmp_path / "good", model, inputs=(str(tmp_path / "in.npz"),))


def again(book, baseline, model="", **more):
    return compare_with_baseline(HOST, BaselineCheck(baseline=str(baseline), model=str(model), **more), book)


def test_an_unchanged_model_is_one_line(book, good):
    report = again(book, good)
    assert report.findings == ()
    assert report.sections == ()
    assert report.summary.text == f"unchanged since {good}: {len(report.tensors)} tensors, all bitwise the same"
    assert {row.step for row in report.tensors} == {0, 1}


def test_the_first_changed_tensor_is_named_with_what_changed_in_the_files(book, good, model):
    make_onnx(model, scale=1.001)
    report = again(book, good)
    (finding,) = report.findings
    assert finding.code == "DX931"
    assert (finding.where.tensor, finding.where.step) == ("second", 0)
    assert finding.message == "second at step 0 is not what the baseline has"
    assert finding.evidence[0].text.startswith("relative L2 0.001, largest difference ")
    assert finding.evidence[1].text == "the file model.onnx has other content"
    assert finding.evidence[2].where == "changed because of it"
    assert report.summary.text.endswith("; since then: the file model.onnx has other content")
    assert report.first.tensor == "second"


def test_what_the_headers_tell_beside_the_files_is_told_too(book, tmp_path, model):
    how = {"inputs": (str(tmp_path / "in.npz"),), "options": EngineOptions(optimisation="none", threads=1)}
    good = kept(book, tmp_path / "plain", model, **how)
    assert Capture(good).header.details["optimisation"] == "none"
    report = again(book, good, f"onnx:{model}?level=all&threads=2")
    assert report.findings == ()
    assert "all bitwise the same" in report.summary.text or "optimisation none -> all" in report.summary.text
    make_onnx(model, scale=2.0)
    (finding,) = again(book, good, f"onnx:{model}?level=all&threads=2").findings
    told = finding.evidence[1].text
    assert "optimisation none -> all" in told
    assert "threads 1 -> 2" in told


def test_statistics_alone_tell_a_change_but_not_a_rounding(book, tmp_path, model):
    good = kept(book, tmp_path / "statistics", model, values="", inputs=(str(tmp_path / "in.npz"),))
    assert "all bitwise the same" in again(book, good).summary.text
    make_onnx(model, scale=1.0000002)
    told = again(book, good)
    assert told.findings == ()
    assert "their statistics differ by no more than rounding (the baseline has no values)" in told.summary.text
    make_onnx(model, scale=1.001)
    (finding,) = again(book, good).findings
    assert finding.where.tensor == "second"
    assert " -> " in finding.evidence[0].text


def test_another_capture_can_stand_for_the_model(book, good, tmp_path, model):
    other = kept(book, tmp_path / "other", make_onnx(tmp_path / "o.onnx", scale=3), inputs=(str(tmp_path / "in.npz"),))
    assert again(book, good, good).findings == ()
    assert again(book, good, other).findings[0].where.tensor == "second"


def test_a_tensor_that_is_gone_is_no_pass(book, good, model):
    make_onnx(model, names=("first", "renamed"))
    report = again(book, good)
    # What is named otherwise may still be told by its values; what nothing is like is told to be gone.
    assert report.findings == () or report.findings[0].code == "DX932"
    (Path(good) / "extra").mkdir()
    small = kept(
        book,
        Path(good) / "extra" / "run",
        make_onnx(model),
        selector="first",
        inputs=(str(model.parent / "in.npz"),),
    )
    (finding,) = again(book, good, small).findings
    assert finding.code == "DX932"


def test_a_missing_model_is_asked_for(book, good, model):
    moved = model.rename(model.with_name("moved.onnx"))
    with pytest.raises(InputError, match="which cannot be run from here: there is no") as caught:
        again(book, good)
    assert caught.value.fix == f"name where it is now: trtdx compare baseline {good} MODEL"
    assert again(book, good, moved).findings == ()


def test_half_a_baseline_passes_nothing_but_still_finds_a_change(book, good, model):
    index = Path(good) / "rank0.index"
    whole = index.read_bytes()
    index.write_bytes(whole[:-200])
    with pytest.raises(InputError, match=r"is not whole .* did not change, and nothing is known of the rest"):
        again(book, good)
    make_onnx(model, scale=1.001)
    report = again(book, good)
    assert report.findings[0].where.tensor == "second"
    assert report.summary.partial[0].startswith(f"{good}: rank0.index")
    rows = next(
        each.offset for each in disk.parse_frames(memoryview(whole), len(disk.INDEX_MAGIC)) if each.kind == disk.ROWS
    )
    index.write_bytes(whole[:rows])
    with pytest.raises(InputError, match=r"has no whole step to run again: rank0\.index is cut off"):
        again(book, good)
    index.write_bytes(whole[:100])
    with pytest.raises(InputError, match=r"does not say which model it is of: rank0\.index is cut off"):
        again(book, good)


def test_what_does_not_say_what_it_is_of_is_refused_with_what_to_do(book, tmp_path, model):
    from trtdx.capture.dumps.import_dump import import_capture

    np.savez(tmp_path / "dump.npz", first=np.ones(3, "f4"))
    import_capture(HOST, str(tmp_path / "dump.npz"), str(tmp_path / "imported"))
    with pytest.raises(InputError, match="does not say which model it is of"):
        again(book, tmp_path / "imported")
    with pytest.raises(InputError, match="does not say what was fed to the model"):
        again(book, tmp_path / "imported", model)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaptureError, match="holds no capture"):
        again(book, tmp_path / "empty")


@pytest.mark.heavy
def test_exit_statuses_and_the_new_run_as_the_next_baseline(good, model, tmp_path):
    run = CliRunner().invoke
    same = run(app, ["compare", "baseline", str(good)])
    assert (same.exit_code, same.output.count("\n")) == (0, 1)
    make_onnx(model, scale=1.5)
    changed = run(app, ["compare", "baseline", str(good), "--json", "--keep", str(tmp_path / "runs")])
    assert changed.exit_code == 1
    document = json.loads(changed.stdout)
    assert set(document["findings"][0]["where"]) == {"step", "layer", "module", "tensor", "rank", "tokens"}
    assert {row["verdict"] for row in document["tensors"]} == {"same", "wrong", "poisoned"}
    assert run(app, ["compare", "baseline", str(tmp_path / "runs" / "now")]).exit_code == 0
    for wrong in (["a", "b"], ["--tokens", "1 2"], ["--bisect"]):
        assert run(app, ["compare", "baseline", str(good), *wrong]).exit_code == 2
    assert run(app, ["compare"]).exit_code == 2


@pytest.mark.heavy
def test_a_decoder_is_fed_its_own_prompt_and_tokens_again(book, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model = shutil.copytree(TINY / "model", tmp_path / "model")
    prompts = ((5, 17, 42, 9), (7, 8))
    good = kept(book, tmp_path / "good", model, selector="**:* & is:module", values="**:*", prompts=prompts, tokens=2)
    report = again(book, good)
    assert "all bitwise the same" in report.summary.text
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.001}))
    (finding,) = again(book, good).findings
    assert finding.where.tensor == "model.layers.0.input_layernorm:out"
    assert finding.evidence[1].text == "rms_norm_eps 1e-06 -> 0.001 in config.json"
    assert finding.fixes[0].text == "if it is not wanted, undo what changed: rms_norm_eps 1e-06 -> 0.001 in config.json"
