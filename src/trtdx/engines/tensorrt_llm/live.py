"""A TensorRT-LLM that runs, tapped in place: a `GenerationSession` of the engine era, or the torch module in an `LLM`.

What these facilities leave on disk (`tllm_debug/…`) is read by `trtdx.capture.dumps.trtllm_dumps`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from trtdx.engines.engine import Sink, TappedTensor
from trtdx.errors import InputError
from trtdx.tensors.taps import Place, Selector, parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


# From an LLM inwards, as it is in 0.20 to 1.2.1: GenerationExecutorWorker, PyExecutor, PyTorchModelEngine, the module.
MODULE_ATTRIBUTES = ("_executor", "engine", "model_engine", "model")
SINGLE_PROCESS_FIX = (
    "set TLLM_WORKER_USE_SINGLE_PROCESS=1 before the LLM is made (one GPU; orchestrator_type unset), so that the "
    "worker runs in this process; with several ranks tap in each worker"
)


@contextlib.contextmanager
def capture_session(
    session: Any, sink: Sink, selector: Selector | str = "**", *, files: bool = False
) -> Iterator[None]:
    """Hand the debug buffers of every step of a `GenerationSession` to `sink`; afterwards nothing is left behind.

    Args:
        session: a session that was made with `debug_mode=True`, of an engine built with `--enable_debug_output`.
        sink: is shown each tensor in its own type, where it lies. The files the session writes are float32.
        selector: which tensors; their names are the paths, such as `transformer.layers.6.mlp_output`.
        files: let the session also write its `tllm_debug` folder.
    """
    if not getattr(session, "debug_mode", False):
        raise InputError(
            "this session was not made in debug mode, so it keeps no debug buffers",
            fix="make it with debug_mode=True, and the engine with trtllm-build --enable_debug_output",
        )
    chosen = parse_selector(selector) if isinstance(selector, str) else selector
    plain: Callable[[int], None] = session.dump_debug_buffers

    def dump_debug_buffers(step: int) -> None:
        show_buffers(session.debug_buffer, sink, step, chosen)
        if files:
            plain(step)

    session.dump_debug_buffers = dump_debug_buffers
    try:
        yield
    finally:
        del session.dump_debug_buffers  # the class's own shows again


def show_buffers(buffers: Mapping[str, Any], sink: Sink, step: int, selector: Selector | None = None) -> int:
    """Hand tensors by name, such as a session's `debug_buffer`, to `sink`; returns how many were selected."""
    places = {
        Place(name.replace("/", "."), tensor=name, dtype=str(tensor.dtype).removeprefix("torch.")): tensor
        for name, tensor in buffers.items()
    }
    chosen = selector.select_or_raise(list(places)) if selector is not None else list(places)
    for place in chosen:
        sink(TappedTensor(place, places[place], step, 0))
    return len(chosen)


def module_of(llm: Any) -> Any:
    """Return the `torch.nn.Module` inside an `LLM`, its executor, worker or model engine, to be tapped in place.

    `trtdx.engines.torch.hooks.tapped(module_of(llm), selector, sink)` then sees every forward pass. Replays of CUDA graphs
    pass no hooks: make the LLM with `cuda_graph_config=None`.
    """
    innermost = llm
    for name in MODULE_ATTRIBUTES:
        if hasattr(innermost, "named_modules") or not hasattr(innermost, name):
            continue
        inner = getattr(innermost, name)
        if inner is None:
            raise InputError(f"the {type(innermost).__name__} has no {name}: it was shut down or has not been set up")
        innermost = inner
    if hasattr(innermost, "named_modules"):
        return innermost
    raise _no_module_error(llm, innermost)


def _no_module_error(llm: Any, innermost: Any) -> InputError:
    kind = type(innermost).__name__
    if any(word in kind for word in ("Proxy", "Ray", "Rpc", "Client")):
        return InputError(
            f"the model of this {type(llm).__name__} lives in another process: its executor is a {kind}",
            fix=SINGLE_PROCESS_FIX,
        )
    if type(innermost).__module__.startswith("tensorrt_llm.bindings") or kind == "Executor":
        return InputError(
            "this executor runs a TensorRT engine, which has no torch module",
            fix="use DebugConfig and import its dump tree, or a GenerationSession in debug mode",
        )
    return InputError(
        f"no torch module was found in this {type(llm).__name__}: the way ended at a {kind}",
        fix="pass the module itself to trtdx.engines.torch.hooks.tapped",
    )
