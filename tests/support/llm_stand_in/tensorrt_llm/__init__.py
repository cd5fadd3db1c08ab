# ruff: noqa: F401, TID253 - imported only where on_cpu gives these modules
"""A stand-in for TensorRT-LLM with the same calls; like the real one, it cannot be imported as a whole here."""

from . import bindings
from ._common import default_net, default_trtnet
from .builder import Builder
from .functional import Tensor, constant
from .logger import logger
from .module import Module
from .network import Network, net_guard
from .runtime import Session, TensorInfo
from .version import __version__

__all__ = ["Builder", "Module", "Network", "Session", "Tensor", "logger", "net_guard"]
ALIASES = {"tensor": Tensor, "network": Network}

bindings.initialise()  # needs CUDA
