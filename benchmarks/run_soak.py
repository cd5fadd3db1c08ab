"""Short supervised jobs in a row: each must end as the command would, and nothing may be left behind.

    python benchmarks/run_soak.py --jobs 1000 --minutes 25 --python JOB_PYTHON

Plain commands, failing ones and a small tree of ranks take turns, and every tenth job is `mpirun -n 2`. Counted before
and after: processes with our mark, folders in the temporary directory, shared memory segments, and this process's own
descriptors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.run_zoo import MPI_ENVIRONMENT

MARK = "TRTDX_SOAK_MARK"
TREE = "for r in 0 1; do RANK=$r sh -c 'echo $RANK' & done; wait"
MPI_PROGRAM = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print('in', flush=True); {end}"


class SoakJob(NamedTuple):
    """One job: its command, and what it must end with."""

    kind: str
    command: tuple[str, ...]
    status: int
    output: bytes


class Leftovers(NamedTuple):
    """What a leak would add to."""

    processes: int
    folders: int
    segments: int
    descriptors: int


def soak_job(number: int, python: str) -> SoakJob:
    """Return the job of a number: one in ten is an MPI job, the others take turns."""
    if number % 20 == 10:
        return SoakJob("mpi", mpi_command(python, "pass"), 0, b"in\nin\n")
    if number % 20 == 19:
        return SoakJob("mpi failing", mpi_command(python, "MPI.COMM_WORLD.Abort(3)"), 3, b"")
    return (
        SoakJob("plain", ("true",), 0, b""),
        SoakJob("failing", ("sh", "-c", "echo out; exit 3"), 3, b"out\n"),
        SoakJob("python", (python, "-c", "print(1)"), 0, b"1\n"),
        SoakJob("tree", ("sh", "-c", TREE), 0, b"0\n1\n"),
        SoakJob("raising", (python, "-c", "raise KeyError('w')"), 1, b""),
        SoakJob("killed", ("sh", "-c", "kill -9 $$"), 128 + signal.SIGKILL, b""),
    )[number % 6]


def mpi_command(python: str, end: str) -> tuple[str, ...]:
    return ("mpirun.openmpi", "--oversubscribe", "-n", "2", python, "-c", MPI_PROGRAM.format(end=end))


def count_leftovers(mark: str) -> Leftovers:
    return Leftovers(
        sum(is_marked(entry, mark) for entry in Path("/proc").iterdir() if entry.name.isdigit()),
        len(list(Path(tempfile.gettempdir()).glob("trtdx-*"))),
        len(list(Path("/dev/shm").iterdir())),
        len(list(Path("/proc/self/fd").iterdir())),
    )


def is_marked(entry: Path, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in (entry / "environ").read_bytes()
    except OSError:
        return False


def run_soak_job(job: SoakJob, folder: Path, environment: dict[str, str]) -> str:
    """Run a job under supervision and return what was wrong with its end, or nothing."""
    shutil.rmtree(folder / "case", ignore_errors=True)
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "trtdx", "run", "--case", str(folder / "case"), "--report", str(report), "--"]
    done = subprocess.run([*argv, *job.command], capture_output=True, env=environment, timeout=300)
    if done.returncode != job.status:
        return f"status {done.returncode}, not {job.status}: {done.stderr[-300:]!r}"
    is_same = sorted(done.stdout.splitlines()) == sorted(job.output.splitlines())
    if not is_same and job.kind != "mpi failing":
        return f"output {done.stdout!r}, not {job.output!r}"
    return "" if report.is_file() else "no report"


def run_soak(jobs: int, minutes: float, python: str) -> bool:
    mark = f"{os.getpid()}"
    environment = {**os.environ, **MPI_ENVIRONMENT, MARK: mark}
    before, began = count_leftovers(mark), time.monotonic()
    kinds: Counter[str] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for number in range(jobs):
            if time.monotonic() - began > minutes * 60:
                break
            job = soak_job(number, python)
            kinds[job.kind] += 1
            if reason := run_soak_job(job, Path(folder), environment):
                wrong.append(f"{number} {job.kind}: {reason}")
                print(wrong[-1], flush=True)
        took = time.monotonic() - began
        time.sleep(3)
        after = count_leftovers(mark)
    print(f"{kinds.total()} jobs in {took:.0f} s ({dict(kinds)}), {len(wrong)} wrong")
    for name, first, last in zip(Leftovers._fields, before, after, strict=True):
        print(f"{name}: {first} before, {last} after")
    return not wrong and after.processes == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--python", default=sys.executable, help="the job's Python, with mpi4py")
    words = parser.parse_args()
    return 0 if run_soak(words.jobs, words.minutes, words.python) else 1


if __name__ == "__main__":
    raise SystemExit(main())
