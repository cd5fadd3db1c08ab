"""How fast and in how little memory `trtdx compare` works, beside memcpy, NumPy, torch and Polygraphy; one run, as ratios.

arrays      two tensors, by the compiled kernel, beside a memcpy of both and what one would write by hand
captures    two captures, as the whole command and inside a process, beside Polygraphy on the same arrays
memory      the most that is resident while two captures of 0.1, 1 and 10 GB each are compared
depth       whole comparisons of two models of 8 to 64 layers, one with a mistake planted: seconds and segment runs

Every way runs in every round, so that a busy machine slows all of them alike; medians are shown. Run it with the
Python of the tests' environment (`scripts/test` makes it). `--polygraphy` names the Python of an environment that has
Polygraphy; without it that peer is left out, and the report says so. `memory` writes twice its largest size into
`--scratch`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

CHILD = Path(__file__).with_name("compare_child.py")
PARTS = ("arrays", "captures", "memory", "depth")
DTYPES = ("float32", "bfloat16", "float16")
GOALS = {"arrays": 1.0, "captures": 50.0, "memory": 500.0, "depth": 8}
MOST_S = 1800.0
VOCABULARY = 64


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ways_of(dtype: str, elements: int) -> dict[str, tuple[Callable[[], object], int]]:
    """Return ways to compare two tensors, and how many bytes of both each looks at."""
    import torch

    from trtdx.tensors.difference import measure_difference
    from trtdx.tensors.dtypes import numpy_dtype

    base = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    r, c = (each.astype(numpy_dtype(dtype)) for each in (base, base * np.float32(1.001)))
    targets = np.empty_like(r), np.empty_like(c)

    def copy() -> None:
        np.copyto(targets[0], r)
        np.copyto(targets[1], c)

    few = elements // 8
    tensors = [torch.from_numpy(each[:few]).to(getattr(torch, dtype)) for each in (base, base * 1.001)]
    found: dict[str, tuple[Callable[[], object], int]] = {
        "memcpy of both": (copy, 2 * r.nbytes),
        "kernel, all metrics": (partial(measure_difference, r, c), 2 * r.nbytes),
        "kernel, all metrics, rows of 4096": (
            partial(measure_difference, r, c, row_length=4096),
            2 * r.nbytes,
        ),
        "torch: four metrics": (partial(by_torch, *tensors), 2 * r.nbytes // 8),
        "torch.allclose": (partial(torch.allclose, *tensors, rtol=1e-2), 2 * r.nbytes // 8),
    }
    if dtype != "bfloat16":  # NumPy's own types alone
        some = r[:few], c[:few]
        found["numpy: seven metrics"] = partial(by_numpy, *some), 2 * r.nbytes // 8
        found["np.allclose"] = partial(np.allclose, *some, rtol=1e-2), 2 * r.nbytes // 8
    return found


def by_numpy(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """What a careful user writes: in double, the reference's zeros and numbers that are none apart."""
    r, c = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(r) & np.isfinite(c)
    d = np.abs(c - r)[finite]
    size = np.abs(r)[finite]
    dot, rr, cc = (r * c).sum(), (r * r).sum(), (c * c).sum()
    relative = (d[size > 0] / size[size > 0]).max()
    return (
        d.max(),
        relative,
        d.mean(),
        np.sqrt((d * d).mean()),
        np.sqrt((d * d).sum() / rr),
        dot / np.sqrt(rr * cc),
        (~finite).sum(),
    )


def by_torch(one: Any, other: Any) -> tuple[Any, ...]:
    import torch

    r, c = one.double(), other.double()
    d = (c - r).abs()
    cosine = torch.nn.functional.cosine_similarity(r.reshape(1, -1), c.reshape(1, -1))
    return d.max().item(), d.mean().item(), (d.norm() / r.norm()).item(), cosine.item()


def arrays(mebibytes: int, rounds: int) -> dict[str, Any]:
    import torch

    from trtdx.tensors.statistics import kernel_in_use

    torch.set_num_threads(1)
    found: dict[str, Any] = {"kernel": kernel_in_use(), "mebibytes": mebibytes}
    for dtype in DTYPES:
        ways = ways_of(dtype, mebibytes << (18 if dtype == "float32" else 19))
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, (call, size) in ways.items():
                speeds[name].append(size / timed(call) / 1e9)
        copied = speeds["memcpy of both"]
        found[dtype] = {
            name: {
                "gb_per_s": round(statistics.median(all_of), 2),
                "times_memcpy": round(statistics.median(a / b for a, b in zip(all_of, copied, strict=True)), 3),
            }
            for name, all_of in speeds.items()
        }
    return found


def child(python: str | Path, *words: object) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-W", "ignore", CHILD, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=MOST_S,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        return {"missing": (done.stderr.strip() or "it ended").splitlines()[-1][:120]}
    return json.loads(done.stdout)


def command(*words: object) -> tuple[float, float, int]:
    """Return the seconds, the most MiB resident and the exit status of one `trtdx compare`."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "trtdx", "compare", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - start, used.ru_maxrss / 1024, process.returncode


def captures(scratch: Path, mebibytes: int, rounds: int, polygraphy: str) -> dict[str, Any]:
    folder = scratch / "captures"
    made = child(sys.executable, "captures", folder, mebibytes << 20)
    sides = folder / "a", folder / "b"
    for each in sides:
        child(sys.executable, "arrays", each, each.with_suffix(".npz"))
    found: dict[str, Any] = {"each": made, "command_s": [], "inside_s": [], "polygraphy_s": [], "missing": ""}
    for _ in range(rounds):
        found["command_s"].append(command(*sides)[0])
        found["inside_s"] += child(sys.executable, "inside", *sides, 2)["seconds"][1:]
        peer = child(polygraphy, "polygraphy", *(each.with_suffix(".npz") for each in sides), 1)
        found["missing"] = peer.get("missing", "")
        found["polygraphy_s"] += peer.get("seconds", [])
        found["polygraphy"] = peer.get("version", "")
        if found["missing"]:
            break
    shutil.rmtree(folder)
    peer_times = found["polygraphy_s"]
    for way in ("command", "inside"):
        if peer_times:
            ratios = (b / a for a, b in zip(found[f"{way}_s"], peer_times, strict=True))
            found[f"times_polygraphy_{way}"] = round(statistics.median(ratios), 1)
        found[f"{way}_s"] = round(statistics.median(found[f"{way}_s"]), 3)
    found["polygraphy_s"] = round(statistics.median(peer_times), 3) if peer_times else None
    found["gb_per_s_inside"] = round(2 * made["bytes"] / found["inside_s"] / 1e9, 2)
    return found


def memory(scratch: Path, sizes: list[float]) -> dict[str, Any]:
    """Return the most that is resident while captures are compared; files are removed as soon as may be."""
    found: dict[str, Any] = {}
    for gigabytes in sizes:
        folder = scratch / "memory"
        if shutil.disk_usage(scratch).free < 2.2e9 * gigabytes:
            found[str(gigabytes)] = {"missing": f"no room for {gigabytes} GB twice in {scratch}"}
            continue
        try:
            made = child(sys.executable, "captures", folder, int(gigabytes * 1e9))
            seconds, peak, status = command(folder / "a", folder / "b")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found[str(gigabytes)] = {
            "bytes_each": made["bytes"],
            "tensors": made["tensors"],
            "seconds": round(seconds, 2),
            "peak_mib": round(peak),
            "status": status,
        }
    return found


def model_of(folder: Path, layers: int, mistake: int | None = None) -> Path:
    """Write a tiny Llama, the down projection of one layer with the wrong sign where that is asked for."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=128, initializer_range=0.1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    if mistake is not None:
        with torch.no_grad():
            model.model.layers[mistake].mlp.down_proj.weight.mul_(-1)
    model.save_pretrained(folder)
    return folder


def depth(scratch: Path, counts: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for layers in counts:
        wrong = layers * 5 // 8
        sides = [
            f"hf:{model_of(scratch / f'{layers}-{name}', layers, at)}?threads=1"
            for name, at in (("good", None), ("bad", wrong))
        ]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "trtdx", "compare", *sides, "--tokens", "1 5 9 22 3 40", "--json"],
            capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        seconds = time.perf_counter() - start
        report = json.loads(done.stdout)
        where = report["findings"][0]["where"]["tensor"] if report["findings"] else ""
        found[str(layers)] = {
            "seconds": round(seconds, 1),
            "segment_runs": report["segment_runs"],
            "whole_runs": report.get("whole_runs"),
            "found": where,
            "right": where == f"model.layers.{wrong}.mlp.down_proj:out",
        }
    return found


def machine() -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load": [round(each, 2) for each in os.getloadavg()],
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def render(report: dict[str, Any]) -> str:
    told = report["machine"]
    lines = [
        f"{told['processor']}, {told['cores']} cores, load {told['load']} before and {report['load_after']} after, "
        f"Python {told['python']}, NumPy {told['numpy']}"
    ]
    if "arrays" in report:
        found = report["arrays"]
        lines += ["", f"two tensors, kernel {found['kernel']}, {found['mebibytes']} MiB each, one thread"]
        for dtype in DTYPES:
            for name, each in found[dtype].items():
                lines.append(f"  {dtype:10}{name:36}{each['gb_per_s']:8.2f} GB/s{each['times_memcpy']:8.2f} x memcpy")
    if "captures" in report:
        lines += ["", *captures_lines(report["captures"])]
    if "memory" in report:
        lines += ["", f"most that is resident (goal below {GOALS['memory']:.0f} MB at 10 GB)"]
        for size, each in report["memory"].items():
            if "missing" in each:
                lines.append(f"  {size:>5} GB each: {each['missing']}")
                continue
            lines.append(f"  {size:>5} GB each: {each['peak_mib']} MiB, {each['seconds']} s, {each['tensors']} tensors")
    if "depth" in report:
        lines += ["", f"whole comparisons (goal at most {GOALS['depth']} segment runs on 64 layers)"]
        for layers, each in report["depth"].items():
            whole = "" if each["whole_runs"] is None else f", {each['whole_runs']} whole runs"
            lines.append(
                f"  {layers:>3} layers: {each['seconds']:6.1f} s, {each['segment_runs']} segment runs{whole}, "
                f"{'found' if each['right'] else 'NOT found: ' + each['found']}"
            )
    return "\n".join(lines)


def captures_lines(found: dict[str, Any]) -> list[str]:
    made = found["each"]
    lines = [
        f"two captures of {made['tensors']} tensors, {made['bytes'] / 1e6:.0f} MB each",
        f"  trtdx compare A B, the whole command {found['command_s']:8.3f} s",
        f"  inside a process                     {found['inside_s']:8.3f} s, {found['gb_per_s_inside']} GB/s of both",
    ]
    if found["missing"]:
        return [*lines, f"  Polygraphy is not there: {found['missing']}"]
    goal = GOALS["captures"]
    return [
        *lines,
        f"  Polygraphy {found['polygraphy']} simple{found['polygraphy_s']:18.3f} s: "
        f"{found['times_polygraphy_command']}x the command, {found['times_polygraphy_inside']}x inside (goal {goal:.0f}x)",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; several")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=64, help="of one tensor in `arrays`")
    parser.add_argument("--capture-mebibytes", type=int, default=512, help="of one capture in `captures`")
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.1, 1, 10], help="GB each in `memory`")
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--polygraphy", default=sys.executable, help="a Python that has Polygraphy")
    parser.add_argument("--scratch", default=None, help="where files go; the system's place for such")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = options.only or PARTS
    report: dict[str, Any] = {"machine": machine(), "goals": GOALS}
    with tempfile.TemporaryDirectory(prefix="trtdx-benchmark-", dir=options.scratch) as folder:
        scratch = Path(folder)
        if "arrays" in parts:
            report["arrays"] = arrays(options.mebibytes, options.rounds)
        if "captures" in parts:
            report["captures"] = captures(scratch, options.capture_mebibytes, options.rounds, options.polygraphy)
        if "memory" in parts:
            report["memory"] = memory(scratch, options.sizes)
        if "depth" in parts:
            report["depth"] = depth(scratch, options.layers)
    report["load_after"] = [round(each, 2) for each in os.getloadavg()]
    report["own_peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(report, indent=2) if options.json else render(report))


if __name__ == "__main__":
    main()
