"""Looking into the modules of a job of several ranks, without a change of its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.run_zoo import MPI_ENVIRONMENT, ZOO

pytestmark = pytest.mark.heavy


@pytest.fixture
def run_ranks(tmp_path):
    pytest.importorskip("torch")

    def run(*options, words=()):
        report = tmp_path / "report.json"
        argv = [
            sys.executable,
            "-m",
            "trtdx",
            "run",
            "--case",
            str(tmp_path / "case"),
            "--report",
            str(report),
            *options,
        ]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        launch += ["--nproc-per-node", "4", str(ZOO / "tensor_parallel.py"), *words]
        environment = {**os.environ, **MPI_ENVIRONMENT}
        done = subprocess.run(
            [*argv, "--", *launch], capture_output=True, text=True, env=environment, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return json.loads(report.read_text())

    return run


def capture_whole(folder):
    """Capture the layer that the ranks have cut, computed in one piece."""
    import torch

    from trtdx.capture.session.live import capturing

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.nn.Linear(16, 32)

        def forward(self, values):
            return self.part(values)

    torch.manual_seed(0)
    model = Whole()
    with capturing(model, folder, "part:out", values="part:out"):
        model(torch.ones(2, 16))


def test_a_tap_captures_every_ranks_shard_and_they_compare_with_the_whole(run_ranks, tmp_path):
    from trtdx.capture.store.reader import Capture

    run_ranks("--tap", "part:out")
    assert list(Capture(tmp_path / "case" / "capture").ranks) == [0, 1, 2, 3]
    capture_whole(tmp_path / "whole")
    argv = [
        sys.executable,
        "-m",
        "trtdx",
        "compare",
        str(tmp_path / "whole"),
        str(tmp_path / "case" / "capture"),
        "--json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_nan_is_named_with_its_rank(run_ranks):
    report = run_ranks("--watch", "nan", "--shapes", words=("nan",))
    assert (report["findings"][0]["code"], report["findings"][0]["ranks"]) == ("DX1264", [2])
    assert "part" in report["findings"][0]["message"]
    shapes = next(section for section in report["sections"] if section["key"] == "shapes")
    assert any(row[0] == "part" and "(2, 16)" in row[1] for row in shapes["rows"])


def test_a_second_synchronous_run_says_whether_the_error_moved(tmp_path):
    script = "import os\nassert not os.environ.get('CUDA_LAUNCH_BLOCKING'), 'here'\nraise ValueError('there')"
    report = tmp_path / "report.json"
    argv = [sys.executable, "-m", "trtdx", "run", "--case", str(tmp_path / "case"), "--report", str(report)]
    argv += ["--on-failure", "rerun", "--", sys.executable, "-c", script]
    assert subprocess.run(argv, capture_output=True, check=False, timeout=120).returncode == 1
    findings = json.loads(report.read_text())["findings"]
    assert [finding["code"] for finding in findings] == ["DX1242", "DX1265"]
    assert "the error moved" in findings[1]["message"]
