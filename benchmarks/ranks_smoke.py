"""Measures `trtdx ranks`: how long a check and a smoke test take, and what the smoke test's bandwidth is worth.

The same pair of ranks is measured by a bare loop of mpi4py; the smoke test should find nearly the same figure.

    .venv/bin/python benchmarks/ranks_smoke.py [--ranks 2] [--repeat 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from trtdx.ranks.launchers import parse_launcher
from trtdx.ranks.smoke.nouns import SmokeQuestion
from trtdx.ranks.smoke.run import run_smoke

LOOP = """
import time
from mpi4py import MPI
comm, size = MPI.COMM_WORLD, 16 << 20
data, laps = bytearray(size), []
for _ in range(5):
    comm.Barrier(); began = time.perf_counter()
    if comm.rank == 0: comm.Send(data, 1); comm.Recv(data, 1)
    if comm.rank == 1: comm.Recv(data, 0); comm.Send(data, 0)
    laps.append(time.perf_counter() - began)
if comm.rank == 0: print(2 * size / min(laps))
"""


def timed(argv: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(argv, check=True, capture_output=True)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    launcher = f"mpirun --oversubscribe -n {options.ranks}"
    trtdx = [sys.executable, "-m", "trtdx", "ranks"]
    words = ["--launcher", launcher, "--python", sys.executable]
    for name, command in (
        ("launcher alone", [*launcher.split(), "true"]),
        ("check", [*trtdx, "check", *words]),
        ("smoke", [*trtdx, "smoke", *words]),
    ):
        seconds = [timed(command) for _ in range(options.repeat)]
        print(f"{name:15} {statistics.median(seconds):6.2f} s (median of {options.repeat})")
    bare, by_smoke = [], []
    for _ in range(options.repeat):
        done = subprocess.run(
            [*launcher.split(), sys.executable, "-c", LOOP], check=True, capture_output=True, text=True
        )
        bare.append(float(done.stdout))
        question = SmokeQuestion(parse_launcher(launcher), options.ranks, python=sys.executable)
        by_smoke += [entry.bytes_per_s for entry in run_smoke(question).of_kind("pair") if entry.pair == (0, 1)]
    print(
        f"ranks 0 - 1     {max(bare) / 2**30:.2f} GiB/s by a bare loop, {max(by_smoke) / 2**30:.2f} GiB/s by the smoke test"
    )


if __name__ == "__main__":
    main()
