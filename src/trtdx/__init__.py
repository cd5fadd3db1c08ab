"""trtdx finds out why a TensorRT-LLM deployment does not work, and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.version import __version__

if TYPE_CHECKING:
    from trtdx.api import CapturedRun as CapturedRun
    from trtdx.api import capture as capture
    from trtdx.api import check as check
    from trtdx.api import compare as compare
    from trtdx.api import diagnose as diagnose
    from trtdx.api import evaluate as evaluate
    from trtdx.api import inspect as inspect
    from trtdx.api import memory as memory
    from trtdx.compare.notebook import Comparison as Comparison
    from trtdx.errors import TrtdxError as TrtdxError
    from trtdx.model import Evidence as Evidence
    from trtdx.model import Finding as Finding
    from trtdx.model import Fix as Fix
    from trtdx.model import MessagePlace as MessagePlace
    from trtdx.model import ReleaseEstimate as ReleaseEstimate
    from trtdx.model import Report as Report
    from trtdx.model import Section as Section
    from trtdx.model import Severity as Severity
    from trtdx.model import Stage as Stage
    from trtdx.model import Summary as Summary
    from trtdx.model import Symptom as Symptom
    from trtdx.model import Where as Where

__all__ = [
    "CapturedRun",
    "Comparison",
    "Evidence",
    "Finding",
    "Fix",
    "MessagePlace",
    "ReleaseEstimate",
    "Report",
    "Section",
    "Severity",
    "Stage",
    "Summary",
    "Symptom",
    "TrtdxError",
    "Where",
    "__version__",
    "capture",
    "check",
    "compare",
    "diagnose",
    "evaluate",
    "inspect",
    "memory",
]
_PACKAGES = ("capture", "check", "compare", "diagnose", "inspect", "memory")  # callable: see api.py


def __getattr__(name: str) -> Any:
    """Import what is heavier than the version when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'trtdx' has no attribute {name!r}")
    if name in _PACKAGES:
        import importlib

        return importlib.import_module(f"trtdx.{name}")
    if name == "Comparison":
        from trtdx.compare.notebook import Comparison

        return Comparison
    from trtdx import api, errors, model

    return next(getattr(module, name) for module in (api, errors, model) if hasattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
