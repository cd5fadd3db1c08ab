"""How large outputs can get: TensorRT's shape analysis tells every dimension in its verbose log.

A line has the bounds over all profiles and the expression: "[1,383]<tab>(+ seq past)", "[1,64]<tab>(# 0 (SHAPE x))".
The bounds of a sum over all profiles may be of no profile at all, so the expression is computed where it is plain.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.engines.tensorrt.build.frames import BuildDone
    from trtdx.engines.tensorrt.build.nouns import Binding, BuildMessage, ShapeProfile

DTYPE_BITS = {
    "FLOAT": 32, "HALF": 16, "BF16": 16, "INT8": 8, "UINT8": 8, "INT32": 32, "INT64": 64, "BOOL": 8, "FP8": 8,
    "INT4": 4, "FP4": 4, "E8M0": 8,
}  # fmt: skip
MOST_WORDS = 200
_DIM_BOUND = re.compile(r"\s*(?:\[-?\d+,)?(?P<most>\d+)\]?(?:\t(?P<told>.*))?")
_SHAPE_EXPRESSION = re.compile(r"\(# (\d+) \(SHAPE (\S+)\)\)")
_OPERATORS: dict[str, Callable[[list[int]], int]] = {"+": sum, "*": math.prod, "MAX": max, "MIN": min}
# Of each dimension: the largest size over all profiles, and the expression.
DimBounds = list[tuple[int | None, str]]
ProfileSizes = dict[str, int]  # of a profile, at its largest: by the dimension's name, and by "x#0"


def with_most_bytes(
    done: BuildDone,
    inputs: Sequence[Binding],
    profiles: Sequence[ShapeProfile],
    messages: Sequence[BuildMessage],
) -> tuple[Binding, ...]:
    """Return the outputs with the bytes they take in the profile that needs most, where that is known."""
    bounds = dim_bounds_from_messages(messages)
    sizes = [largest_dims(inputs, profile) for profile in profiles] or [{}]
    return tuple(
        msgspec.structs.replace(output, most_bytes=_most_bytes(output, bounds.get(done.makers.get(output.name, ("", 0)), []), sizes))
        for output in done.outputs
    )  # fmt: skip


def largest_dims(inputs: Sequence[Binding], profile: ShapeProfile) -> ProfileSizes:
    """Return the largest size of each dynamic dimension."""
    sizes: ProfileSizes = {}
    for binding in inputs:
        most = profile.get(binding.name, ((), (), ()))[2]
        for axis, (dim, size) in enumerate(zip(binding.dims, most, strict=False)):
            sizes[f"{binding.name}#{axis}"] = size
            if isinstance(dim, str):
                sizes[dim] = max(size, sizes.get(dim, 0))
    return sizes


def _most_bytes(binding: Binding, bounds: DimBounds, profiles: Sequence[ProfileSizes]) -> int | None:
    if binding.dtype not in DTYPE_BITS:
        return None
    if all(isinstance(dim, int) for dim in binding.dims):
        bounds = [(int(dim), "") for dim in binding.dims]
    if len(bounds) != len(binding.dims):
        return None
    counts = [_count_elements(bounds, sizes) for sizes in profiles]
    known_counts = [count for count in counts if count is not None]
    return math.ceil(max(known_counts) * DTYPE_BITS[binding.dtype] / 8) if len(known_counts) == len(counts) else None


def _count_elements(bounds: DimBounds, sizes: ProfileSizes) -> int | None:
    """Return how many values there are at most in one profile."""
    count = 1
    for most, expression in bounds:
        computed = evaluate_size(expression, sizes)
        size = most if computed is None else computed
        if size is None:
            return None
        count *= size
    return count


def evaluate_size(expression: str, sizes: Mapping[str, int]) -> int | None:
    """Return what an expression such as "(+ seq past)" gives, None where it has something unknown in it."""
    plain = _SHAPE_EXPRESSION.sub(lambda match: f"{match[2]}#{match[1]}", expression)
    words = plain.replace("(", " ( ").replace(")", " ) ").split()
    stack: list[list[str | int]] = [[]]
    for word in words[:MOST_WORDS]:
        if word == "(":
            stack.append([])
        elif word == ")":
            if len(stack) < 2:
                return None
            value = _apply_operator(stack.pop())
            if value is None:
                return None
            stack[-1].append(value)
        else:
            stack[-1].append(int(word) if word.isdecimal() else sizes.get(word, word))
    only = stack[0][0] if len(stack) == 1 and len(stack[0]) == 1 else None
    return only if isinstance(only, int) else None


def _apply_operator(form: list[str | int]) -> int | None:
    operator, values = form[:1], [operand for operand in form[1:] if isinstance(operand, int)]
    computed = _OPERATORS.get(str(operator[0])) if operator else None
    return computed(values) if computed and values and len(values) == len(form) - 1 else None


def dim_bounds_from_messages(messages: Sequence[BuildMessage]) -> dict[tuple[str, int], DimBounds]:
    """Return what the lines after "GRAPH NODES" say of each output, by layer and number."""
    bounds: dict[tuple[str, int], DimBounds] = {}
    dims: DimBounds | None = None
    layer, inside = "", False
    for line in (line for message in messages if message.severity != "INFO" for line in message.text.split("\n")):
        if line == "GRAPH NODES":
            inside = True
        elif not inside or line.startswith("Graph construction completed"):
            inside = False
        elif not line.startswith(" "):
            layer, dims = line.partition(" ")[2], None
        elif line.startswith("    Output "):
            dims = bounds[layer, int(line.split()[1])] = []
        elif line.startswith("    Input "):
            dims = None
        elif dims is not None:
            bound = _DIM_BOUND.fullmatch(line)
            dims.append((int(bound["most"]), bound["told"] or "") if bound else (None, ""))
    return bounds
