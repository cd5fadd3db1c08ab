"""What one log line states about memory: every format of every release is in data/memory_lines.toml.

A named group is a quantity: `NAME__GiB`, `NAME__MiB`, `NAME__bytes` and `NAME__number` say its unit, the text of
`NAME__size` carries its own ("43.29 MB"), and `NAME__text` is a word. TensorRT-LLM writes MB and GB and divides
by 1024 all the same.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_N = r"-?\d+(?:\.\d+)?"
_SIZE = r"-?\d+(?:\.\d+)? ?(?:[KMGT]i?B|[Bb]ytes|B)\b"
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_TORCH_ALLOCATOR = (
    r"GPU (?P<gpu__number>\d+) has a total capac(?:i)?ty of (?P<total__size><SIZE>) of which (?P<free__size><SIZE>) is free",
    r"\(GPU (?P<gpu__number>\d+); (?P<total__size><SIZE>) total capacity; (?P<allocated__size><SIZE>) already allocated; (?P<free__size><SIZE>) free",
    r"this process has (?P<own__size><SIZE>) memory in use",
    r"Of the allocated memory (?P<allocated__size><SIZE>) is allocated by PyTorch",
    r"(?P<unused__size><SIZE>) is reserved by PyTorch but unallocated",
    r"(?P<reserved__size><SIZE>) reserved in total by PyTorch",
)
_PROCESS = r"Process (\d+) has (<SIZE>) memory in use"
ABSURD_BYTES = 2**50  # some drivers print the largest number there is for a process


class Quantity(msgspec.Struct, frozen=True):
    """A number as printed, and half of its last digit."""

    value: float
    tolerance: float = 0.0


class LogStatement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement of a log line."""

    key: str
    values: dict[str, Quantity]
    words: dict[str, str] = {}
    source: str = ""
    line: int = 0
    text: str = ""
    rank: int | None = None
    level: str = "unknown"

    def value_of(self, name: str) -> float | None:
        value = self.values.get(name)
        return None if value is None else value.value

    def bytes(self, name: str = "size") -> int:
        return round(self.values[name].value)

    @property
    def where(self) -> str:
        return f"{self.source}:{self.line}"


def parse_statements(text: str, message: str, rank: int | None) -> Iterator[LogStatement]:
    """Yield what a line states; `message` is the line without its layers."""
    for key, pattern in _compiled_formats():
        for match in pattern.finditer(message):
            values, words = _match_values(match)
            if any(abs(amount.value) >= ABSURD_BYTES for amount in values.values()):
                continue
            values.update(_allocator_figures(message) if key == "torch.oom" else {})
            words.update(_process_figures(message) if key == "torch.oom" else {})
            stated = values.pop("rank", None)
            stated_rank = int(stated.value) if stated is not None else rank
            yield LogStatement(key=key, values=values, words=words, text=text[:900], rank=stated_rank)


@cache
def _compiled_formats() -> tuple[tuple[str, re.Pattern[str]], ...]:
    text = resources.files("trtdx").joinpath("data/memory_lines.toml").read_text("utf-8")
    formats = msgspec.toml.decode(text)["formats"]
    return tuple((key, _compile_pattern(pattern)) for key, pattern in formats)


def _compile_pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("<SIZE>", _SIZE).replace("<N>", _N))


def _match_values(match: re.Match[str]) -> tuple[dict[str, Quantity], dict[str, str]]:
    values: dict[str, Quantity] = {}
    words: dict[str, str] = {}
    for group, text in match.groupdict().items():
        name, _, unit = group.rpartition("__")
        if text is None:
            continue
        if unit == "text":
            words[name] = text.strip()
        else:
            values[name] = parse_quantity(text, unit)
    return values, words


def parse_quantity(text: str, unit: str) -> Quantity:
    """Return a printed number in bytes (or as it is), with half of its last digit."""
    if unit == "size":
        text, unit = re.match(r"(\S*?\d) ?([A-Za-z]+)$", text).groups()  # type: ignore[union-attr]
    scale = 1 if unit in ("number", "bytes") else _UNITS[unit[0].lower()]
    text = text.lstrip("+").rstrip(".")
    decimals = len(text.partition(".")[2])
    exact = scale == 1 and not decimals
    return Quantity(float(text) * scale, 0.0 if exact else 0.5 * 10.0**-decimals * scale)


def _allocator_figures(message: str) -> dict[str, Quantity]:
    """Return the figures of PyTorch's allocator text, in both of its forms."""
    values: dict[str, Quantity] = {}
    for pattern in _allocator_patterns():
        match = pattern.search(message)
        if match:
            values.update(
                {name: amount for name, amount in _match_values(match)[0].items() if amount.value < ABSURD_BYTES}
            )
    if "reserved" in values and "allocated" in values and "unused" not in values:
        values["unused"] = Quantity(max(0.0, values["reserved"].value - values["allocated"].value))
    return values


def _process_figures(message: str) -> dict[str, str]:
    """Return what the allocator text says of each process it names: {"process 157": bytes}."""
    processes = _compile_pattern(_PROCESS).findall(message)
    sizes = {f"process {pid}": parse_quantity(size, "size").value for pid, size in processes}
    return {name: str(round(size)) for name, size in sizes.items() if size < ABSURD_BYTES}


@cache
def _allocator_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(map(_compile_pattern, _TORCH_ALLOCATOR))
