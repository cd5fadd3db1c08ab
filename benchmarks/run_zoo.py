"""Runs the zoo of supervised jobs and counts how often rank and cause are right: `run_zoo.py [--times 5] [NAME…]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.run_zoo import JOBS, is_right, make_job_python, missing_for, run_job


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    right: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        python = make_job_python(Path(folder, "python"))
        for job in JOBS:
            if options.names and not any(name in job.name for name in options.names):
                continue
            if reason := missing_for(job):
                print(f"{job.name:28} skipped: {reason}")
                continue
            for time_number in range(options.times):
                place = Path(folder, f"{job.name}-{time_number}")
                place.mkdir()
                begun = time.monotonic()
                result = run_job(job, python, place)
                kind = "faulty" if job.codes else "healthy"
                runs[kind] += 1
                right[kind] += is_right(job, result)
                verdict = [(finding["code"], finding["ranks"]) for finding in result.findings[:1]]
                mark = "right" if is_right(job, result) else "WRONG"
                print(f"{job.name:28} {mark} {time.monotonic() - begun:5.1f} s {verdict}", flush=True)
    for kind, count in runs.items():
        print(f"{kind}: {right[kind]} of {count} right ({right[kind] / count:.1%})")


if __name__ == "__main__":
    main()
