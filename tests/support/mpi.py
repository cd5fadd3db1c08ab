"""Real MPI on this machine: Open MPI as `mpirun`, MPICH beside it, and mpi4py on either."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


def mpi_environment(**more: str) -> dict[str, str]:
    """Return an environment in which MPI stays on loopback, may run as root, and finds this Python."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI", "OMPI_", "NCCL_"))
    }
    return (
        kept
        | {
            "PATH": path,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_btl": "self,vader,tcp",
            "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_MCA_oob_tcp_if_include": "lo",
            "MPI4PY_MPIABI": "openmpi",  # where libmpi.so is MPICH's, mpi4py's wheel would take that
        }
        | more
    )


@cache
def missing_for_open_mpi() -> str:
    """Return why Open MPI cannot be tested here, or an empty text."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    if shutil.which("mpirun") is None:
        return "openmpi-bin is not installed"
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    return "" if "Open MPI" in version else "mpirun is not Open MPI's"


@cache
def missing_for_mpich() -> str:
    library = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")
    return missing_for_open_mpi() or (
        "" if shutil.which("mpirun.mpich") and library.exists() else "mpich is not installed"
    )


def mpich_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which mpi4py loads MPICH; its wheel wants the library under another name."""
    link = folder / "libmpi.so.12"
    if not link.exists():
        link.symlink_to("/usr/lib/x86_64-linux-gnu/libmpich.so.12")
    return mpi_environment(LD_LIBRARY_PATH=str(folder), MPI4PY_MPIABI="mpich")


needs_open_mpi = pytest.mark.skipif(bool(missing_for_open_mpi()), reason=missing_for_open_mpi())
needs_mpich = pytest.mark.skipif(bool(missing_for_mpich()), reason=missing_for_mpich())
