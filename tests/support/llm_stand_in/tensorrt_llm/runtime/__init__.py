# ruff: noqa: TID253 - imported only where on_cpu gives these modules
from .generation import GenerationSession
from .session import Session, TensorInfo

try:
    import tensorrt_llm.bindings  # noqa: F401

    PYTHON_BINDINGS = True
except ImportError:
    PYTHON_BINDINGS = False

__all__ = ["PYTHON_BINDINGS", "GenerationSession", "Session", "TensorInfo"]
