"""Checkpoints on disk: the files of every rank are there, whole, and as large as their configuration says."""

from __future__ import annotations

import os

import pytest

from support.make_engine import make_checkpoint, make_engine
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.agreements.model import files, weights
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.readers import read_artifact


def found(book, *paths):
    artifacts = tuple(read_artifact(RealHost(), str(path)) for path in paths)
    return judge_findings((*agreements_in(weights), files.weights_whole), Deployment(artifacts), book)


@pytest.mark.parametrize(("tp_size", "words"), [(1, "rank0.safetensors is"), (2, "rank1.safetensors are")])
def test_a_checkpoint_without_any_weights_is_a_warning(tmp_path, book, tp_size, words):
    make_checkpoint(tmp_path, tp_size=tp_size)
    for file in tmp_path.glob("rank*"):
        file.unlink()
    (finding,) = found(book, tmp_path)
    assert (finding.code, finding.severity.value) == ("DX131", "warning")
    assert f"{words} not there (none found)" in finding.message


def test_beside_its_engine_it_is_a_note(tmp_path, book):
    make_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "rank0.safetensors").unlink()
    (finding,) = found(book, tmp_path / "checkpoint", make_engine(tmp_path / "engine"))
    assert (finding.code, finding.severity.value) == ("DX131", "note")


def test_a_cut_file_is_where_the_finding_points(tmp_path, book):
    make_checkpoint(tmp_path, tp_size=2)
    os.truncate(tmp_path / "rank1.safetensors", (tmp_path / "rank1.safetensors").stat().st_size - 1000)
    (finding,) = found(book, tmp_path)
    assert finding.code == "DX087"
    assert finding.where == str(tmp_path / "rank1.safetensors")
    assert finding.evidence[0].text.startswith("has ")


@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_fused_projections_have_the_rows_of_their_heads(tmp_path, book, tp_size):
    assert found(book, make_checkpoint(tmp_path / "right", tp_size=tp_size)) == []
    wrong = make_checkpoint(tmp_path / "wrong", tp_size=tp_size)
    config = (wrong / "config.json").read_text()
    keys = read_artifact(RealHost(), str(wrong)).integer("num_kv_heads")
    changed = config.replace(f'"num_key_value_heads": {keys}', f'"num_key_value_heads": {keys * 2}')
    (wrong / "config.json").write_text(changed)
    (finding,) = found(book, wrong)
    assert finding.code == "DX813"
    assert f"and {keys} key/value heads)" in finding.message
