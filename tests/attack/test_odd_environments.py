"""Closed and full streams, no home, damaged caches: the answer and the exit status are the diagnosis'."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ERROR = "[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4)\n"
TRTDX = f"{sys.executable} -m trtdx"


def run_shell(command, cwd, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"} | variables
    environment = {name: value for name, value in environment.items() if value is not None}
    return subprocess.run(
        ["sh", "-c", command], cwd=cwd, capture_output=True, text=True, env=environment, timeout=300, check=False
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.log").write_text(ERROR)
    return tmp_path


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("diagnose a.log >&-", 1),
        ("diagnose a.log >&- 2>&- <&-", 1),
        ("diagnose - <&-", 2),
        ("diagnose a.log >/dev/full", 2),
        ("diagnose absent.log 2>/dev/full", 2),
        ("--version >/dev/full", 2),
    ],
)
def test_streams_that_are_closed_or_full(folder, command, status):
    if "/dev/full" in command and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    done = run_shell(f"{TRTDX} {command}", folder)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_home_nothing_is_kept_where_others_can_write(folder):
    code = "from trtdx.knowledge.load import _cache_folder; from trtdx.host import RecordedHost as H; print(_cache_folder(H()))"
    done = run_shell(f'{sys.executable} -c "{code}"', folder)
    assert done.stdout == "None\n", done.stderr


@pytest.mark.heavy
def test_a_damaged_cache_of_rules_is_not_believed(folder):
    assert run_shell(f"{TRTDX} diagnose a.log", folder, XDG_CACHE_HOME=str(folder)).returncode == 1
    (cache,) = (folder / "trtdx").glob("rules-*")
    data = bytearray(cache.read_bytes())
    for at in range(100, len(data), len(data) // 50):
        data[at] ^= 4
    cache.write_bytes(data)
    done = run_shell(f"{TRTDX} diagnose a.log", folder, XDG_CACHE_HOME=str(folder))
    assert done.returncode == 1, done.stderr
    assert "DX210" in done.stdout


@pytest.mark.heavy
def test_a_narrow_terminal_and_an_odd_locale_change_no_status(folder):
    done = run_shell(f"{TRTDX} diagnose a.log", folder, COLUMNS="1", LC_ALL="xx_YY.none", PYTHONIOENCODING="ascii")
    assert done.returncode == 1, done.stderr


@pytest.mark.heavy
def test_a_team_page_with_a_name_in_use_is_refused_by_rules_check_too(folder):
    from trtdx.knowledge.load import packaged_folder

    page = next(packaged_folder().glob("*/DX210-*.md"))
    (folder / "team").mkdir()
    (folder / "team" / "A.md").write_text(page.read_text().replace('slug = "world-size-mismatch"', 'slug = "my-own"'))
    done = run_shell(f"{TRTDX} rules check team --only form", folder)
    assert "DX210 is claimed by" in run_shell(f"{TRTDX} rules check team", folder).stdout, done.stdout


@pytest.mark.heavy
@pytest.mark.skipif(not shutil.which("setsid"), reason="needs setsid")
def test_a_read_only_folder_is_no_obstacle(folder):
    folder.chmod(0o500)
    try:
        assert run_shell(f"{TRTDX} diagnose a.log", folder).returncode == 1
    finally:
        folder.chmod(0o700)
