"""trtdx finds out why a TensorRT-LLM deployment does not work, and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.version import __version__

if TYPE_CHECKING:
    from trtdx.compare.notebook import Comparison as Comparison
    from trtdx.compare.notebook import compare as compare

__all__ = ["Comparison", "__version__", "compare"]


def __getattr__(name: str) -> Any:
    """Import what is heavier than the version when it is first asked for."""
    if name == "compare":
        import importlib

        return importlib.import_module("trtdx.compare")  # callable: see there
    if name == "Comparison":
        from trtdx.compare.notebook import Comparison

        return Comparison
    raise AttributeError(f"module 'trtdx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
