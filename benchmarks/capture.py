"""What it costs to capture every module's outputs, beside the tools people use; one run, as ratios.

The model is the Llama of the notes on peers: random weights, hidden 512, 8 layers, vocabulary 8000, fp32, batch 1, a
prompt of 64 tokens and 32 new ones, one thread. Each way runs in a process that never loads another one, between
two plain runs of that process; a ratio is its time over their mean. Rounds go from way to way, and the median is shown
with its quartiles. "Whole" is everything: hooks put in place, the run, files closed, and trtdx's Parquet table, which
takes some 40 ms; "inside" is the run alone, as the user's code sees it. Processor time counts all threads, so that nothing
is hidden in one. What a peer still costs once switched off is not shown: it is in the plain runs.

Run it with the Python of the tests' environment (`scripts/test` makes it). The peers live in an environment of their
own, which `--peers-venv` names and which is made if it is not there. The kernel beside memcpy: capture_kernel.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import venv
from collections import defaultdict
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("capture_child.py")
PIP = ("torch==2.13.0", "transformers==5.22.2", "onnxruntime==1.31.1", "nnsight==0.8.1", "torchlens==2.36.1",
       "mindstudio-probe==26.2.0", "polygraphy==0.53.6")  # fmt: skip
PEERS = ("nnsight cache", "msProbe statistics L0", "torchlens", "onnx: Polygraphy Comparator")
NAMES = (
    "plain again", "hooks, keep references", "hooks, torch statistics", "hooks, raw append",
    "hooks, torch.save a tensor", "nnsight cache", "msProbe statistics L0", "torchlens",
    "trtdx statistics + hash", "trtdx statistics + hash + values",
    "onnx: plain again", "onnx: Polygraphy Comparator", "onnx: trtdx statistics + hash",
    "onnx: trtdx statistics + hash + values",
)  # fmt: skip
GOALS = {"trtdx statistics + hash": 1.15, "trtdx statistics + hash + values": 1.25}
WALL, PROCESSOR = 0, 1
COLUMNS = ("whole", "inside", "whole_processor", "inside_processor")
MOST_S = 300  # that a child may take to start or for a round


def peers_python(folder: Path) -> Path:
    """Make the peers' environment if need be; what cannot be installed is told when it is asked for."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        for package in PIP:
            print(f"installing {package} into {folder}", file=sys.stderr)
            subprocess.run([python, "-m", "pip", "install", "-q", package], check=False, stdout=sys.stderr)
    return python


class Child:
    """A process with one way of capturing."""

    def __init__(self, name: str, python: Path, scratch: Path) -> None:
        self.name = name
        folder = scratch / "".join(each if each.isalnum() else "_" for each in name)
        self.log = folder.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(
            [python, CHILD, name, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, bufsize=1,
        )  # fmt: skip
        told = self._answer()
        self.missing = "" if told and "missing" not in told else self._reason(told)
        self.scenarios, self.version = told.get("scenarios", ()), told.get("version", "")

    def _reason(self, told: dict[str, Any]) -> str:
        self.log.seek(0)
        return told.get("missing") or (self.log.read().strip() or "it ended").splitlines()[-1][:100]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        late = threading.Timer(MOST_S, self.process.kill)
        late.start()
        try:
            return json.loads(self.process.stdout.readline() or "{}")
        finally:
            late.cancel()

    def round(self, scenario: str) -> dict[str, Any]:
        assert self.process.stdin
        if self.process.poll() is None:
            self.process.stdin.write(f"{scenario}\n")
        found = self._answer()
        if not found:
            self.missing = self._reason({})
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def ratios(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and quartiles of the rounds' ratios."""

    def of(times: list[float]) -> list[float]:
        return [round(each, 3) for each in statistics.quantiles(times, n=4)]

    def over_plain(part: str, clock: int) -> list[float]:
        return of([2 * each[part][clock] / (each["before"][clock] + each["after"][clock]) for each in rounds])

    found = {
        "rounds": len(rounds),
        "plain_ms": round(1e3 * statistics.median(each["before"][0] for each in rounds), 1),
        "kept": rounds[-1]["kept"],
        "whole": over_plain("during", WALL),
        "whole_processor": over_plain("during", PROCESSOR),
    }
    if rounds[0]["inside"]:
        found |= {"inside": over_plain("inside", WALL), "inside_processor": over_plain("inside", PROCESSOR)}
    return found


def measured(children: list[Child], count: int) -> dict[str, dict[str, Any]]:
    """Return what each way costs in each scenario; the first round warms up and is not counted."""
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for number in range(count + 1):
        print(f"round {number} of {count}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        for child in children:
            for scenario in child.scenarios:
                found = child.round(scenario)
                if number and found:
                    rounds[child.name, scenario].append(found)
    answer: dict[str, dict[str, Any]] = {}
    for child in children:
        answer[child.name] = {"version": child.version, "not_installed": child.missing}
        for scenario in child.scenarios:
            if len(rounds[child.name, scenario]) > 1:
                answer[child.name][scenario] = ratios(rounds[child.name, scenario])
    return answer


def resident(scratch: Path) -> dict[str, dict[str, float]]:
    """Return MiB resident after 10, 100 and 1000 steps."""
    done = subprocess.run(
        [sys.executable, CHILD, "memory", scratch / "memory"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def shown(quartiles: list[float] | None) -> str:
    return f"{quartiles[1]:.2f} ({quartiles[0]:.2f}-{quartiles[2]:.2f})" if quartiles else "-"


def render(report: dict[str, Any]) -> str:
    lines = [f"load {report['load']}, torch and ONNX Runtime on one thread, {report['cores']} cores", ""]
    for scenario in ("generate", "prefill", "onnx"):
        lines.append(f"{scenario:42}{''.join(f'{each:>20}' for each in COLUMNS)}  kept")
        for name, found in report["ways"].items():
            if scenario in found:
                times = found[scenario]
                label = f"{name} {found['version']}".rstrip()
                cells = "".join(f"{shown(times.get(key)):>20}" for key in COLUMNS)
                kept = ", ".join(f"{value} {key}" for key, value in times["kept"].items())
                lines.append(f"{label:42}{cells}  {kept or '-'}")
        lines.append("")
    for name, found in report["ways"].items():
        if found["not_installed"]:
            lines.append(f"{name}: not installed ({found['not_installed']})")
    for name, goal in GOALS.items():
        found = report["ways"].get(name, {}).get("generate")
        if found:
            lines.append(f"{name}: {found['inside'][1]:.2f} inside, {found['whole'][1]:.2f} whole; goal {goal}")
    for kind, at in report["resident_mib"].items():
        steps = ", ".join(f"{mib:.0f} MiB after {step} steps" for step, mib in at.items())
        lines.append(f"resident, {kind}: {steps}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-venv", type=Path, help="the peers' environment, made if it is not there")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", action="append", help="a way whose name contains this; several")
    parser.add_argument("--no-memory", action="store_true", help="leave out the thousand steps")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    python = peers_python(options.peers_venv.absolute()) if options.peers_venv else Path(sys.executable)
    names = [name for name in NAMES if not options.only or any(each in name for each in options.only)]
    with tempfile.TemporaryDirectory(prefix="trtdx-benchmark-") as folder:
        scratch, children = Path(folder), []
        if any(name.startswith("onnx") for name in names):
            subprocess.run(
                [sys.executable, CHILD, "export", scratch / "prefill.onnx"],
                check=True,
                stderr=subprocess.DEVNULL,
            )
        try:
            for name in names:
                its = python if name in PEERS else Path(sys.executable)
                children.append(Child(name, its, scratch))  # those that started have to be ended
            load = [round(each, 2) for each in os.getloadavg()]
            report = {
                "load": load,
                "cores": os.cpu_count(),
                "ways": measured(children, max(options.rounds, 2)),
            }
        finally:
            for child in children:
                child.close()
        report["resident_mib"] = {} if options.no_memory else resident(scratch)
    print(json.dumps(report, indent=2) if options.json else render(report))


if __name__ == "__main__":
    main()
