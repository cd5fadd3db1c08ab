"""Which optional packages a comparison needs, asked before any of them is imported."""

from __future__ import annotations

from trtdx.optional import OF_ENGINES, TENSORS, need_all

ENGINES = {"hf": "torch", "onnx": "onnxruntime", "trt": "tensorrt"}


def need_packages(*sides: object) -> None:
    """Raise one error for everything that is absent and needed to compare these sides, before work begins."""
    texts = [side for side in sides if isinstance(side, str)]
    packages = [package for text in texts for package in OF_ENGINES.get(ENGINES.get(_kind(text), ""), ())]
    need_all(dict.fromkeys((*TENSORS, *packages)), to="compare these")


def _kind(text: str) -> str:
    path = text.partition("?")[0]
    return "onnx" if path.endswith(".onnx") and ":" not in path else text.partition(":")[0]
