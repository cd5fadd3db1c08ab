"""TensorRT network definitions: computed on the CPU, layer by layer."""

from trtdx.engines.tensorrt.collectives import Collective, evaluate_ranks
from trtdx.engines.tensorrt.evaluate import Prepared, evaluate, prepare, steps

__all__ = ["Collective", "Prepared", "evaluate", "evaluate_ranks", "prepare", "steps"]
