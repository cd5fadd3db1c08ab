"""An interpreter that does not start: what its file says about the reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from trtdx.check.facts.elf_reader import glance_at_object


def why_dead(interpreter: str, problem: str, status: int | None) -> str:
    """Return what an interpreter's file tells of why it does not start."""
    path = Path(interpreter)
    if path.is_symlink() and not path.exists():
        return f"it is a link to {os.readlink(path)}, which is not there (the Python it was made from was removed)"
    if not path.exists():
        return "there is no such file"
    if "Permission denied" in problem:
        return "it may not be executed"
    if "Exec format error" in problem or "No such file" in problem:
        return _why_not_executable(path)
    if status is not None and status < 0:
        return f"it is ended by {signal.Signals(-status).name}"
    return problem


def _why_not_executable(path: Path) -> str:
    thing = glance_at_object(str(path))
    if not thing.problem and thing.machine and thing.machine != os.uname().machine:
        return f"it is for {thing.machine}, this machine is {os.uname().machine}"
    script = path.read_bytes()[:200] if path.is_file() else b""
    if script.startswith(b"#!"):
        return f"it is a script for {script[2:].splitlines()[0].decode('utf-8', 'replace').strip()}, which is not there"
    return "it is an empty file" if not script else "it is no program for this machine"
