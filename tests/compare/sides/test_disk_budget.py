"""What a comparison writes is bounded, what it finds is the same, and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from support.paths import TINY

pytest.importorskip("torch")
pytest.importorskip("transformers")


from support.verdict_pairs import ALONE, save_llama
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.disk_budget import CAPTURES, LEVELS, DiskBudget
from trtdx.compare.sides.side import ComparisonQuestion, SideSpec
from trtdx.errors import TrtdxError
from trtdx.host import RealHost
from trtdx.tensors.taps import Place

HOST = RealHost()
QUESTION = ComparisonQuestion(prompts=((1, 5, 9, 22, 3, 40),))
LAYERS, WRONG = 8, 5
MOST_S = 120.0


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A decoder, and the same with the sign of one projection changed."""
    import safetensors.torch

    folder = tmp_path_factory.mktemp("models")
    good, bad = (save_llama(folder / name, layers=LAYERS, hidden=16) for name in ("good", "bad"))
    weights = safetensors.torch.load_file(bad / "model.safetensors")
    weights[f"model.layers.{WRONG}.mlp.down_proj.weight"] *= -1
    safetensors.torch.save_file(weights, bad / "model.safetensors", metadata={"format": "pt"})
    return good, bad


def written(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def compared(models, keep, book, budget):
    plan = ComparisonPlan(
        reference=f"hf:{models[0]}?threads=1", candidate=f"hf:{models[1]}?threads=1", question=QUESTION,
        keep=str(keep), budget_bytes=budget, attribute=False,
    )  # fmt: skip
    return compare(HOST, plan, book)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("budget", "captured"),
    [(1 << 30, ""), (500_000, "layers and their parts"), (100_000, "layers"), (40_000, "every fourth layer")],
)
def test_coarser_taps_where_it_would_not_fit_find_the_same_place(models, book, tmp_path, budget, captured):
    report = compared(models, tmp_path / "kept", book, budget)
    assert report.findings[0].where.tensor == f"model.layers.{WRONG}.mlp.down_proj:out"
    notes = [str(row[0]) for section in report.sections if section.key == "about" for row in section.rows]
    told = [note for note in notes if "--budget" in note]
    assert bool(told) == bool(captured)
    assert all(f"values are of {captured}," in note for note in told)


def test_no_capture_is_larger_than_its_share(models, tmp_path):
    budget = DiskBudget(tmp_path, 100_000)
    spec = SideSpec("hf", str(models[0]), ALONE)
    side = budget.open_side(HOST, spec, QUESTION, tmp_path / "side")
    kept = {record.statistics.hash: record.layout.bytes for record in side.capture.records() if record.place.path}
    assert 0 < sum(kept.values()) <= 100_000 / CAPTURES
    assert side.selector


def test_a_share_of_the_free_disk_is_taken_where_nothing_is_told(tmp_path):
    free = os.statvfs(tmp_path)
    assert DiskBudget(tmp_path).total_bytes < free.f_bavail * free.f_frsize


def test_each_level_has_less_than_the_one_before():
    places = [
        Place(f"model.layers.{layer}{part}", port)
        for layer in range(32)
        for part in ("", ".mlp", ".mlp.up_proj")
        for port in ("in", "out")
    ]
    counts = [sum(map(level.includes_place, places)) for level in LEVELS]
    assert counts == [192, 128, 64, 8, 2, 0]


def folders(temporary):
    return [each for each in temporary.iterdir() if each.name.startswith("trtdx-")]


def test_nothing_is_left_behind_after_success_and_after_an_error(book, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = TINY / "model.onnx"
    plan = ComparisonPlan(reference=f"onnx:{model}", candidate=f"onnx:{model}", question=QUESTION)
    compare(HOST, plan, book)
    assert not folders(tmp_path)
    plan = ComparisonPlan(
        reference=f"onnx:{model}",
        candidate=f"onnx:{model}",
        question=ComparisonQuestion(inputs="/nowhere.npz"),
    )
    with pytest.raises(TrtdxError):
        compare(HOST, plan, book)
    assert not folders(tmp_path)


@pytest.mark.heavy
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_nothing_is_left_behind_after_an_interrupt(models, tmp_path):
    words = ["compare", f"hf:{models[0]}?threads=1", f"hf:{models[1]}?threads=1", "--tokens", "1 5 9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trtdx", *words],
        env=os.environ | {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    end = time.monotonic() + MOST_S
    while not folders(tmp_path) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)  # until it has begun to write
    assert folders(tmp_path), process.stderr.read()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=MOST_S)
    assert not folders(tmp_path)
    assert b"Traceback" not in told
    assert process.returncode == 130
