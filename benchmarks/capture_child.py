"""One way of capturing a run, timed between two plain runs: the child processes of capture.py.

    python capture_child.py WAY FOLDER

It says what it is in one line of JSON, then computes one round for each scenario named on its standard input and
answers with a line. Every way says how much it kept, so that nobody is fast because it kept less.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import capture_onnx_ways as onnx
import capture_ways as torch_ways
from capture_ways import VOCABULARY, Reference, Way, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY_STEPS = (10, 100, 1000)
WAYS: dict[str, type[Way]] = {
    "plain again": torch_ways.Plain,
    "hooks, keep references": torch_ways.Keeping,
    "hooks, torch statistics": torch_ways.Statistics,
    "hooks, raw append": torch_ways.Appending,
    "hooks, torch.save a tensor": torch_ways.Saving,
    "nnsight cache": torch_ways.Nnsight,
    "msProbe statistics L0": torch_ways.MsProbe,
    "torchlens": torch_ways.TorchLens,
    "trtdx statistics + hash": torch_ways.Ours,
    "trtdx statistics + hash + values": torch_ways.OursWithValues,
    "onnx: plain again": onnx.OnnxPlain,
    "onnx: Polygraphy Comparator": onnx.Polygraphy,
    "onnx: trtdx statistics + hash": onnx.OursOnnx,
    "onnx: trtdx statistics + hash + values": onnx.OursOnnxWithValues,
}


def one_round(way: Way, scenario: str) -> dict[str, Any]:
    way.reference.scenario = scenario
    shutil.rmtree(way.folder, ignore_errors=True)
    before, _ = timed(way.reference.plain)
    during, kept = timed(way.capture)
    after, _ = timed(way.reference.plain)
    shutil.rmtree(way.folder, ignore_errors=True)
    return {"before": before, "during": during, "after": after, "inside": way.inside, "kept": kept}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def memory(folder: Path, values: str) -> Iterator[tuple[int, float]]:
    """Yield how much memory is resident after some steps, each of one new token."""
    import torch

    from trtdx.capture.session.live import capturing

    reference = Reference()
    with capturing(reference.model, folder, values=values):
        for step in range(1, MEMORY_STEPS[-1] + 1):
            reference.model(torch.randint(1, VOCABULARY, (1, 1)), use_cache=False)
            if step in MEMORY_STEPS:
                yield step, resident_mib()
    shutil.rmtree(folder)


def answer(content: object) -> None:
    print(json.dumps(content), file=ANSWERS, flush=True)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    if name == "export":
        onnx.export(folder)
        return
    if name == "memory":
        answer({kind: dict(memory(folder, chosen)) for kind, chosen in (("statistics", ""), ("values", "**"))})
        return
    kind = WAYS[name]
    try:
        way = kind(folder)
    except ImportError as err:
        answer({"missing": str(err)})
        return
    version = importlib.metadata.version(kind.package) if kind.package else ""
    answer({"version": version, "scenarios": kind.scenarios, "what": kind.__doc__})
    for line in sys.stdin:
        answer(one_round(way, line.strip()))


if __name__ == "__main__":
    # Packages print as they like; answers have a stream of their own.
    ANSWERS = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        main()
