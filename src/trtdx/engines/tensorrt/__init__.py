"""TensorRT network definitions: computed on the CPU, layer by layer, and compiled."""

from trtdx.engines.tensorrt.evaluate.collectives import Collective, evaluate_ranks
from trtdx.engines.tensorrt.evaluate.network import Prepared, evaluate, prepare, steps
from trtdx.engines.tensorrt.network.registration import Registry, register, registering

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
