"""Environments for the tests of `check`: one healthy deployment, copied and broken by each test."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from support.make_environments import Environment, add_deployment, make_venv, write_wheels
from trtdx.check.collect import CheckQuestion
from trtdx.check.run import MendingWishes, check_environment
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book

TIMEOUT_S = 20.0


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not there to make libraries with")
    environment = make_venv(tmp_path_factory.mktemp("healthy") / "venv")
    add_deployment(environment)
    write_wheels(environment, environment.folder.parent / "wheels")
    return environment


@pytest.fixture
def environment(healthy: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A copy to break, an index with its wheels, and an empty current folder."""
    for name in ("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(healthy.folder.parent / "wheels"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"file://{tmp_path}/no-index")
    monkeypatch.setenv("UV_FIND_LINKS", str(healthy.folder.parent / "wheels"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return healthy.copy(tmp_path / "venv")


@pytest.fixture(scope="session")
def book():
    return load_book(RealHost())


@pytest.fixture
def check(book):
    """Check an environment; returns findings that are more than notes."""

    def run(
        environment: Environment,
        *,
        timeout_s: float = TIMEOUT_S,
        wishes: MendingWishes | None = None,
        **question: object,
    ):
        full = CheckQuestion(python=str(environment.python), import_timeout_s=timeout_s, **question)
        report, _ = check_environment(RealHost(), full, book, wishes or MendingWishes(resolves=False))
        return report

    return run
