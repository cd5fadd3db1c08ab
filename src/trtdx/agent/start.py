"""Starts the agent in this process; each part is guarded, so that one that fails leaves the others working."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from . import mpi, profile, torch_collectives, watch, workers
from .process import SupervisedProcess
from .rank import RANK_VARIABLES, first_number

if TYPE_CHECKING:
    from collections.abc import Callable

CURRENT: SupervisedProcess | None = None


def start_agent() -> None:
    """Start everything; what fails is noted in the case."""
    global CURRENT
    process = SupervisedProcess(os.environ["TRTDX_LIVE"])
    CURRENT = process
    parts: dict[str, Callable[[], Any]] = {
        "output": lambda: process.keep_rank_output() if first_number(RANK_VARIABLES) >= 0 else None,
        "rank": lambda: _watch_rank(process),
        "exit": lambda: _watch_exits(process),
        "mpi4py": lambda: mpi.watch_mpi(process),
        "torch": lambda: torch_collectives.watch_torch(process),
        "multiprocessing": lambda: workers.watch_workers(process),
        "modes": lambda: watch.start_modes(process),
        "profile": lambda: profile.watch_profile(process),
        "heartbeat": lambda: _offer_heartbeat(process),
    }
    for name, part in parts.items():
        try:
            part()
        except Exception as err:
            process.note_failure(name, err)


def _watch_rank(process: SupervisedProcess) -> None:
    """Notice a rank that the program puts into its own environment, as workers of multiprocessing do."""
    put = os.putenv

    def putenv(key: Any, value: Any) -> None:
        put(key, value)
        try:
            if os.fsdecode(key) in RANK_VARIABLES and os.fsdecode(value).isdigit():
                process.set_rank(os.fsdecode(key), int(os.fsdecode(value)))
        except Exception as err:
            process.note_failure("rank", err)

    os.putenv = putenv
    if hasattr(os.environ, "putenv"):  # Python 3.8 keeps its own
        os.environ.putenv = putenv


def _watch_exits(process: SupervisedProcess) -> None:
    atexit.register(process.leave)
    os.register_at_fork(after_in_child=process.become_fork)
    exit_at_once = os._exit

    def _exit(status: int) -> Any:
        try:
            process.end_at_once(status)
        except BaseException:
            pass
        exit_at_once(status)

    os._exit = _exit
    _watch_sys_exit(process)


def _watch_sys_exit(process: SupervisedProcess) -> None:
    """Notice sys.exit: where MPI_Finalize waits for the other ranks, the status is never seen from outside."""
    exit_later = sys.exit

    @functools.wraps(exit_later)
    def exit_watched(status: Any = None, /) -> Any:
        try:
            process.note_exit(status)
        except BaseException:
            pass
        exit_later(status)

    sys.exit = exit_watched


def _offer_heartbeat(process: SupervisedProcess) -> None:
    """Make `import trtdx_agent` work in every supervised process: `trtdx_agent.step()` counts as progress."""
    import types

    module = types.ModuleType("trtdx_agent", "trtdx's agent in this process: call step() where the program moves on.")
    module.step = lambda: process.ring.add_step()  # type: ignore[attr-defined]
    sys.modules["trtdx_agent"] = module
