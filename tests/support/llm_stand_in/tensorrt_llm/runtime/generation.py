# ruff: noqa: TID253 - imported only where on_cpu gives these modules
from tensorrt_llm.bindings import internal

BATCHES = internal.runtime.batches()  # compiled


class GenerationSession:
    """Cannot be imported without CUDA."""
