"""How long a frontier, a target and advice take, and how many plans each makes; by model, backend and layout.

Run it with the Python of the tests' environment. A frontier of all usual lengths and steps is to take less than half a
second; the median and the slowest of several rounds are shown, so that a busy machine is seen as such.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

from trtdx.host import RealHost
from trtdx.memory.advice.advice import advise_changes
from trtdx.memory.advice.target import TargetLoad, reach_target
from trtdx.memory.ledger.frontier import compute_frontier
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.question.flags import artifact_from_flags
from trtdx.memory.question.gpus import all_devices
from trtdx.memory.question.setup import MemoryRequest, resolve_setup

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.memory.nouns import MemoryLedger, Setup

CASES = (
    ("Llama-3.1-8B", "H100", ()),
    ("Llama-3.1-8B", "L4", ("--backend", "tensorrt")),
    ("Llama-3.1-70B", "8xH100", ("--pp", "4")),
    ("DeepSeek-R1", "8xB200", ("--ep", "8", "--kv_cache_dtype", "fp8")),
    ("gpt-oss-120b", "H100", ()),
    ("Gemma-2-27B", "A100", ()),
)
GOAL_S = 0.5
DENSE = tuple(range(512, 32769, 512))  # 64 lengths: a picture without steps


class Counting:
    """A planner that counts its plans."""

    def __init__(self) -> None:
        self.plans = 0

    def __call__(self, setup: Setup) -> MemoryLedger:
        self.plans += 1
        return plan_memory(setup)


def timed(work: Callable[[Counting], object], rounds: int) -> tuple[float, float, int]:
    """Return the median and the longest time, and the plans of one round."""
    times = []
    for _ in range(rounds):
        planner = Counting()
        begin = time.perf_counter()
        work(planner)
        times.append(time.perf_counter() - begin)
    return statistics.median(times), max(times), planner.plans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'set-up':44} {'what':18} {'median ms':>9} {'worst ms':>9} {'plans':>6}")
    slowest = 0.0
    for model, gpu, words in CASES:
        setup = resolve_setup(
            RealHost(), MemoryRequest(model=model, gpu=gpu, flags=artifact_from_flags({}, words))
        ).setup
        devices = all_devices()
        works: dict[str, Callable[[Counting], object]] = {
            "frontier": lambda planner, s=setup: compute_frontier(s, planner=planner),
            "frontier, 64 x 6": lambda planner, s=setup: compute_frontier(s, lengths=DENSE, planner=planner),
            "advice": lambda planner, s=setup, d=devices: advise_changes(s, planner(s), d, planner),
            "target": lambda planner, s=setup, d=devices: reach_target(s, TargetLoad(256, 16384), d, planner),
        }
        for name, work in works.items():
            median, worst, plans = timed(work, rounds)
            slowest = max(slowest, median if name == "frontier" else 0)
            label = f"{model} on {gpu} {' '.join(words)}"
            print(f"{label:44} {name:18} {median * 1e3:9.1f} {worst * 1e3:9.1f} {plans:6}")
    print(f"slowest frontier: {slowest * 1e3:.0f} ms; the goal is {GOAL_S * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
