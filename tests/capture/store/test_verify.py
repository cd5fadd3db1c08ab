"""One flipped bit in a capture's values is told, with the tensor's name, by everything that reads them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from support.captures import write
from trtdx.capture.store.format import CaptureError
from trtdx.capture.store.reader import Capture
from trtdx.cli.main import app


@pytest.fixture
def damaged(tmp_path):
    """A capture of two tensors with one bit of the second changed, and its untouched twin."""
    for name in ("good", "bad"):
        write(tmp_path / name, [{"layers.0:out": np.arange(64, dtype="f4"), "layers.1:out": np.ones(64, "f4")}])
    path = tmp_path / "bad" / "rank0.values"
    with Capture(tmp_path / "bad") as capture:
        record = capture.record("layers.1:out")
    data = bytearray(path.read_bytes())
    data[record.offset + 17] ^= 4
    path.write_bytes(data)
    return tmp_path


def test_values_are_checked_when_they_are_read(damaged):
    with Capture(damaged / "bad") as capture:
        assert capture.values(capture.record("layers.0:out"))[3] == 3
        with pytest.raises(CaptureError, match=r"layers\.1:out at step 0 on rank 0 .* are not those captured"):
            capture.values(capture.record("layers.1:out"))


@pytest.mark.parametrize("arguments", [("capture", "export", "bad", "out.npz"), ("compare", "good", "bad")])
def test_what_reads_damaged_values_says_so(damaged, monkeypatch, arguments):
    monkeypatch.chdir(damaged)
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, CaptureError)
    assert "layers.1:out" in str(done.exception)
    assert not (damaged / "out.npz").exists()


def test_verify_names_the_tensors(damaged):
    whole = CliRunner().invoke(app, ["capture", "verify", str(damaged / "good")])
    assert whole.exit_code == 0, whole.output
    done = CliRunner().invoke(app, ["capture", "verify", "--json", str(damaged / "bad")])
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["findings"][0]["code"] == "DX1280"
    assert report["sections"][0]["rows"] == [["layers.1:out", 0, 0]]
