"""TensorRT-LLM: its networks defined and computed on the CPU, its sessions and models tapped where they run.

with on_cpu("/path/TensorRT-LLM") as llm:
import tensorrt_llm                      # and tests/unittest/utils/util.py, Polygraphy's runner, …
…                                        # define, mark, register, create_session, run_session
print(llm.report())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt_llm.cpu import Changes, OnCpu
from trtdx.engines.tensorrt_llm.live import capture_session, module_of, show_buffers
from trtdx.engines.tensorrt_llm.plugins import Plugin
from trtdx.engines.tensorrt_llm.stand_ins import CudaOnlyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trtdx.engines.engine import Sink
    from trtdx.tensors.taps import Selector


def on_cpu(
    tree: str | Path,
    *,
    plugins: Mapping[str, Callable[..., Any] | Plugin] | None = None,
    sink: Sink | None = None,
    selector: Selector | str | None = None,
    stand_ins: Sequence[str] = (),
    capability: tuple[int, int] = (8, 0),
) -> OnCpu:
    """Make a TensorRT-LLM tree of the engine era importable here, its networks computed on the CPU.

    It holds from this call on until `close()`, or until the end of a `with` block.

    Args:
        tree: a source tree or an unpacked wheel, up to 1.2.1.
        plugins: for a plugin's name, a function from input arrays to output arrays, or a `Plugin`.
        sink: who is shown the outputs of every network that is run, and what is selected.
        selector: what to show besides the outputs; a network that has nothing of it is no mistake.
        stand_ins: packages that are not installed and on which no value depends.
        capability: the architecture that tests are told when they decide what to skip.
    """
    return OnCpu(
        tree, plugins=plugins, sink=sink, selector=selector, stand_ins=stand_ins, capability=capability
    )


__all__ = [
    "Changes",
    "CudaOnlyError",
    "OnCpu",
    "Plugin",
    "capture_session",
    "module_of",
    "on_cpu",
    "show_buffers",
]
