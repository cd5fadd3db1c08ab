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
Dims = list[
    tuple[int | None, str]
]  # of each dimension: the largest size over all profiles, and the expression
Sizes = dict[str, int]  # of a profile, at its largest: by the dimension's name, and by "x#0"


def with_most_bytes(
    done: Done, inputs: Sequence[Binding], profiles: Sequence[Profile], messages: Sequence[Message]
) -> tuple[Binding, ...]:
    """Return the outputs with the bytes they take in the profile that needs most, where that is known."""
    told = dims_from(messages)
    sizes = [largest(inputs, profile) for profile in profiles] or [{}]
    return tuple(
        msgspec.structs.replace(each, most_bytes=_bytes(each, told.get(done.makers.get(each.name, ("", 0)), []), sizes))
        for each in done.outputs
    )  # fmt: skip


def largest(inputs: Sequence[Binding], profile: Profile) -> Sizes:
    """Return the largest size of each dynamic dimension."""
    found: Sizes = {}
    for each in inputs:
        most = profile.get(each.name, ((), (), ()))[2]
        for axis, (dim, size) in enumerate(zip(each.dims, most, strict=False)):
            found[f"{each.name}#{axis}"] = size
            if isinstance(dim, str):
                found[dim] = max(size, found.get(dim, 0))
    return found


def _bytes(binding: Binding, told: Dims, profiles: Sequence[Sizes]) -> int | None:
    if binding.dtype not in BITS:
        return None
    if all(isinstance(dim, int) for dim in binding.dims):
        told = [(int(dim), "") for dim in binding.dims]
    if len(told) != len(binding.dims):
        return None
    counts = [_count(told, sizes) for sizes in profiles]
    known = [count for count in counts if count is not None]
    return math.ceil(max(known) * BITS[binding.dtype] / 8) if len(known) == len(counts) else None


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
    operator, values = form[:1], [each for each in form[1:] if isinstance(each, int)]
    computed = _COMPUTED.get(str(operator[0])) if operator else None
    return computed(values) if computed and values and len(values) == len(form) - 1 else None


def dims_from(messages: Sequence[Message]) -> dict[tuple[str, int], Dims]:
    """Return what the lines after "GRAPH NODES" say of each output, by layer and number."""
    found: dict[tuple[str, int], Dims] = {}
    dims: Dims | None = None
    layer, inside = "", False
    for line in (line for each in messages if each.severity != "INFO" for line in each.text.split("\n")):
        if line == "GRAPH NODES":
            inside = True
        elif not inside or line.startswith("Graph construction completed"):
            inside = False
        elif not line.startswith(" "):
            layer, dims = line.partition(" ")[2], None
        elif line.startswith("    Output "):
            dims = found[layer, int(line.split()[1])] = []
        elif line.startswith("    Input "):
            dims = None
        elif dims is not None:
            bound = _BOUND.fullmatch(line)
            dims.append((int(bound["most"]), bound["told"] or "") if bound else (None, ""))
    return found
