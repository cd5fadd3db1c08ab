"""`--fix`: the plan applied in a new virtual environment and checked there, never in place unless told so."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.optional import is_installed

if TYPE_CHECKING:
    from trtdx.check.view import EnvironmentView
    from trtdx.host import CommandResult, Host

INSTALL_TIMEOUT_S = 3600.0


def new_folder(view: EnvironmentView) -> str:
    """Return where the mended environment goes by default: beside the old one."""
    prefix = view.python.prefix or str(Path(view.record.python_path).parent.parent)
    return f"{prefix.rstrip('/')}-mended"


def build_environment(host: Host, view: EnvironmentView, lock: str, folder: str) -> str:
    """Make a new environment of a lock, and return its interpreter.

    Raises:
        InputError: the folder is there already, or something could not be installed.
    """
    if Path(folder).exists():
        raise InputError(f"{folder} is there already", fix="name another folder with --into, or remove it")
    base = _base_interpreter(view)
    _must_work(host.run([base, "-m", "venv", "--without-pip", folder], timeout_s=120), f"cannot make {folder}")
    python = f"{folder}/bin/python"
    path = Path(folder) / "trtdx-lock.txt"
    host.write(str(path), lock.encode())
    _must_work(
        host.run(_installer(host, python, str(path)), timeout_s=INSTALL_TIMEOUT_S), "the packages cannot be installed"
    )
    return python


def _base_interpreter(view: EnvironmentView) -> str:
    """Return the Python to make the environment of: the one the old was made of, where it still runs."""
    minor = view.python.minor or "3"
    for candidate in (f"{view.python.base_prefix}/bin/python{minor}", shutil.which(f"python{minor}") or ""):
        if candidate and Path(candidate).exists() and view.python.version:
            return candidate
    raise InputError(
        f"there is no Python {minor} to make the new environment of", fix=f"install it: uv python install {minor}"
    )


def _installer(host: Host, python: str, lock: str) -> list[str]:
    uv = shutil.which("uv", path=host.environment().get("PATH"))
    if uv:
        return [uv, "pip", "install", "--python", python, "-r", lock]
    if not is_installed("pip"):
        raise InputError("neither uv nor pip is there to install with", fix="pip install uv")
    return [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "-r",
        lock,
    ]


def install_in_place(host: Host, view: EnvironmentView, pins: list[str]) -> None:
    """Install the plan's versions into the environment itself."""
    lock = f"{view.python.prefix}/trtdx-lock.txt"
    host.write(lock, ("\n".join(pins) + "\n").encode())
    _must_work(
        host.run(_installer(host, view.record.python_path, lock), timeout_s=INSTALL_TIMEOUT_S),
        "the packages cannot be installed",
    )


def _must_work(done: CommandResult, otherwise: str) -> None:
    if done.status == 0:
        return
    lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    raise InputError(f"{otherwise}: {(lines or [done.problem])[-1][:300]}", fix="the old environment is as it was")
