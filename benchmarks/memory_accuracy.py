"""How near `trtdx memory` comes to what deployments really used, beside aiconfigurator, in one run.

    python benchmarks/memory_accuracy.py [--rows FILE.jsonl] [--peer PYTHON] [--each] [--json]

Rows are figures that TensorRT-LLM printed (`../shared/samples/memory_cases.jsonl`, or others of that form). Each
goes through the command line as a `config.json` and flags; no row's measured figure is given to either side.
`--peer` is the Python of an environment with aiconfigurator (`pip install aiconfigurator`); without it, or where it
refuses a model, it has no entry in that column, and trtdx is also scored on the rows that the peer answered.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from memory_rows import algo_of, argv_of, config_of, kv_dtype_of, rows_of

GIB = 2**30
ROWS = Path(__file__).resolve().parents[2] / "shared" / "samples" / "memory_cases.jsonl"
COLUMNS = ("kv_bytes_per_token", "weights", "kv_tokens", "activation")
GOALS = {
    "kv_bytes_per_token": "exact",
    "weights": "median 1 %, worst 4 %",
    "kv_tokens": "3 %",
    "activation": "median 15 %",
}
SYSTEMS = {
    "b200": "b200_sxm",
    "h200": "h200_sxm",
    "h100 pcie": "h100_pcie",
    "h100": "h100_sxm",
    "a100": "a100_sxm",
    "l40s": "l40s",
    "gb200": "gb200",
}
GEMMS = {
    "NVFP4": "nvfp4",
    "FP8": "fp8",
    "FP8_BLOCK_SCALES": "fp8_block",
    "W4A16_AWQ": "int4_wo",
    "W4A16": "int4_wo",
    "W4A16_GPTQ": "int4_wo",
    "W8A16": "int8_wo",
}


class Told(NamedTuple):
    """One predicted figure."""

    value: float
    low: float
    high: float


class Answer(NamedTuple):
    figures: dict[str, Told]
    fits: bool | None
    refused: str = ""


def main() -> int:
    options = _options()
    rows = [row for row in rows_of(options.rows) if row["dims"]]
    with tempfile.TemporaryDirectory() as folder:
        models = [_model(Path(folder), at, row) for at, row in enumerate(rows)]
        ours = [_ours(argv_of(row, model)) for row, model in zip(rows, models, strict=True)]
        peers = _peers(options.peer, rows, models)
    table = {
        "trtdx": _score(rows, ours),
        "trtdx, rows of the peer": _score(rows, ours, peers),
        "aiconfigurator": _score(rows, peers),
    }
    if options.json:
        json.dump({"rows": len(rows), "scores": table, "each": _each(rows, ours, peers)}, sys.stdout, indent=1)
        return 0
    if options.each:
        for line in _each(rows, ours, peers):
            print(line)
    print(f"{len(rows)} rows with known sizes, of {options.rows.name}")
    for who, scores in table.items():
        print(f"\n{who}")
        for name, told in scores.items():
            goal = f"   (goal: {GOALS[name]})" if name in GOALS else ""
            print(f"  {name:20} {told}{goal}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--peer", default="", metavar="PYTHON")
    parser.add_argument("--each", action="store_true", help="also print every figure")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _model(folder: Path, at: int, row: dict[str, Any]) -> Path:
    model = folder / str(at)
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config_of(row)))
    return model


def _ours(argv: list[str]) -> Answer:
    from typer.testing import CliRunner

    from trtdx.cli.main import app

    done = CliRunner().invoke(app, ["memory", *argv, "--json"])
    try:
        memory = json.loads(done.stdout)["memory"]
    except (ValueError, KeyError):
        return Answer({}, None, (done.stderr or done.stdout or repr(done.exception)).strip()[:300])
    rank = max(memory["ranks"], key=lambda each: each["weights_bytes"]["value"])
    names = {
        "weights": rank["weights_bytes"],
        "activation": rank["activation_bytes"],
        "kv_bytes_per_token": rank["kv_bytes_per_token"],
        "kv_tokens": memory["kv_tokens"],
    }
    figures = {name: Told(told["value"], told["low"], told["high"]) for name, told in names.items() if told}
    return Answer(figures, memory["fits"])


def _peers(python: str, rows: list[dict[str, Any]], models: list[Path]) -> list[Answer]:
    if not python:
        return [Answer({}, None, "not asked")] * len(rows)
    requests = [_request(row, model) for row, model in zip(rows, models, strict=True)]
    child = [python, str(Path(__file__).with_name("memory_peer.py"))]
    done = subprocess.run(child, input=json.dumps(requests), capture_output=True, text=True, check=True, timeout=600)
    return [_peer_answer(told) for told in json.loads(done.stdout)]


def _request(row: dict[str, Any], model: Path) -> dict[str, Any]:
    gpu = (row["gpu"] or "").lower()
    algo = algo_of(row["weight_dtype"])
    total = row.get("gpu_total_gib")
    ep = row.get("ep") or 1
    return {
        "model_path": str(model),
        "system": next((system for name, system in SYSTEMS.items() if name in gpu), "h100_sxm"),
        "backend": "trtllm",
        "backend_version": "current",
        "max_num_tokens": row.get("max_num_tokens") or 8192,
        "max_batch_size": row.get("max_batch_size") or 2048,
        "memory_fraction_kind": "of_free",
        "memory_fraction_value": row.get("kv_free_fraction") or 0.9,
        "tp_size": row.get("tp") or 1,
        "pp_size": row.get("pp") or 1,
        "moe_ep_size": ep,
        "moe_tp_size": (row.get("tp") or 1) // ep,
        "gemm_quant_mode": GEMMS.get(algo),
        "moe_quant_mode": GEMMS.get(algo),
        "kvcache_quant_mode": "fp8" if kv_dtype_of(row) == "fp8" else None,
        "gpu_memory_capacity_bytes_override": round(total * GIB) if total else None,
    }


def _peer_answer(told: dict[str, Any]) -> Answer:
    if "refused" in told:
        return Answer({}, False if "no KV" in told["refused"] else None, told["refused"])
    parts = told["memory_breakdown"]
    values = {
        "weights": parts["weights_bytes"],
        "activation": parts["activations_bytes"],
        "kv_bytes_per_token": told["kv_size_per_token_bytes"],
        "kv_tokens": told["total_kv_size_tokens"],
    }
    return Answer({name: Told(value, value, value) for name, value in values.items()}, told["total_kv_size_tokens"] > 0)


def measured(row: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return what was measured, each with the error of its printing."""
    of = row["measured"]
    found: dict[str, tuple[float, float]] = {}
    if of.get("kv_bytes_per_token_per_gpu"):
        rounding = float((str(of.get("kv_bytes_per_token_rounding") or "+/- 1").split()[1]).rstrip("."))
        found["kv_bytes_per_token"] = (of["kv_bytes_per_token_per_gpu"], rounding)
    weights = (
        of.get("weights_bytes") or (of.get("checkpoint_weights_printed_gb") or of.get("weights_gib_per_gpu") or 0) * GIB
    )
    if weights:
        found["weights"] = (weights, 0)
    if of.get("activation_gib"):
        found["activation"] = (of.get("activation_bytes") or of["activation_gib"] * GIB, 0)
    if of.get("kv_tokens") and row.get("gpu_total_gib") and "configured" not in str(of.get("kv_tokens_is")):
        found["kv_tokens"] = (of["kv_tokens"], 0)
    return found


def _score(rows: list[dict[str, Any]], answers: list[Answer], also: list[Answer] | None = None) -> dict[str, str]:
    """Return each column's errors; with `also`, only over what those answered too."""
    told: dict[str, str] = {}
    inside, total = 0, 0
    for name in COLUMNS:
        errors = []
        for at, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            real = measured(row).get(name)
            guess = answer.figures.get(name)
            if real is None or guess is None or (also is not None and name not in also[at].figures):
                continue
            value, rounding = real
            off = 0.0 if abs(guess.value - value) <= rounding else guess.value / value - 1
            errors.append(abs(off))
            total += 1
            inside += guess.low - rounding <= value <= guess.high + rounding
        if errors:
            told[name] = f"median {statistics.median(errors):7.2%}   worst {max(errors):7.2%}   over {len(errors)}"
    told["fits"] = _fits(rows, answers, also)
    told["band holds"] = f"{inside} of {total}"
    return told


def _fits(rows: list[dict[str, Any]], answers: list[Answer], also: list[Answer] | None) -> str:
    right, asked = 0, 0
    for at, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        outcome = row["measured"].get("outcome")
        if outcome and answer.fits is not None and (also is None or also[at].fits is not None):
            asked += 1
            right += answer.fits == (outcome == "fits")
    return f"right on {right} of {asked}"


def _each(rows: list[dict[str, Any]], ours: list[Answer], peers: list[Answer]) -> list[str]:
    lines = []
    for row, mine, peer in zip(rows, ours, peers, strict=True):
        lines.append(
            f"{row['id'][-90:]}: {row['measured'].get('outcome')}, trtdx {mine.fits} {mine.refused}, peer {peer.fits} {peer.refused[-160:]}"
        )
        for name, (value, _) in measured(row).items():
            told = mine.figures.get(name)
            other = peer.figures.get(name)
            mark = (
                ""
                if told is None
                else f"{told.value:>16,.0f} ({told.value / value - 1:+.1%}, {told.low:,.0f} to {told.high:,.0f})"
            )
            beside = "" if other is None else f"   peer {other.value / value - 1:+.1%}"
            lines.append(f"    {name:20} {value:>16,.0f}  {mark}{beside}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
