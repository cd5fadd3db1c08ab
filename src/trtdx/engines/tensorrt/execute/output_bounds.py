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

    from trtdx.engines.tensorrt.build.messages import Done
    from trtdx.engines.tensorrt.build.nouns import Binding, Message, Profile

BITS = {
    "FLOAT": 32, "HALF": 16, "BF16": 16, "INT8": 8, "UINT8": 8, "INT32": 32, "INT64": 64, "BOOL": 8, "FP8": 8,
    "INT4": 4, "FP4": 4, "E8M0": 8,
}  # fmt: skip
MOST_WORDS = 200
_BOUND = re.compile(r"\s*(?:\[-?\d+,)?(?P<most>\d+)\]?(?:\t(?P<told>.*))?")
_SHAPE = re.compile(r"\(# (\d+) \(SHAPE (\S+)\)\)")
_COMPUTED: dict[str, Callable[[list[int]], int]] = {"+": sum, "*": math.prod, "MAX": max, "MIN": min}
# Of each dimension: the largest size over all profiles, and the expression.
Dims = list[tuple[int | None, str]]
Sizes = dict[str, int]  # of a profile, at its largest: by the dimension's name, and by "x#0"


def with_most_bytes(
    done: Done, inputs: Sequence[Binding], profiles: Sequence[Profile], messages: Sequence[Message]
) -> tuple[Binding, ...]:
    """Return the outputs with the bytes they take in the profile that needs most, where that is known."""
    bounds = dims_from(messages)
    sizes = [largest(inputs, profile) for profile in profiles] or [{}]
    return tuple(
        msgspec.structs.replace(output, most_bytes=_bytes(output, bounds.get(done.makers.get(output.name, ("", 0)), []), sizes))
        for output in done.outputs
    )  # fmt: skip


def largest(inputs: Sequence[Binding], profile: Profile) -> Sizes:
    """Return the largest size of each dynamic dimension."""
    sizes: Sizes = {}
    for binding in inputs:
        most = profile.get(binding.name, ((), (), ()))[2]
        for axis, (dim, size) in enumerate(zip(binding.dims, most, strict=False)):
            sizes[f"{binding.name}#{axis}"] = size
            if isinstance(dim, str):
                sizes[dim] = max(size, sizes.get(dim, 0))
    return sizes


def _bytes(binding: Binding, told: Dims, profiles: Sequence[Sizes]) -> int | None:
    if binding.dtype not in BITS:
        return None
    if all(isinstance(dim, int) for dim in binding.dims):
        told = [(int(dim), "") for dim in binding.dims]
    if len(told) != len(binding.dims):
        return None
    counts = [_count(told, sizes) for sizes in profiles]
    known_counts = [count for count in counts if count is not None]
    return (
        math.ceil(max(known_counts) * BITS[binding.dtype] / 8) if len(known_counts) == len(counts) else None
    )


def _count(told: Dims, sizes: Sizes) -> int | None:
    """Return how many values there are at most in one profile."""
    count = 1
    for most, expression in told:
        computed = computed_size(expression, sizes)
        size = most if computed is None else computed
        if size is None:
            return None
        count *= size
    return count


def computed_size(expression: str, sizes: Mapping[str, int]) -> int | None:
    """Return what an expression such as "(+ seq past)" gives, None where it has something unknown in it."""
    plain = _SHAPE.sub(lambda found: f"{found[2]}#{found[1]}", expression)
    words = plain.replace("(", " ( ").replace(")", " ) ").split()
    stack: list[list[str | int]] = [[]]
    for word in words[:MOST_WORDS]:
        if word == "(":
            stack.append([])
        elif word == ")":
            if len(stack) < 2:
                return None
            value = _applied(stack.pop())
            if value is None:
                return None
            stack[-1].append(value)
        else:
            stack[-1].append(int(word) if word.isdecimal() else sizes.get(word, word))
    only = stack[0][0] if len(stack) == 1 and len(stack[0]) == 1 else None
    return only if isinstance(only, int) else None


def _applied(form: list[str | int]) -> int | None:
    operator, values = form[:1], [operand for operand in form[1:] if isinstance(operand, int)]
    computed = _COMPUTED.get(str(operator[0])) if operator else None
    return computed(values) if computed and values and len(values) == len(form) - 1 else None


def dims_from(messages: Sequence[Message]) -> dict[tuple[str, int], Dims]:
    """Return what the lines after "GRAPH NODES" say of each output, by layer and number."""
    bounds: dict[tuple[str, int], Dims] = {}
    dims: Dims | None = None
    layer, inside = "", False
    for line in (
        line for message in messages if message.severity != "INFO" for line in message.text.split("\n")
    ):
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
            bound = _BOUND.fullmatch(line)
            dims.append((int(bound["most"]), bound["told"] or "") if bound else (None, ""))
    return bounds
