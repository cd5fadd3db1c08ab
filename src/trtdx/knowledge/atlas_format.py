"""The file of the atlas of messages: how it is laid out, how it is written, and how a message becomes grams.

A gram is the 32-bit hash of two neighbouring words in a constant part of a message. The file: a magic, the length of
a JSON header, the header (projects with their releases, offsets of sections), then
    grams      sorted hashes, 4 bytes each
    targets    for each gram the one message that has it (high bit set), or where its postings begin
    postings   count and differences of message numbers, as varints
    weights    of messages, in sixteenths of a bit, 2 bytes each
    starts     where a message's places begin, 4 bytes each
    places     count, then for each place: file, function, level, and runs of releases with their line, as varints
    files      project, path, first and last release; deflated
    functions  names; deflated
Numbers are little-endian.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from array import array
from collections import defaultdict
from hashlib import blake2b
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MAGIC = b"TRTDXA01"
MOST_SHARED = 600  # messages; a gram that more of them have says nothing and is left out
PLACEHOLDER = "\0"
LEVELS = ("text", "debug", "info", "warning", "error")
SCALE = 16

# what loggers put before messages, and before messages that messages quote
_LOG_TAG = re.compile(r"\[(?:TensorRT-LLM|TRT-LLM|TensorRT|TRT)\](?: ?\[[\w .]{0,24}\]){0,3}|\bNCCL (?:WARN|INFO)\b")
_WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_][A-Za-z0-9_]*")


class AtlasProject(msgspec.Struct, frozen=True, kw_only=True):
    """A program in the atlas, its releases from the oldest on, and the folders that were published late."""

    name: str
    releases: tuple[str, ...]
    opened: dict[str, str] = {}


class AtlasPlace(NamedTuple):
    """A place that prints a message: the line it stands in, by the number of the release."""

    project: int
    path: str
    function: str
    level: str
    lines: dict[int, int]


def split_words(text: str) -> list[str]:
    """Return the words that count: names and words in lower case, no numbers."""
    return [word.lower() for word in _WORD.findall(_LOG_TAG.sub(" ", text))]


def hash_grams(parts: str) -> list[tuple[int, ...]]:
    """Return the grams of each printed line of a message, whose placeholders are NUL characters."""
    lines = (
        {gram for part in _whole_words(line) for gram in hash_word_pairs(split_words(part))}
        for line in parts.split("\n")
    )
    return [tuple(sorted(grams)) for grams in lines if grams]


def _whole_words(line: str) -> Iterator[str]:
    """Yield the constant parts of a line without the words that a value is glued to."""
    parts = line.split(PLACEHOLDER)
    for number, part in enumerate(parts):
        part = re.sub(r"^\w+", "", part) if number else part
        yield re.sub(r"\w+$", "", part) if number < len(parts) - 1 else part


def hash_word_pairs(words: Sequence[str]) -> Iterator[int]:
    for left, right in pairwise(words):
        yield int.from_bytes(blake2b(f"{left} {right}".encode(), digest_size=4).digest(), "little")


class VarintReader:
    """Reads numbers of seven bits a byte, least significant first."""

    def __init__(self, data: memoryview, offset: int) -> None:
        self._data, self._offset = data, offset

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._offset]
            self._offset += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7


def write_atlas(projects: Sequence[AtlasProject], places: Mapping[tuple[int, ...], Sequence[AtlasPlace]]) -> bytes:
    """Return the atlas of messages, which are named by their grams."""
    messages = sorted(places)
    owners: dict[int, list[int]] = defaultdict(list)
    for number, grams in enumerate(messages):
        for gram in grams:
            owners[gram].append(number)
    owners = {gram: owners[gram] for gram in sorted(owners) if len(owners[gram]) <= MOST_SHARED}
    targets, postings = [], bytearray()
    for numbers in owners.values():
        targets.append(len(postings) if len(numbers) > 1 else numbers[0] | 1 << 31)
        if len(numbers) > 1:
            _append_varints(postings, [len(numbers), *_differences(numbers)])
    weight = {gram: log2(len(messages) / len(numbers)) for gram, numbers in owners.items()}
    weights = [min(0xFFFF, round(SCALE * sum(weight.get(gram, 0.0) for gram in grams))) for grams in messages]
    starts, body, files, functions = _pack_places([places[grams] for grams in messages])
    sections = {
        "grams": _pack_numbers("I", list(owners)), "targets": _pack_numbers("I", targets), "postings": bytes(postings),
        "weights": _pack_numbers("H", weights), "starts": _pack_numbers("I", starts), "places": body,
        "files": zlib.compress("\n".join(files).encode(), 9), "functions": zlib.compress("\n".join(functions).encode(), 9),
    }  # fmt: skip
    offsets, end = {}, 0
    for name, section in sections.items():
        offsets[name] = [end, len(section)]
        end += len(section)
    header = json.dumps({"projects": msgspec.to_builtins(projects), "sections": offsets}).encode()
    return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, *sections.values()])


def _pack_places(rows: Sequence[Sequence[AtlasPlace]]) -> tuple[list[int], bytes, list[str], list[str]]:
    used: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place in (place for row in rows for place in row):
        used[place.project, place.path] += [min(place.lines), max(place.lines)]
    files = {key: number for number, key in enumerate(sorted(used))}
    names = sorted({place.function for row in rows for place in row} | {""})
    functions = {name: number for number, name in enumerate(names)}
    starts, body = [], bytearray()
    for row in rows:
        starts.append(len(body))
        _append_varints(body, [len(row)])
        for place in row:
            runs = list(_line_runs(place.lines))
            head = [
                files[place.project, place.path],
                functions[place.function],
                len(runs) << 3 | LEVELS.index(place.level),
            ]
            _append_varints(body, [*head, *(number for run in runs for number in run)])
    table = [f"{project}\t{path}\t{min(used[project, path])}\t{max(used[project, path])}" for project, path in files]
    return starts, bytes(body), table, names


def _line_runs(lines: Mapping[int, int]) -> Iterator[list[int]]:
    """Yield runs of neighbouring releases with the same line: length and whether a gap comes first, gap, step of line."""
    end = line = 0
    releases = sorted(lines)
    position = 0
    while position < len(releases):
        first = releases[position]
        length = 1
        while (
            position + length < len(releases)
            and releases[position + length] == first + length
            and lines[first + length] == lines[first]
        ):
            length += 1
        gap, step = first - end, lines[first] - line
        yield [length << 1 | bool(gap), *([gap] if gap else []), step << 1 if step >= 0 else (-step << 1) - 1]
        position, end, line = position + length, first + length, lines[first]


def _differences(numbers: Sequence[int]) -> list[int]:
    return [number - previous for number, previous in zip(numbers, [0, *numbers], strict=False)]


def _append_varints(data: bytearray, numbers: Iterable[int]) -> None:
    for number in numbers:
        while number > 127:
            data.append(number & 127 | 128)
            number >>= 7
        data.append(number)


def _pack_numbers(kind: str, numbers: Sequence[int]) -> bytes:
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
