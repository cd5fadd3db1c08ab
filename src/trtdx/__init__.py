"""trtdx finds out why a TensorRT-LLM deployment does not work, and says what to do."""

from trtdx.version import __version__

__all__ = ["__version__"]
