"""How fast and in how much memory `trtdx trace` reads a large Kineto trace, beside `json.loads` of the same bytes.

    python benchmarks/trace.py [--gigabytes 2] [--folder DIR] [--hta PYTHON]

The trace is written here in Kineto's schema: steps of operators, launches and kernels of two streams. `json.loads` of
2 GB needs some 20 GB of memory, so it is given a quarter of the steps and its time is multiplied by four; its memory is
what that quarter took. Each reader runs in a process of its own; times are
of the processor, so that other work on the machine does not count. `--hta` names an interpreter that has Holistic Trace
Analysis installed; it gets the same quarter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LAYERS = 48
OPERATORS = ("aten::linear", "aten::addmm", "aten::rms_norm", "aten::silu", "trtllm::attention", "aten::copy_")

READERS = {
    "trtdx trace": "from trtdx.host import RealHost\nfrom trtdx.trace.run import analyse_files\n"
    "from trtdx.trace.causes.table import find_causes\n"
    "analysis = analyse_files(RealHost(), [path]); find_causes(analysis)\n"
    "detail = f'{sum(analysis.ledger.by_context.values()) / analysis.ledger.wall * 100:.2f} % of the wall time accounted for'",
    "reading alone": "from trtdx.host import RealHost\nfrom trtdx.trace.readers.chrome import read_chrome_trace\n"
    "detail = f'{len(read_chrome_trace(RealHost(), path))} spans'",
    "json.loads": "import json\ndetail = str(len(json.loads(open(path, 'rb').read())['traceEvents'])) + ' events'",
}
HTA = "from hta.trace_analysis import TraceAnalysis\nanalyser = TraceAnalysis(trace_files={0: path})\nanalyser.get_temporal_breakdown(visualize=False); detail = ''"
PROGRAM = """
import sys, time, resource
path = sys.argv[1]
begin = time.process_time()
{body}
took = time.process_time() - begin
print('RESULT', took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, detail)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", default="")
    parser.add_argument("--hta", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder or None) as folder:
        whole, quarter = Path(folder) / "whole.json", Path(folder) / "quarter.json"
        size = write_trace(whole, options.gigabytes * 1e9)
        write_trace(quarter, options.gigabytes * 1e9 / 4)
        print(f"a trace of {size / 1e9:.2f} GB")
        for name in ("trtdx trace", "reading alone"):
            print_result(name, sys.executable, READERS[name], whole, 1)
        print_result("json.loads (a quarter, times four)", sys.executable, READERS["json.loads"], quarter, 4)
        print_result("trtdx trace (a quarter, times four)", sys.executable, READERS["trtdx trace"], quarter, 4)
        if options.hta:
            print_result("Holistic Trace Analysis (a quarter, times four)", options.hta, HTA, quarter, 4)


def print_result(name: str, python: str, body: str, path: Path, factor: int) -> None:
    done = subprocess.run(
        [python, "-c", PROGRAM.replace("{body}", body), str(path)], capture_output=True, text=True, check=False
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), "")
    if not line:
        print(f"{name}: failed: {done.stderr.strip().splitlines()[-1:]}")
        return
    _, took, resident, *detail = line.split(" ", 3)
    print(f"{name}: {float(took) * factor:.1f} s, {float(resident):.2f} GiB resident; {' '.join(detail)}", flush=True)


def write_trace(path: Path, size: float) -> int:
    """Write steps until the file is as large as wanted, and return its length."""
    with path.open("w") as file:
        file.write(
            '{\n"schemaVersion": 1,\n"deviceProperties": [],\n"baseTimeNanoseconds": 1790857026000000000,\n"traceEvents": [\n'
        )
        step, at = 0, 4118219026957.0
        while file.tell() < size:
            events, at = step_events(step, at)
            file.write(",\n".join(events) + ",\n")
            step += 1
        file.write(
            event("M", "", "process_name", 0, at, 0, {"name": "python"}) + '\n],\n"traceName": "trace.json"\n}\n'
        )
    return path.stat().st_size


def step_events(step: int, at: float) -> tuple[list[str], float]:
    events, start, link = [], at, step * 10_000
    for layer in range(LAYERS):
        for number, operator in enumerate(OPERATORS):
            link += 1
            external = {
                "External id": link,
                "Record function id": 0,
                "Ev Idx": link,
                "Input Dims": [[64, 8192], [8192, 8192]],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
            }
            events.append(event("X", "cpu_op", operator, 1, at, 9.5, external))
            events.append(
                event(
                    "X",
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    1,
                    at + 3,
                    4.25,
                    {"External id": link, "cbid": 211, "correlation": link},
                )
            )
            kernel = {
                "External id": link,
                "queued": 0,
                "device": 0,
                "context": 1,
                "stream": 7 + number % 2,
                "correlation": link,
                "registers per thread": 168,
                "shared memory": 49152,
                "grid": [64, 1, 1],
                "block": [256, 1, 1],
                "est. achieved occupancy %": 31,
            }
            name = f"void cutlass::Kernel2<sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{64 + number}x128x64>"
            events.append(event("X", "kernel", name, 0, at + 15, 8.0 + layer % 3, kernel, thread=7 + number % 2))
            at += 11.0
    marker = f"[Executor] _forward_step {step}: 0 ctx reqs, 0 ctx tokens, 64 gen reqs"
    events.insert(0, event("X", "user_annotation", marker, 1, start, at - start, {"External id": link}))
    return events, at + 20


def event(
    ph: str, category: str, name: str, process: int, at: float, duration: float, arguments: dict, thread: int = 1
) -> str:
    """Return an event as Kineto lays it out."""
    pairs = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in arguments.items())
    return (
        f'  {{\n    "ph": "{ph}", "cat": "{category}", "name": "{name}", "pid": {process}, "tid": {thread},\n'
        f'    "ts": {at:.3f}, "dur": {duration:.3f},\n    "args": {{\n      {pairs}\n    }}\n  }}'
    )


if __name__ == "__main__":
    main()
