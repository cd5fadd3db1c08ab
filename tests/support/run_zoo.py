"""The zoo of supervised jobs: each is a real job of four ranks with one planted fault, and what must be said of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

from support.slurm import cluster_command, missing_for_slurm

ZOO = Path(__file__).parent.parent / "run" / "zoo"
QUIET_S = 3
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "self,vader,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "MPI4PY_MPIABI": "openmpi",  # where libmpi.so is MPICH's, mpi4py's wheel would take that
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}
MPICH_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")


class ZooJob(NamedTuple):
    """One job: how it is launched, its fault, the ranks to blame and the codes that name the cause."""

    launcher: str
    fault: str
    ranks: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()  # none: the job is healthy
    is_quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.launcher}-{self.fault}".replace(" ", "-")


def _four(launcher: str, *faults: tuple[str, str]) -> list[ZooJob]:
    return [ZooJob(launcher, fault, (2,), tuple(codes.split())) for fault, codes in faults]


JOBS = [
    ZooJob("openmpi", "healthy", is_quick=True),
    ZooJob("mpich", "healthy", is_quick=True),
    ZooJob("tree", "healthy", is_quick=True),
    ZooJob("spawn", "healthy"),
    ZooJob("fork", "healthy"),
    ZooJob("torchrun", "healthy"),
    ZooJob("srun", "healthy"),
    *_four(
        "openmpi", ("exception", "DX1242"), ("sigkill", "DX1240"), ("sigsegv", "DX1241"), ("sigabrt", "DX1241"),
        ("sigbus", "DX1241"), ("sigfpe", "DX1241"), ("exit3", "DX1245"), ("exit0", "DX1244"), ("exit137", "DX1262"),
        ("abort7", "DX1245"), ("oom", "DX350"), ("rlimit", "DX352"), ("missing-file", "DX1242"),
        ("port", "DX227 DX424"), ("shm", "DX400"), ("lock", "DX1251"), ("fifo", "DX1252"), ("sleep", "DX1253"),
        ("spin", "DX1253"), ("stopped", "DX1255"), ("thread", "DX1243"), ("skip", "DX1246 DX1247"),
        ("fewer", "DX1246"), ("shape", "DX1248"), ("dtype", "DX1249"), ("root", "DX1250"), ("order", "DX1247"),
        ("receive", "DX1254"), ("split", "DX1253"), ("subgroup", "DX1246"), ("slow", "DX1256"),
    ),
    ZooJob("openmpi", "cycle", (1, 2), ("DX1254",)),
    ZooJob("openmpi", "sigkill 0", (0,), ("DX1240",)),
    ZooJob("openmpi", "exception 0", (0,), ("DX1242",)),
    *_four("mpich", ("exception", "DX1242"), ("sigkill", "DX1240"), ("exit0", "DX1244"), ("abort7", "DX1245"),
           ("sleep", "DX1253"), ("shape", "DX1248")),
    *[job for how in ("tree", "spawn", "fork") for job in _four(
        how, ("exception", "DX1242"), ("sigkill", "DX1240"), ("sigsegv", "DX1241"), ("exit4", "DX1245"),
        ("lock", "DX1251"), ("ignores-sigterm", "DX1253"))],
    *_four("spawn", ("barrier", "DX1253")),
    *_four("torchrun", ("exception", "DX1242"), ("sigkill", "DX1240"), ("skip", "DX1246 DX1247"), ("shape", "DX1248"),
           ("dtype", "DX1249"), ("order", "DX1247"), ("sleep 60", "DX1253")),
    *_four("srun", ("exception", "DX1242"), ("sigkill", "DX1240"), ("sleep", "DX1253")),
    ZooJob("mixed", "healthy", (), ("DX1257",)),
]  # fmt: skip
QUICK = {
    "openmpi-exception", "openmpi-sigkill", "openmpi-sleep", "openmpi-shape", "openmpi-fewer", "mpich-sigkill",
    "tree-lock", "spawn-exception", "mixed-healthy", "srun-sigkill",
}  # fmt: skip


# What the benchmark runs and the tests do not: each goes the way of another job here, or of one in test_verdict.py.
RARE = {
    "openmpi-sigabrt", "openmpi-sigbus", "openmpi-sigfpe", "openmpi-exit3", "openmpi-dtype", "openmpi-exception-0",
    "openmpi-missing-file", "openmpi-spin", "mpich-abort7", "mpich-sleep", "mpich-exception", "spawn-sigsegv",
    "spawn-exit4", "spawn-lock", "fork-exception", "fork-sigkill", "fork-exit4", "fork-ignores-sigterm",
    "tree-sigkill", "tree-ignores-sigterm", "torchrun-dtype", "torchrun-order", "torchrun-exception", "srun-exception",
    "fork-healthy",
}  # fmt: skip


def make_job_python(folder: Path) -> Path:
    """Make an environment for jobs that holds mpi4py and NumPy and nothing of trtdx."""
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=False, symlinks=True)
        packages = next(folder.glob("lib/python*/site-packages"))
        installed = next(Path(sys.prefix).glob("lib/python*/site-packages"))
        for entry in ("mpi4py", "numpy", "numpy.libs"):
            if (installed / entry).exists():
                (packages / entry).symlink_to(installed / entry)
        shim = folder / "shim"
        shim.mkdir()
        if MPICH_LIBRARY.exists():
            (shim / "libmpi.so.12").symlink_to(MPICH_LIBRARY)
    return folder / "bin" / "python"


def missing_for(job: ZooJob) -> str:
    """Return why a job cannot run here, or an empty text."""
    programs = {"openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich", "mixed": "mpirun.mpich"}
    program = programs.get(job.launcher)
    if program and shutil.which(program) is None:
        return f"{program} is not installed"
    if job.launcher == "srun":
        return missing_for_slurm()
    if job.fault == "oom" and not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.W_OK):
        return "no memory control group can be made here"
    return ""


def command_of(job: ZooJob, python: Path) -> tuple[list[str], dict[str, str]]:
    """Return a job's command and the variables it needs."""
    mpi = [str(python), str(ZOO / "mpi_job.py"), *job.fault.split()]
    mpich = {"LD_LIBRARY_PATH": str(python.parent.parent / "shim"), "MPI4PY_MPIABI": "mpich"}
    if job.launcher == "openmpi":
        return ["mpirun.openmpi", "--oversubscribe", "-n", "4", *mpi], {}
    if job.launcher == "mpich":
        return ["mpirun.mpich", "-n", "4", *mpi], mpich
    if job.launcher == "mixed":  # MPICH's launcher, Open MPI's library
        return ["mpirun.mpich", "-n", "4", *mpi], {}
    if job.launcher == "srun":
        return ["srun", "--mpi=pmix", "-n", "4", *mpi], {}
    if job.launcher == "torchrun":
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        return [*run, "--nproc-per-node", "4", str(ZOO / "torch_job.py"), *job.fault.split()], {}
    return [str(python), str(ZOO / "plain_job.py"), job.launcher, job.fault], {}


class ZooResult(NamedTuple):
    """What was said of a job."""

    status: int
    report: dict
    stdout: str
    stderr: str

    @property
    def findings(self) -> list[dict]:
        return self.report["findings"]


def run_job(job: ZooJob, python: Path, folder: Path, quiet_s: float = QUIET_S) -> ZooResult:
    """Run a job under `trtdx run` and return what it says."""
    command, variables = command_of(job, python)
    report = folder / "report.json"
    quiet = quiet_s * 3 if job.launcher == "torchrun" or job.fault == "oom" else quiet_s  # both are slow, not stalled
    argv = [sys.executable, "-m", "trtdx", "run", "--case", str(folder / "case"), "--report", str(report)]
    argv += ["--quiet-for", str(quiet), "--on-hang", "kill", "--", *command]
    if job.launcher == "srun":
        argv = cluster_command(folder, *argv)
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        env={**os.environ, **MPI_ENVIRONMENT, **variables},
        check=False,
        timeout=300,
    )
    return ZooResult(done.returncode, json.loads(report.read_text()), done.stdout, done.stderr)


def is_right(job: ZooJob, result: ZooResult) -> bool:
    """Whether rank and cause are right; of a healthy job, that nothing is said."""
    if not job.codes:
        return not result.findings and result.status == 0
    return bool(result.findings) and (
        result.findings[0]["code"] in job.codes and tuple(result.findings[0]["ranks"]) == job.ranks
    )
