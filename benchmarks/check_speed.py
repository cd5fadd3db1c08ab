"""How long `trtdx check` takes beside the tools people use for parts of it, in one run on one environment.

    python benchmarks/check_speed.py [--python INTERPRETER] [--rounds 5]

Prints the best of some rounds, and each as a ratio to `pip check`. The probe alone must stay under two seconds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time

from trtdx.check.facts.trials import PROBE, STARTER


def best_seconds(argv: list[str], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run(argv, capture_output=True, check=False)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    check = [sys.executable, "-m", "trtdx", "check", "--no-resolve", "--python", options.python]
    tools = {
        "pip check": [options.python, "-m", "pip", "check"],
        "the probe alone": [options.python, "-c", STARTER, str(PROBE)],
        "trtdx check --no-imports": [*check, "--no-imports"],
        "trtdx check": check,
    }
    if shutil.which("uv"):
        tools["uv pip check"] = ["uv", "pip", "check", "--python", options.python]
    has_torch = subprocess.run([options.python, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    if has_torch:
        tools["torch.utils.collect_env"] = [options.python, "-m", "torch.utils.collect_env"]
    seconds = {name: best_seconds(argv, options.rounds) for name, argv in tools.items()}
    for name, value in seconds.items():
        print(f"{name:26} {value:6.2f} s   {value / seconds['pip check']:5.2f} x pip check")
    sys.exit(seconds["the probe alone"] > 2.0)


if __name__ == "__main__":
    main()
