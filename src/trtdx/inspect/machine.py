"""The machine a deployment is meant for, as the user names it."""

from __future__ import annotations

from trtdx.errors import UnknownNameError
from trtdx.inspect.artifact import Artifact, Facts
from trtdx.versions import gpu_names, sm_of_gpu, tensorrt_of


def machine_from(*, runtime: str = "", gpu: str = "", gpus: int = 0) -> Artifact | None:
    """Return the machine named on the command line, or None where nothing was said of it."""
    if not (runtime or gpu or gpus):
        return None
    facts = Facts()
    if runtime:
        facts.put("gpu.runtime", runtime.removeprefix("v"), "--runtime")
        tensorrt = tensorrt_of(runtime.removeprefix("v"))
        facts.put("gpu.tensorrt", tensorrt or None, f"TensorRT of release {runtime}")
    if gpu:
        facts.put("gpu.name", gpu, "--gpu")
        facts.put("gpu.sm", _sm(gpu), f"--gpu {gpu}")
    if gpus:
        facts.put("gpu.count", gpus, "--gpus")
    return Artifact("machine", "this machine", facts.done())


def _sm(gpu: str) -> int:
    sm = sm_of_gpu(gpu)
    if sm is None:
        raise UnknownNameError("GPU", gpu, gpu_names())
    return sm
