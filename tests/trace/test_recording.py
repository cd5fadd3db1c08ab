"""`trtdx trace run`: some steps of a real loop are recorded on every rank, and the answer is about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.run_zoo import MPI_ENVIRONMENT

pytestmark = pytest.mark.heavy
LOOP = str(Path(__file__).parent / "recorded_loop.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")


def record(tmp_path, *words):
    argv = [sys.executable, "-m", "trtdx", "trace", "run", "--json", "--case", str(tmp_path / "case"), "--warmup", "3"]
    argv += ["--steps", "6", "--seconds", "120", "--", sys.executable, *words]
    environment = {**os.environ, **MPI_ENVIRONMENT}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False, timeout=300)


@pytest.mark.parametrize(("launch", "ranks", "code"), [((), 1, "DX1500"), (TORCHRUN, 2, "DX1541")])
def test_the_steps_after_the_warm_up_are_recorded_on_every_rank(launch, ranks, code, tmp_path):
    pytest.importorskip("torch")
    done = record(tmp_path, *launch, LOOP)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    steps = next(section for section in report["sections"] if section["key"] == "steps")
    assert steps["rows"][0][1] == 6 * ranks
    assert len(list((tmp_path / "case" / "traces").iterdir())) == ranks
    assert report["findings"][0]["code"] == code
    modules = next(section for section in report["sections"] if section["key"] == "modules")
    assert ["layers.*", 3] in [row[:2] for row in modules["rows"]]


def test_a_command_that_fails_keeps_its_status_and_one_without_torch_is_told_so(tmp_path):
    assert record(tmp_path, "-c", "raise SystemExit(7)").returncode == 7
    done = record(tmp_path / "other", "-c", "pass")
    assert done.returncode == 2
    assert "nothing was recorded" in done.stderr
