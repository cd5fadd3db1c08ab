"""Which optional packages a comparison needs, asked before any of them is imported."""

from __future__ import annotations

from trtdx.optional import ENGINE_PACKAGES, TENSOR_PACKAGES, require_packages

ENGINE_OF_KIND = {"hf": "torch", "onnx": "onnxruntime", "trt": "tensorrt"}


def need_packages(*sides: object) -> None:
    """Raise one error for everything that is absent and needed to compare these sides, before work begins."""
    texts = [side for side in sides if isinstance(side, str)]
    packages = [
        package for text in texts for package in ENGINE_PACKAGES.get(ENGINE_OF_KIND.get(_side_kind(text), ""), ())
    ]
    require_packages(dict.fromkeys((*TENSOR_PACKAGES, *packages)), purpose="compare these")


def _side_kind(text: str) -> str:
    path = text.partition("?")[0]
    return "onnx" if path.endswith(".onnx") and ":" not in path else text.partition(":")[0]
