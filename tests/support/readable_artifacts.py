"""One artifact of every kind that trtdx reads, and the commands that read it."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np

from support.captures import write as write_capture
from support.make_build_log import TENSORRT_LLM_LOG
from support.make_engine import make_engine
from support.make_hf import make_hf_model, make_lora, make_tokenizer
from support.make_probes import make_job
from support.make_triton import make_llm_args, make_triton
from support.traces import kernel_step, span, write_kineto, write_nsight
from trtdx.case import CaseWriter, pack_members, read_folder
from trtdx.check.collect import CheckQuestion, collect_environment
from trtdx.host import RealHost
from trtdx.knowledge.load import packaged_folder

ROOT = Path(__file__).parent.parent.parent
SMALL = {  # files are copied for every round
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
SCRIPT = "#!/bin/sh\nexport HF_HOME=/m\nmpirun -n 2 trtllm-serve /m/model --tp_size 2 --max_batch_size 8 --port 8000\n"
PLAN = """\
variables: {out: out}
steps:
  convert:
    command: cp ${inputs} ${output}
    inputs: [weights.bin]
    outputs: ["{out}/weights"]
"""
ITERATION = (
    "[TRT-LLM] [I] iter = {0}, global_rank = 0, rank = 0, currank_total_requests = 1/2, host_step_time = 6.5ms, "
    "prev_device_step_time = 6.1ms, timestamp = 2026-01-01 00:00:0{0}, num_scheduled_requests: 10, "
    "states = {{'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 16}}\n"
)
BENCHMARK = {
    "world_info": {"tp_size": 2, "max_batch_size": 64},
    "request_info": {"num_requests": 100, "avg_input_length": 128, "avg_output_length": 64},
    "performance": {"total_latency_ms": 1000, "avg_request_latency_ms": 80, "system_output_throughput_tok_s": 6400},
    "streaming_metrics": {"avg_ttft_ms": 12, "avg_tpot_ms": 4},
}
INSPECT, MEMORY = "inspect {} --show all", "memory {} --gpu H100"
CASE_COMMANDS = ("diagnose {}", "report {} -o page.html --force", "cases import {}", "run logs {} --merge")
CAPTURE_COMMANDS = (
    "capture show {}", "capture verify {}", "capture export {} values.npz", "compare {} {}",
    "capture query {} 'select name, max(absmax) from tensors group by name'",
)  # fmt: skip
# artifact: the commands that read it, with {} for its path
COMMANDS = {
    "model": (INSPECT, MEMORY),
    "engine": (INSPECT, MEMORY, "ranks launch --for slurm -- trtllm-serve {}"),
    "triton": (INSPECT,),
    "lora": (INSPECT,),
    "args.yaml": (INSPECT, "memory Llama-3.1-8B --config {}"),
    "serve.sh": (INSPECT,),
    "model.onnx": (INSPECT, "capture {} --list **"),
    "build.log": (INSPECT, "diagnose {}"),
    "server.log": ("diagnose {}", "memory log {}"),
    "iterations.log": ("trace {}", "diagnose {}"),
    "kineto.json": ("trace {}", "trace {} --against {}"),
    "kineto.json.gz": ("trace {}",),
    "nsight.sqlite": ("trace {}",),
    "times.json": ("trace {}",),
    "layers.json": ("trace {}",),
    "benchmark.json": ("trace {}",),
    "capture": CAPTURE_COMMANDS,
    "dump.npz": ("capture import {} imported", "compare {} {}"),
    "dump.safetensors": ("capture import {} imported", INSPECT),
    "dump.npy": ("capture import {} imported",),
    "polygraphy.json": ("capture import {} imported",),
    "case": CASE_COMMANDS,
    "case.trtdx": CASE_COMMANDS[:3],
    "check.json": ("check --from {} --no-resolve",),
    "ranks.json": ("ranks check --from {}",),
    "plan.yaml": ("build status {}",),
    "rules": ("rules check {} --only form", "diagnose server.log --rules {}"),
    "trtdx.toml": ("diagnose server.log",),
}


def make_artifacts(folder: Path) -> None:
    """Write one of each kind."""
    make_hf_model(folder / "model", shards=1, **SMALL)
    make_tokenizer(folder / "model")
    make_engine(folder / "engine", **SMALL)
    make_triton(folder / "triton", str(folder / "engine"), str(folder / "model"))
    make_lora(folder / "lora")
    make_llm_args(folder / "args.yaml")
    shutil.copy(ROOT / "examples/tiny/rotary-mistake.onnx", folder / "model.onnx")
    (folder / "serve.sh").write_text(SCRIPT)
    (folder / "build.log").write_text(TENSORRT_LLM_LOG)
    shutil.copy(ROOT / "examples/logs/serve-out-of-memory.log", folder / "server.log")
    (folder / "plan.yaml").write_text(PLAN)
    (folder / "trtdx.toml").write_text('fail_on = "warning"\nruntime = "1.2.1"\n[ignore]\nDX210 = "known"\n')
    make_traces(folder)
    make_tensors(folder)
    make_cases(folder)
    record = collect_environment(RealHost(), CheckQuestion(tries_imports=False))
    (folder / "check.json").write_bytes(msgspec.json.encode(record))
    (folder / "ranks.json").write_bytes(msgspec.json.encode(make_job()))
    (folder / "rules").mkdir()
    page = next(packaged_folder().glob("*/DX210-*.md")).read_text()
    page = page.replace("DX210", "ACME001").replace("world-size-mismatch", "acme-world-size")
    (folder / "rules" / "ACME001-acme-world-size.md").write_text(page)


def make_traces(folder: Path) -> None:
    """Write a recording of each kind that `trace` reads."""
    events, at = [span("module:layers.1.mlp", 0, 30)], 0.0
    for step in range(4):
        more, at = kernel_step(step, at, kernels=6, kernel_us=10, gap_us=3)
        events += more
    write_kineto(folder / "kineto.json", events, distributedInfo={"rank": 0, "world_size": 2})
    (folder / "kineto.json.gz").write_bytes(gzip.compress((folder / "kineto.json").read_bytes(), mtime=0))
    steps = [(at, at + 900_000, f"[Executor] _forward_step {at}: 0 ctx reqs, 4 gen reqs") for at in (0, 1_000_000)]
    kernels = [(at + 10_000, at + 800_000, "gemm", at + 1) for at, _, _ in steps]
    calls = [(at + 1000, at + 6000, "cudaLaunchKernel_v7000", at + 1) for at, _, _ in steps]
    write_nsight(folder / "nsight.sqlite", kernels=kernels, calls=calls, ranges=steps)
    parts = {"Enq": 0.1, "H2d": 0.2, "Compute": 0.9, "D2h": 1.0}
    times = [
        {"computeMs": 0.7} | {f"{edge}{part}Ms": n + end for part, end in parts.items() for edge in ("start", "end")}
        for n in range(5)
    ]
    layers = [{"count": 5}, {"name": "gemm", "timeMs": 3.0, "averageMs": 0.6, "percentage": 100.0}]
    documents = {"times": times, "layers": layers, "benchmark": BENCHMARK}
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "iterations.log").write_text("".join(ITERATION.format(number) for number in range(8)))


def make_tensors(folder: Path) -> None:
    """Write a capture and the dumps of other tools."""
    arrays = {f"layers.{number}.mlp:out": np.arange(12.0, dtype=np.float32).reshape(3, 4) for number in range(3)}
    write_capture(folder / "capture", [arrays, arrays], engine="onnxruntime")
    np.savez(folder / "dump.npz", **arrays)
    np.save(folder / "dump.npy", next(iter(arrays.values())))
    shutil.copy(next((folder / "model").glob("*.safetensors")), folder / "dump.safetensors")
    shutil.copy(ROOT / "tests/capture/dumps/data/polygraphy_outputs.json", folder / "polygraphy.json")


def make_cases(folder: Path) -> None:
    """Write a case as a folder and as one file."""
    writer = CaseWriter(RealHost(), str(folder / "case"))
    writer.record("command", {"argv": ["trtdx", "diagnose", "server.log"]})
    list(writer.copy_log("server.log", [(folder / "server.log").read_bytes()]))
    (folder / "case.trtdx").write_bytes(pack_members(read_folder(RealHost(), str(folder / "case"))))
