"""How often `trtdx trace` names the slowness that was planted, with its share, and says nothing of healthy loops.

    python benchmarks/trace_zoo.py [--rounds 1] [--only WORD] [--load N]

Every fault runs for real under torch's profiler: loops of one process and jobs of gloo ranks. What a fault costs is
measured with a clock while the trace is written. `--load` runs that many busy processes beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.rare_slow_loops import RARE_FAULTS, RARE_HEALTHY
from support.slow_loops import FAULTS, HEALTHY, run_fault
from support.slow_rank_jobs import HEALTHY_JOBS, RANK_FAULTS, run_ranks
from trtdx.host import RealHost
from trtdx.trace.causes.table import find_causes
from trtdx.trace.run import analyse_files

SHARE_ERROR = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--keep", default="", help="keep the traces in this folder")
    options = parser.parse_args()
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(options.keep or folder), options)
    finally:
        for process in load:
            process.kill()


def measure(folder: Path, options: argparse.Namespace) -> None:
    loops = {name: ((code,), plant) for name, (code, plant) in FAULTS.items()} | RARE_FAULTS
    scores: list[tuple[bool, bool]] = []
    quiet: list[bool] = []
    for number in range(options.rounds):
        for name, (codes, plant) in loops.items():
            if options.only in name:
                path = folder / f"{name}-{number}.json".replace(" ", "-")
                share, undisturbed = run_fault(plant, path, tries=1)
                scores.append(print_fault(name, codes, share, undisturbed, causes_in(path)))
        for name, (codes, world) in RANK_FAULTS.items():
            if options.only in name:
                share, undisturbed, causes = run_job(folder, name, world, number)
                scores.append(print_fault(name, codes, share, undisturbed, causes))
        for name, plant in (HEALTHY | RARE_HEALTHY).items():
            if options.only in name:
                path = folder / f"{name}-{number}.json".replace(" ", "-")
                _, undisturbed = run_fault(plant, path, tries=1)
                quiet.append(print_healthy(name, undisturbed, causes_in(path)))
        for name, world in HEALTHY_JOBS.items():
            if options.only in name:
                _, undisturbed, causes = run_job(folder, name, world, number)
                quiet.append(print_healthy(name, undisturbed, causes))
    first, right = (sum(column) for column in zip(*scores, strict=True)) if scores else (0, 0)
    print(f"the right cause first: {first} of {len(scores)}; with its share within 10 %: {right}")
    print(f"nothing said of healthy runs: {sum(quiet)} of {len(quiet)}")


def run_job(folder: Path, name: str, world: int, number: int) -> tuple[float, float, list]:
    job = folder / f"{name}-{number}".replace(" ", "-")
    job.mkdir(exist_ok=True)
    share, undisturbed = run_ranks(name, world, job)
    return share, undisturbed, causes_in(job)


def causes_in(path: Path) -> list:
    return find_causes(analyse_files(RealHost(), [str(path)]))


def print_fault(name, codes, share, undisturbed, causes) -> tuple[bool, bool]:
    is_first = bool(causes) and causes[0].code in codes
    is_right = is_first and abs(causes[0].share - share) <= SHARE_ERROR
    verdict = "right" if is_right else "share" if is_first else "WRONG"
    others = " ".join(f"{cause.code}:{cause.share:.0%}" for cause in causes)
    print(f"{verdict:6}{name:38}{codes[0]} {share:4.0%}  found {others or '-'}  (undisturbed {undisturbed:.2f})")
    return is_first, is_right


def print_healthy(name, undisturbed, causes) -> bool:
    others = " ".join(f"{cause.code}:{cause.share:.0%}" for cause in causes)
    print(f"{'WRONG' if causes else 'quiet':6}{name:38}{others}  (undisturbed {undisturbed:.2f})")
    return not causes


if __name__ == "__main__":
    main()
