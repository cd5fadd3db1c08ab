"""The parts of compare.py that run in processes of their own: a peer, a comparison whose memory is measured.

compare_child.py polygraphy A.npz B.npz ROUNDS     needs Polygraphy and NumPy alone
compare_child.py captures FOLDER BYTES             writes FOLDER/a and FOLDER/b
compare_child.py inside A B ROUNDS                 trtdx in this process, its imports not counted
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

TOKENS, HIDDEN, INNER = 2048, 1024, 2816
SMALL_TOKENS = 128


def by_polygraphy(first: str, second: str, rounds: int) -> dict[str, Any]:
    """Compare the arrays of two files as Polygraphy does it by default; reading them is not counted."""
    try:
        import polygraphy
        from polygraphy.comparator import Comparator, IterationResult, RunResults, SimpleCompareFunc
        from polygraphy.logger import G_LOGGER
    except ImportError as err:
        return {"missing": str(err)}
    G_LOGGER.module_severity = G_LOGGER.CRITICAL
    results = RunResults()
    for name, path in (("a", first), ("b", second)):
        with np.load(path) as file:
            outputs = {key: file[key] for key in file.files}
        results.append((name, [IterationResult(outputs=outputs, runner_name=name)]))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        Comparator.compare_accuracy(results, compare_func=SimpleCompareFunc())
        times.append(time.perf_counter() - start)
    return {"version": polygraphy.__version__, "seconds": times}


def layer(number: int, tokens: int) -> dict[str, tuple[int, ...]]:
    """Return the module borders of one layer of a Llama, and their shapes."""
    path, wide, inner = f"model.layers.{number}", (1, tokens, HIDDEN), (1, tokens, INNER)
    return {
        f"{path}.input_layernorm": wide, f"{path}.self_attn.q_proj": wide, f"{path}.self_attn.k_proj": wide,
        f"{path}.self_attn.v_proj": wide, f"{path}.self_attn": wide, f"{path}.post_attention_layernorm": wide,
        f"{path}.mlp.gate_proj": inner, f"{path}.mlp.up_proj": inner, f"{path}.mlp.down_proj": wide, path: wide,
    }  # fmt: skip


def shapes(size: int) -> dict[str, tuple[int, ...]]:
    """Return tensors of float32 of so many bytes together, whole layers of them."""
    tokens = TOKENS if size > 1 << 29 else SMALL_TOKENS
    found: dict[str, tuple[int, ...]] = {}
    while 4 * sum(int(np.prod(each)) for each in found.values()) < size:
        found |= layer(len(found) // 10, tokens)
    return found


def write_captures(folder: Path, size: int) -> dict[str, Any]:
    """Write two captures that differ as two kernels' results do, each of about so many bytes."""
    from trtdx.capture.store.format import CaptureHeader
    from trtdx.capture.store.writer import CaptureWriter
    from trtdx.tensors.statistics import source_from_array
    from trtdx.tensors.taps import Place

    rng = np.random.default_rng(0)
    total = 0
    with (
        CaptureWriter(folder / "a", CaptureHeader(engine="torch"), parquet=False) as ours,
        CaptureWriter(folder / "b", CaptureHeader(engine="torch"), parquet=False) as theirs,
    ):
        for path, shape in shapes(size).items():
            right = rng.standard_normal(shape, np.float32)
            noise = rng.standard_normal(shape[-1:], np.float32) * np.float32(1e-7)
            place = Place(path, "out", 0)
            ours.add(0, place, source_from_array(right), values=True)
            theirs.add(0, place, source_from_array(right * (1 + noise)), values=True)
            total += right.nbytes
    return {"bytes": total, "tensors": len(shapes(size))}


def arrays_of(capture: str, target: str) -> None:
    """Write a capture's values as npz, for peers."""
    from trtdx.capture.store.reader import Capture

    with Capture(capture) as opened:
        np.savez(target, **{each.name: opened.values(each) for each in opened.records()})


def inside(first: str, second: str, rounds: int) -> dict[str, Any]:
    """Compare two captures in this process."""
    from trtdx.compare.run import ComparisonPlan, compare
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book

    host, plan = RealHost(), ComparisonPlan(reference=first, candidate=second)
    book = load_book(host, [])
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        report = compare(host, plan, book)
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": times,
        "peak_mib": peak / 1024,
        "tensors": len(report.tensors),
        "findings": len(report.findings),
    }


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "polygraphy":
        found = by_polygraphy(rest[0], rest[1], int(rest[2]))
    elif what == "captures":
        found = write_captures(Path(rest[0]), int(rest[1]))
    elif what == "arrays":
        found = {"written": arrays_of(rest[0], rest[1])}
    else:
        found = inside(rest[0], rest[1], int(rest[2]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
