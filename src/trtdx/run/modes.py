"""The environment that each mode of a supervised run adds to the job's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtdx.run.nouns import RunRequest

# Makes an error surface in the call that caused it: CUDA (read by TensorRT-LLM too, which then checks after every
# kernel), HIP, torch's NCCL waits, and TensorRT-LLM's own assertions.
SYNC = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "HIP_LAUNCH_BLOCKING": "1",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TLLM_DEBUG_MODE": "1",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
TRACE = {
    "TLLM_LOG_LEVEL": "TRACE",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "ALL",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "UCX_LOG_LEVEL": "info",
}


def mode_environment(request: RunRequest, case: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment; what the user has set is theirs."""
    added: dict[str, str] = {}
    if request.sync:
        added |= SYNC
    if request.trace:
        folder = case / "files"
        added |= TRACE
        added["NCCL_DEBUG_FILE"] = str(folder / "nccl.%h.%p.log")
        added["UCX_LOG_FILE"] = str(folder / "ucx.%h.%p.log")
    modes = [
        name
        for name, is_on in (("nan", request.watch_nan), ("shapes", request.shapes), ("quiet", request.trace))
        if is_on
    ]
    if request.tap:
        added["TRTDX_TAP"] = request.tap
    if request.profile:
        added["TRTDX_PROFILE"] = request.profile.as_variable()
    if modes:
        added["TRTDX_MODES"] = ",".join(modes)
    return {**added, **environment, **{name: value for name, value in added.items() if name.startswith("TRTDX_")}}
