"""What the tests of ranks have in common: the real command line, and an environment that keeps MPI on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.mpi import mpi_environment

TRTDX = [sys.executable, "-m", "trtdx", "ranks"]


@pytest.fixture(scope="session")
def book():
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book

    return load_book(RealHost())


@pytest.fixture
def trtdx():
    """Return a function that runs `trtdx ranks` and gives its report: codes, findings, text, exit status."""

    def run(command, *words, before=(), env=None, timeout=180, python=sys.executable):
        named = [] if "--python" in words or python is None else ["--python", str(python)]
        head = list(words)
        split = head.index("--") if "--" in head else len(head)
        argv = [*before, *TRTDX, command, *named, *head[:split], "--json", *head[split:]]
        done = subprocess.run(
            argv, capture_output=True, text=True, env=env or mpi_environment(), timeout=timeout, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        report = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        findings = report.get("findings", [])
        return SimpleNamespace(
            status=done.returncode,
            report=report,
            findings=findings,
            codes=[finding["code"] for finding in findings],
            summary=report.get("summary", {}).get("text", ""),
            text=done.stdout + done.stderr,
        )

    return run


@pytest.fixture
def hide_other_job_variables(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PMI", "OMPI_COMM", "NCCL_")):
            monkeypatch.delenv(name)


@pytest.fixture
def data():
    return Path(__file__).parent / "data"
