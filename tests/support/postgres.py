"""A real PostgreSQL of the tests' own: reached through a socket in a folder of its own, gone when the tests end."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 120


def server_programs() -> Path | None:
    """Return the folder with the newest server's programs, if one is installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if folders:
        return folders[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def _run_as_server(*argv: str) -> None:
    """Run a program as a user that PostgreSQL accepts, which root is not."""
    prefix = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    subprocess.run([*prefix, *argv], check=True, capture_output=True, timeout=LIMIT_S, cwd="/")


@contextmanager
def running_postgres():
    """Give the URL of a server's maintenance database; its name is `postgres`."""
    programs = server_programs()
    assert programs is not None
    # A socket's path may have 107 characters, and pytest's folders are longer.
    with tempfile.TemporaryDirectory(prefix="trtdx-pg-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        _run_as_server(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "app", "--no-sync", "-E", "UTF8")
        options = f"-c listen_addresses='' -k {folder} -c fsync=off -c shared_buffers=16MB"
        control = str(programs / "pg_ctl")
        _run_as_server(control, "-D", data, "-w", "-t", "60", "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgresql://app@/postgres?host={folder}"
        finally:
            _run_as_server(control, "-D", data, "-m", "immediate", "stop")
