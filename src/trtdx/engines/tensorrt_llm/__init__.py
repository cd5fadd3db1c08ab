"""TensorRT-LLM: its networks defined and computed on the CPU, its sessions and models tapped where they run.

with on_cpu("/path/TensorRT-LLM") as llm:
import tensorrt_llm                      # and tests/unittest/utils/util.py, Polygraphy's runner, …
…                                        # define, mark, register, create_session, run_session
print(llm.report())
"""

from __future__ import annotations

from trtdx.engines.tensorrt_llm.cpu import CpuChanges, TensorRtLlmOnCpu
from trtdx.engines.tensorrt_llm.live import capture_session, module_of, show_buffers
from trtdx.engines.tensorrt_llm.plugins import Plugin
from trtdx.engines.tensorrt_llm.stand_ins import CudaOnlyError

on_cpu = TensorRtLlmOnCpu  # to whoever uses it a function: what it does matters, not what comes back

__all__ = [
    "CpuChanges",
    "CudaOnlyError",
    "Plugin",
    "TensorRtLlmOnCpu",
    "capture_session",
    "module_of",
    "on_cpu",
    "show_buffers",
]
