"""TensorRT network definitions: computed on the CPU, layer by layer, and compiled."""

from trtdx.engines.tensorrt.evaluate.collectives import Collective, evaluate_ranks
from trtdx.engines.tensorrt.evaluate.prepared_network import (
    PreparedNetwork,
    evaluate,
    iterate_layers,
    prepare_network,
)
from trtdx.engines.tensorrt.network.registration import TensorRegistry, collect_registered, register

__all__ = [
    "Collective",
    "PreparedNetwork",
    "TensorRegistry",
    "collect_registered",
    "evaluate",
    "evaluate_ranks",
    "iterate_layers",
    "prepare_network",
    "register",
]
