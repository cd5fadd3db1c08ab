"""Other tools' dumps compared directly, and everything that can be wrong with what is named."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from support.paths import ROOT
from support.small_models import layers
from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.cli.main import app
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.errors import InputError, TrtdxError, UnknownNameError
from trtdx.host import RealHost
from trtdx.tensors.statistics import source_from_array
from trtdx.tensors.taps import Place

DATA = ROOT / "tests" / "capture" / "dumps" / "data"


def compared(book, reference, candidate, **more):
    return compare(RealHost(), ComparisonPlan(reference=str(reference), candidate=str(candidate), **more), book)


def polygraphy(path, runners):
    """Write outputs as Polygraphy's RunResults.save does: runners, their iterations, arrays as NPY in base64."""

    def array(values):
        stream = io.BytesIO()
        np.save(stream, values)
        text = base64.b64encode(stream.getvalue()).decode()
        return {"values": {"array": text, "polygraphy_class": "ndarray"}, "polygraphy_class": "LazyArray"}

    def iteration(outputs):
        return {
            "outputs": {name: array(values) for name, values in outputs.items()},
            "runtime": 0.1,
            "runner_name": "runner",
            "polygraphy_class": "IterationResult",
        }

    lst = [[name, [iteration(each) for each in iterations]] for name, iterations in runners.items()]
    path.write_text(json.dumps({"lst": lst, "polygraphy_class": "RunResults"}))
    return path


def session_tree(root, *, wrong_on=None):
    """Write what TensorRT-LLM's GenerationSession dumps on two ranks, each with numbers of its own."""
    for rank in (0, 1):
        at = root / "PP_0" / f"TP_{rank}" / "CP_0"
        at.mkdir(parents=True)
        source = np.random.default_rng(rank)
        for step in (0, 1):
            for layer in (0, 1, 2):
                array = source.standard_normal((1, 4, 8)).astype("f4")
                off = 1.01 if (rank, layer) == (wrong_on, 1) else 1
                np.save(at / f"transformer.layers.{layer}.mlp_output-step{step}.npy", array * np.float32(off))
    return root


def executor_tree(root, *, nan_in=None):
    for iteration in (0, 1):
        at = root / "PP_1" / "TP_1" / f"iteration_{iteration}"
        at.mkdir(parents=True)
        for number, array in enumerate(layers(12).values()):
            made = array.astype("f2")
            made[3] = np.nan if number == nan_in else made[3]
            np.save(at / f"transformer.layers.{number}.mlp_output.npy", made)
    return root


def test_polygraphys_own_file_against_itself(book):
    report = compared(book, DATA / "outputs.json", DATA / "outputs.json") if (DATA / "outputs.json").exists() else None
    for path in sorted(DATA.glob("*.json")):
        report = compared(book, path, path)
        assert report.findings == ()
        assert report.compared
    assert report is not None


def test_two_polygraphy_files(book, tmp_path):
    good = polygraphy(tmp_path / "a.json", {"trt": [layers(), layers()]})
    noisy = polygraphy(tmp_path / "b.json", {"trt": [layers(wrong=1, by=1e-7), layers()]})
    wrong = polygraphy(tmp_path / "c.json", {"trt": [layers(), layers(wrong=2)]})
    assert compared(book, good, noisy).findings == ()
    (finding,) = compared(book, good, wrong).findings
    assert (finding.where.step, finding.where.tensor) == (1, "model.layers.2:out")


def test_two_runners_of_one_polygraphy_file(book, tmp_path):
    both = polygraphy(tmp_path / "both.json", {"onnxrt-runner": [layers()], "trt-runner": [layers(wrong=1)]})
    for runner in ("trt-runner", "1"):
        report = compared(book, both, f"{both}?runner={runner}")
        assert report.findings[0].where.tensor == "model.layers.1:out"
        notes = [row[0] for section in report.sections if section.key == "about" for row in section.rows]
        assert any("the runner trt-runner was left out" in note for note in notes)
    with pytest.raises(UnknownNameError, match="no runner is called 'trt'"):
        compared(book, both, f"{both}?runner=trt")
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    with pytest.raises(InputError, match="which has no runners"):
        compared(book, both, f"{tmp_path / 'x.npz'}?runner=1")


def test_ranks_of_two_dumps_are_compared_each_with_its_own(book, tmp_path):
    good, other = session_tree(tmp_path / "good"), session_tree(tmp_path / "other", wrong_on=1)
    same = compared(book, good, good)
    assert same.findings == ()
    assert {row.verdict for row in same.tensors} == {"same"}
    (finding,) = compared(book, good, other).findings
    assert (finding.where.tensor, finding.where.rank) == ("transformer.layers.1.mlp_output", 1)


def test_the_executors_dump_goes_in_the_order_of_layers_and_counts_what_is_not_finite(book, tmp_path):
    report = compared(book, executor_tree(tmp_path / "a"), executor_tree(tmp_path / "b", nan_in=10))
    (finding,) = report.findings
    assert finding.where.tensor == "transformer.layers.10.mlp_output"
    assert finding.evidence[0].text == "16 elements NaN or infinite on one side only"
    assert report.tensors[2].tensor == "transformer.layers.2.mlp_output"


def test_the_debug_hooks_dump(book, tmp_path):
    torch = pytest.importorskip("torch")
    for name, sign in (("a", 1), ("b", -1)):
        at = tmp_path / name / "rank0"
        at.mkdir(parents=True)
        for number in range(4):
            values = torch.arange(12.0).reshape(3, 4).to(torch.bfloat16) + number
            torch.save(values * (sign if number % 2 else 1), at / f"{number + 1}.Layer{number % 2}-output.x.pt")
    (finding,) = compared(book, tmp_path / "a", tmp_path / "b").findings
    assert finding.where.tensor == "2.Layer1:out"


# What may be wrong with what is named


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def bad_files(folder):
    """Write a file of each kind of bad content, with what is said of it."""
    np.save(folder / "pickle.npy", np.array([_Evil()], object), allow_pickle=True)
    np.savez(folder / "pickle.npz", x=np.array([_Evil()], object))
    np.savez(folder / "none.npz")
    for kind in ("npz", "npy", "json", "safetensors", "onnx", "bin"):
        (folder / f"junk.{kind}").write_bytes(bytes(range(250, 0, -1)) * 20)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(folder / "huge.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    (folder / "empty").mkdir()
    return {
        "pickle.npy": r"pickle\.npy has the type '\|O', which holds no tensor",
        "pickle.npz": r"nothing in .*pickle\.npz can be read",
        "none.npz": r"nothing in .*none\.npz can be read",
        "junk.npz": r"junk\.npz is not a readable npz file",
        "junk.npy": r"junk\.npy is not an NPY file",
        "junk.json": r"junk\.json",
        "junk.safetensors": r"junk\.safetensors claims a header",
        "junk.onnx": r"junk\.onnx is not an ONNX model",
        "junk.bin": r"junk\.bin is not a dump that can be imported",
        "huge.npz": r"nothing in .*huge\.npz can be read",
        "empty": r"empty is not a dump that can be imported",
        "absent": "there is no .*absent",
    }


def test_every_bad_file_is_named_with_what_is_wrong_and_nothing_in_it_is_run(book, tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    for name, told in bad_files(tmp_path).items():
        with pytest.raises(TrtdxError, match=told):
            compared(book, tmp_path / name, tmp_path / name)
    assert not (tmp_path / "unpickled").exists()


def test_what_cannot_be_written_to_is_said(book, tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(3, "f4"))
    (tmp_path / "file").write_text("")
    for more in ({"keep": str(tmp_path / "file" / "keep")}, {"save_mapping": str(tmp_path / "file" / "map")}):
        with pytest.raises(InputError, match="cannot write"):
            compared(book, tmp_path / "x.npz", tmp_path / "x.npz", **more)


def captured(folder, arrays, *, error=None):
    try:
        with CaptureWriter(folder, CaptureHeader(run="test"), parquet=False) as writer:
            for name, array in arrays.items():
                writer.add(0, Place(name.removesuffix(":out")), source_from_array(array), values=True)
            if error is not None:
                raise error
    except KeyboardInterrupt:
        pass
    return folder


def test_a_run_that_was_interrupted_says_so_in_what_it_leaves(book, tmp_path):
    whole = captured(tmp_path / "whole", layers())
    part = captured(tmp_path / "part", layers(2), error=KeyboardInterrupt())
    assert Capture(part).partial == ("the run was interrupted, so its end is missing",)
    report = compared(book, whole, part)
    assert report.summary.partial == (f"{part}: the run was interrupted, so its end is missing",)
    assert [each.tensor for each in report.unmatched] == ["model.layers.2:out"]


def test_nothing_in_common_is_neither_good_nor_bad(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones((2, 3), "f4"))
    np.savez(tmp_path / "b.npz", a=np.ones((2, 4), "f4"))
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])
    assert done.exit_code == 2
    assert done.output.splitlines()[-1] == "nothing could be compared: shape [2, 3] against [2, 4]"


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_run(tmp_path):
    for path, told in (("x.gif", "name it .png, .svg or .html"), ("no/folder/x.html", "there is no folder")):
        done = CliRunner().invoke(app, ["compare", "hf:nowhere", "hf:nowhere", "--plot", str(tmp_path / path)])
        assert isinstance(done.exception, InputError)
        assert told in f"{done.exception.message} {done.exception.fix}"
    np.savez(tmp_path / "a.npz", a=np.ones((2, 3), "f4"))
    page = tmp_path / "x.html"
    done = CliRunner().invoke(app, ["compare", *[str(tmp_path / "a.npz")] * 2, "--plot", str(page)])
    assert done.exit_code == 0
    assert "1 tensor compared" in page.read_text()
