"""Which TensorRT a test on this machine can use; nothing heavy is imported to know it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtdx.host import Host

DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl-gpu")  # Linux, WSL, Jetson


def has_gpu(host: Host) -> bool:
    """Whether this machine has a GPU of NVIDIA's that its driver shows."""
    return any(host.kind(path) != "absent" for path in DEVICES)


def list_tensorrt_packages(host: Host) -> list[str]:
    """Return the TensorRT packages installed, best first: without a GPU only tensorrt_rtx makes builders."""
    order = ("tensorrt", "tensorrt_rtx") if has_gpu(host) else ("tensorrt_rtx", "tensorrt")
    return [name for name in order if importlib.util.find_spec(name) is not None]
