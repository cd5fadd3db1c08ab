"""What wraps a line is taken off, and what it told is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.diagnose.logs.prefixes import peel_line
from trtdx.rule import LOG_LEVELS

# (line, message, level, rank)
LINES = [
    ("[TensorRT-LLM][ERROR] Assertion failed: x", "Assertion failed: x", "error", None),
    ("[TensorRT-LLM][WARNING][3] low", "low", "warning", 3),
    ("[TensorRT-LLM][TRACE] start", "start", "trace", None),
    ("[09/17/2025-21:24:19] [TRT-LLM] [RANK 2] [E] Error executing", "Error executing", "error", 2),
    ("[01/17/2024-16:25:41] [TRT-LLM] [W] Parameter was", "Parameter was", "warning", None),
    ("[TRT-LLM] [MPI_Rank 1] [I] hello", "hello", "info", 1),
    ("[TRT-LLM] [E] [_torch][RANK 7] Executor loop crashed", "Executor loop crashed", "error", 7),
    ("[TRT-LLM] [V] [runtime ][RANK 0] detail", "detail", "debug", 0),
    ("[03/27/2024-11:09:02] [TRT] [E] 6: The engine plan file", "6: The engine plan file", "error", None),
    ("[11/15/2026-10:00:00] [E] [TRT] ModelImporter.cpp:726: While parsing node", "ModelImporter.cpp:726: While parsing node", "error", None),
    ("[TensorRT] ERROR: INVALID_CONFIG: bad", "INVALID_CONFIG: bad", "error", None),
    ("ERROR: [TRT]: 2: [virtualMemoryBuffer.cpp] OutOfMemory", "2: [virtualMemoryBuffer.cpp] OutOfMemory", "error", None),
    ("E0625 08:07:38.858565 1073 model_repository_manager.cc:579] Invalid argument", "Invalid argument", "error", None),
    ("I1115 10:00:04.485508 1 model_lifecycle.cc:849] loaded", "loaded", "info", None),
    ("gpu1:106:108 [2] NCCL INFO Channel 00", "NCCL INFO Channel 00", "info", None),
    ("gpu1:106:108 [2] misc/shmutils.cc:72 NCCL WARN Error: failed", "misc/shmutils.cc:72 NCCL WARN Error: failed", "error", None),
    ("[1,3]<stderr>:RuntimeError: boom", "RuntimeError: boom", "error", 3),
    ("[1,0]<stdout>:half a li[1,2]<stderr>:ValueError: x[1,2]<stderr>:", "ValueError: x", "error", 2),
    ("3: [TensorRT-LLM][INFO] MPI size: 4", "MPI size: 4", "info", 3),
    ("[rank5]: RuntimeError: boom", "RuntimeError: boom", "error", 5),
    ("[E1115 10:00:00.123456 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught", "Watchdog caught", "error", 1),
    ("trtllm-1  | [TensorRT-LLM][ERROR] boom", "boom", "error", None),
    ("2026-11-15T10:00:00.123456789Z stderr F ValueError: x", "ValueError: x", "error", None),
    ("Nov 15 10:00:00 gpu1 trtllm-serve[812]: OSError: x", "OSError: x", "error", None),
    ("Nov 15 10:00:00 gpu1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "unknown", None),
    ("[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 31", "NVRM: Xid (PCI:0000:3b:00): 31", "unknown", None),
    ("2025-04-24T03:28:42.886Z  INFO worker.__init__: [Worker:1] Initializing", "[Worker:1] Initializing", "info", None),
    ("2025-04-24 03:28:42,886 - app.main - ERROR - cannot", "cannot", "error", None),
    ("    | ValueError: inside a group", "ValueError: inside a group", "error", None),
    ("ERROR: Could not find a version", "Could not find a version", "error", None),
    ("(worker pid=4242, ip=10.0.0.5) RuntimeError: boom", "RuntimeError: boom", "error", None),
    ("/opt/venv/lib/x/load.py:1461: FutureWarning: The repository", "FutureWarning: The repository", "warning", None),
    ("0:00:05.306  1168   0x7f3c0022d0 WARN                 nvinfer gstnvinfer.cpp:635:gst_nvinfer_logger:<primary_gie> NvDs failed", "NvDs failed", "warning", None),
    ('{"ts":"2026-11-15T10:00:00Z","level":"info","msg":"no CUDA out of memory seen","rank":3}', "no CUDA out of memory seen", "info", 3),
    ('{"event": "retry after \\"Connection refused\\"", "attempt": 1, "level": "warning"}', 'retry after \\"Connection refused\\"', "warning", None),
    (r'{"log":"[TensorRT-LLM][ERROR][3] Assertion failed: x\n","stream":"stderr","time":"2026-11-15T10:00:00.1Z"}', "Assertion failed: x", "error", 3),
    ('trtllm-1  | {"severity":"ERROR","message":"boom"}', "boom", "error", None),
    ('{"a": 1}', '{"a": 1}', "unknown", None),
    ("+ grep -c 'CUDA out of memory' server.log", " -c 'CUDA out of memory' server.log", "info", None),
    ("root@gpu1:/workspace# grep 'NCCL error' x", " 'NCCL error' x", "info", None),
    ("plain words", "plain words", "unknown", None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message", "level", "rank"), LINES, ids=lambda value: str(value)[:40])
def test_layers_are_peeled_from_the_outside_in(line, message, level, rank):
    peeled = peel_line(line)
    assert (peeled.message, peeled.level, peeled.rank) == (message, level, rank)


def test_layers_stack():
    peeled = peel_line("2026-11-15T10:00:00Z stdout F [1,2]<stdout>:[11/15/2026-10:00:00] [TRT-LLM] [RANK 2] [E] boom")
    assert (peeled.message, peeled.level, peeled.rank, peeled.time) == (
        "boom",
        "error",
        2,
        "2026-11-15T10:00:00Z",
    )


@given(st.text())
def test_any_text_can_be_peeled(text):
    peeled = peel_line(text)
    assert peeled.message in text
    assert peeled.level in LOG_LEVELS
