"""The planner's activation memory beside TensorRT's own compiler, shape by shape, in one run.

    python benchmarks/memory_compile.py [--large] [--json]

Small Llamas are compiled for each shape on the CPU (`trtdx.memory.compile.activation`, TensorRT-RTX, without cache). The formula is
the planner's for a network without plugins, which is what this compiler builds. A second table shows that two layers
stand for all. `--large` adds the layers of an 8B and a 70B model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import msgspec

from trtdx.host import RealHost
from trtdx.memory.compile.activation import (
    blocks_from_setup,
    compile_activation,
    compile_point,
    installed_tensorrt,
)
from trtdx.memory.compile.cache import CompileCache
from trtdx.memory.ledger.plan import formula_activation
from trtdx.memory.nouns import Dims, Formats, ParallelLayout, RuntimeSettings, ServingLimits, Setup

GOAL = 0.10


def llama(hidden: int, heads: int, kv_heads: int, inner: int, layers: int = 4, head_dim: int = 0) -> Dims:
    return Dims(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        intermediate_size=inner,
        vocab_size=8000,
    )


MODELS = {
    "small Llama 1024/3584": llama(1024, 8, 2, 3584),
    "TinyLlama 2048/5632": llama(2048, 32, 4, 5632),
    "Qwen2.5-0.5B 896/4864": llama(896, 14, 2, 4864),
    "multi-head 512/2048": llama(512, 8, 8, 2048),
}
LARGE = {
    "Llama-3-8B 4096/14336": llama(4096, 32, 8, 14336, 32),
    "Llama-3-70B 8192/28672": llama(8192, 64, 8, 28672, 80),
}
TOKENS = (64, 256, 512, 1024, 2048, 4096, 16384)


def setup_of(dims: Dims, tokens: int) -> Setup:
    return Setup(
        model="",
        dims=dims,
        layout=ParallelLayout(),
        formats=Formats(dtype="float16"),
        limits=ServingLimits(max_batch_size=1, max_num_tokens=tokens, max_seq_len=max(tokens, 2)),
        running=RuntimeSettings(backend="tensorrt", gemm_plugin=False, attention_plugin=False),
    )


def compiled(setup: Setup) -> tuple[int, float]:
    began = time.perf_counter()
    found = compile_activation(setup)
    return found.points[-1].bytes, time.perf_counter() - began


def shapes(models: dict[str, Dims]) -> list[dict[str, Any]]:
    rows = []
    for name, dims in models.items():
        for tokens in TOKENS if dims.hidden_size < 4096 else (8192,):
            setup = setup_of(dims, tokens)
            truth, seconds = compiled(setup)
            figure = formula_activation(setup, 0).bytes
            rows.append(
                {
                    "model": name,
                    "tokens": tokens,
                    "compiled": truth,
                    "formula": figure.value,
                    "error": figure.value / truth - 1,
                    "in_band": figure.low <= truth <= figure.high,
                    "seconds": round(seconds, 2),
                }
            )
    return rows


def by_layers(dims: Dims) -> list[dict[str, int]]:
    """Compile 1, 2 and 4 layers of one model at a short and a long step."""
    rows = []
    for tokens in (512, 4096):
        blocks = blocks_from_setup(setup_of(dims, tokens), tokens)
        row = {"tokens": tokens}
        for layers in (1, 2, 4):
            each = msgspec.structs.replace(blocks, layers=layers)
            point = compile_point(each, CompileCache(RealHost()), (*installed_tensorrt(), "8.9"), None, None)
            row[str(layers)] = point.bytes
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        rows = shapes(MODELS | (LARGE if asked.large else {}))
        layers = by_layers(MODELS["small Llama 1024/3584"])
    errors = [abs(row["error"]) for row in rows]
    summary = {
        "shapes": len(rows),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "within_goal": sum(error <= GOAL for error in errors),
        "in_band": sum(row["in_band"] for row in rows),
    }
    if asked.json:
        print(json.dumps({"rows": rows, "layers": layers, "summary": summary}, indent=1))
        return 0
    print(f"{'model':26s} {'tokens':>7s} {'compiled':>14s} {'formula':>14s} {'error':>8s} {'seconds':>8s}")
    for row in rows:
        print(
            f"{row['model']:26s} {row['tokens']:7d} {row['compiled']:14,d} {row['formula']:14,d} "
            f"{row['error']:+8.1%} {row['seconds']:8.2f}"
        )
    print("\nlayers compiled together (bytes):")
    for row in layers:
        print(f"  {row['tokens']:6d} tokens: " + ", ".join(f"{n}: {row[n]:,d}" for n in ("1", "2", "4")))
    print(
        f"\n{summary['shapes']} shapes: median error {summary['median_error']:.1%}, worst {summary['worst_error']:.1%}, "
        f"{summary['within_goal']} within {GOAL:.0%}, {summary['in_band']} in the stated band"
    )
    return 0 if summary["median_error"] <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
