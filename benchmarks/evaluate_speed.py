"""How fast a TensorRT network is evaluated on the CPU, beside ONNX Runtime on the same model, in turns, one thread.

Times are processor time of the thread, the best of a burst, and the median of the bursts' ratios.
Run it with the Python of the tests' environment (`scripts/test` makes it).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from test_decoders import Both

from support.decoders import export, feed_of
from support.networks import Net

SHAPES = ((1, 1, 127), (4, 1, 255), (1, 12, 0), (1, 64, 0), (2, 128, 0))  # batch, new tokens, cached tokens
BURST, ROUNDS = 10, 9


def times_slower(both: Both, feed: dict[str, np.ndarray]) -> float:
    def best(compute) -> float:
        times = []
        for _ in range(BURST):
            start = time.thread_time()
            compute(feed)
            times.append(time.thread_time() - start)
        return min(times)

    ratios = [best(both.by_evaluate) / best(both.by_runtime) for _ in range(ROUNDS)]
    return float(np.median(ratios[1:]))


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        both = Both(Net, path, export("recipe", path))
        for batch, new, old in SHAPES:
            past = [rng.random((batch, 4, old, 32), np.float32) for _ in range(8)]
            ids, mask = np.ones((batch, new), np.int64), np.ones((batch, old + new), np.int64)
            ratio = times_slower(both, feed_of(both.size, ids, mask, past, both.known))
            print(f"batch {batch}, {new} new tokens, {old} cached: {ratio:.2f}x the time of ONNX Runtime")


if __name__ == "__main__":
    main()
