from __future__ import annotations

import fcntl
import os

import pytest

from support.run_zoo import make_job_python


@pytest.fixture(scope="session")
def job_python(tmp_path_factory):
    """Return a Python that has mpi4py and no trtdx; made once for all workers."""
    pytest.importorskip("mpi4py")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "job-python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make_job_python(shared / "job-python")
