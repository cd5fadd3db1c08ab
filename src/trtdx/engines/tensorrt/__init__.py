"""TensorRT network definitions: computed on the CPU, layer by layer, and compiled."""

from trtdx.engines.tensorrt.collectives import Collective, evaluate_ranks
from trtdx.engines.tensorrt.evaluate import Prepared, evaluate, prepare, steps
from trtdx.engines.tensorrt.registration import Registry, register, registering

__all__ = [
    "Collective",
    "Prepared",
    "Registry",
    "evaluate",
    "evaluate_ranks",
    "prepare",
    "register",
    "registering",
    "steps",
]
