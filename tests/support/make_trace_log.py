"""Logs at level TRACE as TensorRT-LLM writes them when an engine is loaded and run.

The tables imitate `TllmRuntime::printEngineInfo` and `printContextInfo` of v1.2.1 (`tllmRuntime.cpp`; the same text
from 0.19 to 1.3.0rc21), the prefixes `common/logger.h` of v1.2.1, v1.3.0rc13 (padded module) and v1.3.0rc21.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LAYOUTS = ("1.2.1", "1.2.1 with rank", "1.3.0rc13", "1.3.0rc21", "1.3.0rc21 without rank")
TYPES = {
    "int32": "INT32", "int64": "INT64", "float32": "FP32", "float16": "FP16", "bfloat16": "BF16", "bool": "BOOL",
    "int8": "INT8", "fp8": "FP8",
}  # fmt: skip
Shape = tuple[int, ...]


class Tensor(NamedTuple):
    name: str
    mode: str  # "I" or "O"
    dtype: str
    shape: Shape  # -1 where it is dynamic


def prefix(layout: str, rank: int = 0) -> str:
    """Return what C++ puts before a line at level TRACE."""
    return {
        "1.2.1": "[TensorRT-LLM][TRACE] ",
        "1.2.1 with rank": f"[TensorRT-LLM][TRACE][{rank}] ",
        "1.3.0rc13": f"[TRT-LLM] [V] [runtime ] [RANK {rank}] ",
        "1.3.0rc21": f"[TRT-LLM] [V] [runtime][RANK {rank}] ",
        "1.3.0rc21 without rank": "[TRT-LLM] [V] [runtime] ",
    }[layout]


def in_words(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"


def aligned(text: str, width: int, *, centred: bool = True) -> str:
    """Return the text in a cell: the smaller half of the blanks goes before it."""
    left = max(0, width - len(text)) // 2 if centred else 0
    return (" " * left + text).ljust(width)


def engine_table(tensors: list[Tensor], profiles: list[dict[str, tuple[Shape, Shape, Shape]]]) -> Iterator[str]:
    """Yield what is printed once, when the first context is added."""
    name = max(len(each.name) for each in tensors)
    shapes = [in_words(each.shape) for each in tensors]
    inputs = {each.name for each in tensors if each.mode == "I"}
    shapes += [in_words(bounds[2]) for each in profiles for key, bounds in each.items() if key in inputs]
    width = max(map(len, shapes))
    yield "Information of engine input / output."
    yield "=" * (name + width + 24)
    yield f"{aligned('Name', name)}|I/O|Location|DataType|{aligned('Shape', width)}|"
    yield "-" * (name + width + 24)
    for each in tensors:
        cells = (aligned(each.mode, 3), aligned("GPU", 8), aligned(TYPES[each.dtype], 8))
        shape = aligned(in_words(each.shape), width)
        yield f"{aligned(each.name, name, centred=False)}|{'|'.join(cells)}|{shape}|"
    yield "=" * (name + width + 24)
    yield "Information of optimization profile."
    for number, profile in enumerate(profiles):
        yield f"Optimization Profile {number}:"
        yield "=" * (name + width * 3 + 4)
        yield "|".join([aligned("Name", name), *(aligned(each, width) for each in ("Min", "Opt", "Max")), ""])
        yield "-" * (name + width * 3 + 4)
        for each in tensors:
            cells = tuple(aligned(in_words(shape), width) for shape in profile[each.name])
            yield f"{aligned(each.name, name, centred=False)}|{'|'.join(cells)}|"
        yield "=" * (name + width * 3 + 4)


def context_table(tensors: list[Tensor], shapes: dict[str, Shape], profile: int = 0) -> Iterator[str]:
    """Yield what is printed before each execution."""
    name = max(len(each.name) for each in tensors)
    width = max(len(in_words(shapes[each.name])) for each in tensors)
    yield "Information of context input / output."
    yield f"Using Optimization Profile: {profile}"
    yield "=" * (name + width + 6)
    yield f"{aligned('Name', name)}|I/O|{aligned('Shape', width)}|"
    yield "-" * (name + width + 6)
    for each in tensors:
        shape = aligned(in_words(shapes[each.name]), width)
        yield f"{aligned(each.name, name, centred=False)}|{aligned(each.mode, 3)}|{shape}|"
    yield "=" * (name + width + 6)


def lines(texts: Iterable[str], layout: str = "1.2.1", rank: int = 0, tag: str = "") -> Iterator[str]:
    """Yield the lines of a log; `tag` is what a launcher puts before them."""
    for text in texts:
        yield f"{tag}{prefix(layout, rank)}{text}"


def log_bytes(*parts: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for part in parts for line in part).encode()


def glm_tensors() -> list[Tensor]:
    """Return the inputs and outputs of the engine in docs/source/reference/troubleshooting.md (v0.20.0)."""
    sequences = ("sequence_length", "host_request_types", "host_past_key_value_lengths", "context_lengths")
    return [
        Tensor("input_ids", "I", "int32", (-1,)),
        Tensor("position_ids", "I", "int32", (-1,)),
        Tensor("last_token_ids", "I", "int32", (-1,)),
        Tensor("kv_cache_block_offsets", "I", "int32", (1, -1, 2, -1)),
        Tensor("host_kv_cache_block_offsets", "I", "int32", (1, -1, 2, -1)),
        Tensor("host_kv_cache_pool_pointers", "I", "int64", (1, 2)),
        Tensor("host_kv_cache_pool_mapping", "I", "int32", (28,)),
        *(Tensor(name, "I", "int32", (-1,)) for name in sequences),
        Tensor("host_runtime_perf_knobs", "I", "int64", (16,)),
        Tensor("host_context_lengths", "I", "int32", (-1,)),
        Tensor("host_max_attention_window_sizes", "I", "int32", (28,)),
        Tensor("host_sink_token_length", "I", "int32", (1,)),
        Tensor("cache_indirection", "I", "int32", (-1, 1, -1)),
        Tensor("logits", "O", "float32", (-1, 65024)),
    ]


def glm_shapes(
    tokens: int, sequences: int, *, blocks: int = 32, length: int = 2048, batch: int = 8
) -> dict[str, Shape]:
    """Return the shapes of one execution: the executor gives block tables and cache indirection their full size."""
    sizes: dict[str, Shape] = {}
    for each in glm_tensors():
        sizes[each.name] = {
            "input_ids": (tokens,),
            "position_ids": (tokens,),
            "kv_cache_block_offsets": (1, sequences, 2, blocks),
            "host_kv_cache_block_offsets": (1, sequences, 2, blocks),
            "cache_indirection": (batch, 1, length),
            "logits": (sequences, 65024),
        }.get(each.name, (sequences,) if each.shape == (-1,) else each.shape)
    return sizes


def glm_profile() -> dict[str, tuple[Shape, Shape, Shape]]:
    """Return the profile of the same engine: 8 requests, 2048 tokens each, 8192 tokens in a step."""
    sides = (glm_shapes(1, 1, blocks=1, length=1, batch=1), glm_shapes(8, 4, blocks=16, length=1024, batch=4),
             glm_shapes(8192, 8))  # fmt: skip
    return {name: (sides[0][name], sides[1][name], sides[2][name]) for name in sides[0]}
