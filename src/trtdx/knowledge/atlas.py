"""The atlas of messages: where in the sources a line of a log was raised, and in which releases.

`data/atlas.bin` is written by `scripts/make_atlas.py` from the sources of TensorRT-LLM, NCCL, Open MPI, Triton and the
open parts of TensorRT. Of each message it holds fingerprints of neighbouring words in its constant parts (a gram is
the 32-bit hash of two such words), never the words. Values break no gram, because grams lie between placeholders; a
prefix adds some that nobody knows. A gram weighs as much as it is rare, and a message is located when most of its
weight stands in the line.

The file: a magic, the length of a JSON header, the header (projects with their releases, offsets of sections), then
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
from bisect import bisect_left
from collections import defaultdict
from functools import cache, cached_property
from hashlib import blake2b
from importlib import resources
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MAGIC = b"TRTDXA01"
MOST_SHARED = 600  # messages; a gram that more of them have says nothing and is left out
MOST_WORDS = 300  # of a line; more are a dump
PLACEHOLDER = "\0"
LEVELS = ("text", "debug", "info", "warning", "error")
SCALE = 16

LEAST_SHARE = 0.55  # of a message's weight that must stand in the line
LEAST_WEIGHT = 22.0  # bits in all
CUT_SHARE, CUT_WEIGHT = 0.3, 40.0  # for a message that goes on where the line ends
CLOSE = 0.93  # of the best candidate's rank: as good an answer

_WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_][A-Za-z0-9_]*")
_SOURCE_PLACE = re.compile(
    r"(?P<path>[\w./+-]*[\w+-]\.(?:cpp|cc|cuh|cu|hpp|h|c|py))(?:\", line |:|\()(?P<line>\d{1,5})\b"
)


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


class MessagePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line of a log was raised.

    Attributes:
        since: the first release in the atlas that has it here; empty where the sources of older ones are not public.
        until: the last release that has it here.
        gone_since: the first release that has the wording nowhere any more; empty where the newest still has it.
        share: the share of the message's constant words, by weight, that the line holds; 0 where only the file is
            known, because the line names it.
    """

    project: str
    path: str
    function: str = ""
    level: str = "text"
    since: str = ""
    until: str = ""
    gone_since: str = ""
    share: float = 0.0


class LocatedLine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line may have been raised, the likeliest place first, and what it tells of releases.

    Attributes:
        releases: by project, the numbers of the releases that can print the line, as bits.
        source_line: the line in the source file that the log line names; 0 where it names none.
    """

    places: tuple[MessagePlace, ...]
    releases: dict[str, int]
    source_line: int = 0


def split_words(text: str) -> list[str]:
    """Return the words that count: names and words in lower case, no numbers."""
    return [word.lower() for word in _WORD.findall(text)]


def hash_grams(parts: str) -> list[tuple[int, ...]]:
    """Return the grams of each printed line of a message, whose placeholders are NUL characters."""
    lines = (
        {gram for part in _whole_words(line) for gram in _grams_of(split_words(part))}
        for line in parts.split("\n")
    )
    return [tuple(sorted(grams)) for grams in lines if grams]


def _whole_words(line: str) -> Iterator[str]:
    """Yield the constant parts of a line without the words that a value is glued to."""
    parts = line.split(PLACEHOLDER)
    for number, part in enumerate(parts):
        part = re.sub(r"^\w+", "", part) if number else part
        yield re.sub(r"\w+$", "", part) if number < len(parts) - 1 else part


def _grams_of(words: Sequence[str]) -> Iterator[int]:
    for left, right in pairwise(words):
        yield int.from_bytes(blake2b(f"{left} {right}".encode(), digest_size=4).digest(), "little")


class MessageAtlas:
    """The atlas, read where it is asked."""

    def __init__(self, data: bytes) -> None:
        if data[:8] != MAGIC:
            raise ValueError("not an atlas")
        size = int.from_bytes(data[8:12], "little")
        header = json.loads(data[12 : 12 + size])
        self._view = memoryview(data)[12 + size :]
        self._sections: dict[str, list[int]] = header["sections"]
        self.projects = tuple(msgspec.convert(row, AtlasProject) for row in header["projects"])
        self._grams, self._targets = self._numbers("grams", "I"), self._numbers("targets", "I")
        self._weights, self._starts = self._numbers("weights", "H"), self._numbers("starts", "I")
        self._postings, self._places = self._section("postings"), self._section("places")

    def __len__(self) -> int:
        return len(self._weights)

    def _section(self, name: str) -> memoryview:
        offset, size = self._sections[name]
        return self._view[offset : offset + size]

    def _numbers(self, name: str, kind: str) -> Sequence[int]:
        section = self._section(name)
        if sys.byteorder == "little":
            return section.cast(kind)  # type: ignore[call-overload,no-any-return]
        numbers = array(kind, bytes(section))
        numbers.byteswap()
        return numbers

    @cached_property
    def _files(self) -> list[list[str]]:
        return [row.split("\t") for row in zlib.decompress(self._section("files")).decode().split("\n")]

    @cached_property
    def _functions(self) -> list[str]:
        return zlib.decompress(self._section("functions")).decode().split("\n")

    @cached_property
    def _files_by_name(self) -> dict[str, list[int]]:
        by_name: dict[str, list[int]] = defaultdict(list)
        for number, row in enumerate(self._files):
            by_name[row[1].rpartition("/")[2]].append(number)
        return by_name

    def locate(self, line: str) -> LocatedLine | None:
        """Return where a line was raised; None where too few of its words are known to say so."""
        best = self._best_messages(line)
        path, source_line = _source_place_in(line)
        occurrences = [
            occurrence for number, share in best for occurrence in self._occurrences(number, share)
        ]
        if path:
            stated = [occurrence for occurrence in occurrences if self._is_path(occurrence.file, path)]
            if not stated:
                occurrences = [*self._stated_file(path), *occurrences]
            occurrences = stated or occurrences
        if not occurrences:
            return None
        places = sorted({self._place(o): None for o in occurrences}, key=self._rank_place)
        return LocatedLine(
            places=tuple(places),
            releases=self._releases(occurrences, source_line if path else 0),
            source_line=source_line,
        )

    def _best_messages(self, line: str) -> list[tuple[int, float]]:
        """Return the messages that a line is likeliest to be, with the share of each that stands in it."""
        grams = list(dict.fromkeys(_grams_of(split_words(line)[:MOST_WORDS])))
        weights: dict[int, float] = defaultdict(float)
        last: dict[int, int] = {}
        for position, gram in enumerate(grams):
            messages = self._messages_with(gram)
            weight = log2(len(self) / len(messages)) if messages else 0.0
            for number in messages:
                weights[number] += weight
                last[number] = position
        ranked = []
        for number, weight in weights.items():
            share = min(1.0, weight * SCALE / max(1, self._weights[number]))
            whole = share >= LEAST_SHARE and weight >= LEAST_WEIGHT
            cut = share >= CUT_SHARE and weight >= CUT_WEIGHT and last[number] == len(grams) - 1
            if whole or cut:
                ranked.append((weight * share, number, share))
        top = max(ranked, default=(0.0, 0, 0.0))[0]
        return [
            (number, share) for rank, number, share in sorted(ranked, reverse=True) if rank >= CLOSE * top
        ]

    def _messages_with(self, gram: int) -> Sequence[int]:
        index = bisect_left(self._grams, gram)
        if index == len(self._grams) or self._grams[index] != gram:
            return ()
        target = self._targets[index]
        if target >> 31:
            return (target & 0x7FFFFFFF,)
        numbers = _VarintReader(self._postings, target)
        message, messages = 0, []
        for _ in range(numbers.next()):
            message += numbers.next()
            messages.append(message)
        return messages

    def _occurrences(self, message: int, share: float) -> Iterator[_Occurrence]:
        numbers = _VarintReader(self._places, self._starts[message])
        for _ in range(numbers.next()):
            file, function, packed = numbers.next(), numbers.next(), numbers.next()
            level, runs = packed & 7, packed >> 3
            release = line = 0
            lines: dict[int, int] = {}
            for _ in range(runs):
                length = numbers.next()
                release += numbers.next() if length & 1 else 0
                step = numbers.next()
                line += (step >> 1) ^ -(step & 1)
                lines.update(dict.fromkeys(range(release, release + (length >> 1)), line))
                release += length >> 1
            yield _Occurrence(message, file, function, level, lines, share)

    def _is_path(self, file: int, path: str) -> bool:
        known, stated = self._files[file][1].split("/"), path.strip("/").split("/")
        return known[-1] == stated[-1] and (len(stated) < 2 or len(known) < 2 or known[-2] == stated[-2])

    def _stated_file(self, path: str) -> list[_Occurrence]:
        """Return the file that a line names, if just one has such a path."""
        files = [
            number
            for number in self._files_by_name.get(path.rpartition("/")[2], ())
            if self._is_path(number, path)
        ]
        depth = [len(_common_tail(self._files[number][1], path)) for number in files]
        files = [number for number, length in zip(files, depth, strict=True) if length == max(depth)]
        if len(files) != 1 or ("/" not in path and len(path) < 10):
            return []
        first, last = (int(column) for column in self._files[files[0]][2:4])
        return [_Occurrence(-1, files[0], 0, 0, dict.fromkeys(range(first, last + 1), 0), 0.0)]

    def _place(self, occurrence: _Occurrence) -> MessagePlace:
        row = self._files[occurrence.file]
        project = self.projects[int(row[0])]
        first, last = min(occurrence.lines), max(occurrence.lines)
        return MessagePlace(
            project=project.name,
            path=row[1],
            function=self._functions[occurrence.function],
            level=LEVELS[occurrence.level],
            since="" if self._is_published_late(project, row[1], first) else project.releases[first],
            until=project.releases[last],
            gone_since=self._gone_since(occurrence.message, int(row[0])) if occurrence.message >= 0 else "",
            share=round(occurrence.share, 2),
        )

    def _gone_since(self, message: int, project: int) -> str:
        releases = self.projects[project].releases
        last = max(
            max(occurrence.lines)
            for occurrence in self._occurrences(message, 0.0)
            if int(self._files[occurrence.file][0]) == project
        )
        return releases[last + 1] if last + 1 < len(releases) else ""

    def _is_published_late(self, project: AtlasProject, path: str, first: int) -> bool:
        return any(
            path.startswith(folder) and project.releases[first] == release
            for folder, release in project.opened.items()
        )

    def _rank_place(self, place: MessagePlace) -> tuple[object, ...]:
        releases = next(project.releases for project in self.projects if project.name == place.project)
        return (
            -place.share,
            -LEVELS.index(place.level),
            -releases.index(place.until),
            place.project,
            place.path,
            place.function,
        )

    def _releases(self, occurrences: Iterable[_Occurrence], source_line: int) -> dict[str, int]:
        """Return the releases that can print the line, by project; where it names its source line, with that line."""
        masks: dict[str, int] = defaultdict(int)
        exact: dict[str, int] = defaultdict(int)
        for occurrence in occurrences:
            row = self._files[occurrence.file]
            project = self.projects[int(row[0])]
            first = min(occurrence.lines)
            if self._is_published_late(project, row[1], first):
                masks[project.name] |= (1 << first) - 1
            for release, line in occurrence.lines.items():
                masks[project.name] |= 1 << release
                if source_line and line <= source_line <= line + 6:
                    exact[project.name] |= 1 << release
        return dict(masks) | dict(exact)


class _Occurrence(NamedTuple):
    message: int
    file: int
    function: int
    level: int
    lines: dict[int, int]
    share: float


class _VarintReader:
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


def _source_place_in(line: str) -> tuple[str, int]:
    match = _SOURCE_PLACE.search(line)
    return (match["path"], int(match["line"])) if match else ("", 0)


def _common_tail(path: str, other: str) -> list[str]:
    tail = []
    for left, right in zip(reversed(path.split("/")), reversed(other.split("/")), strict=False):
        if left != right:
            break
        tail.append(left)
    return tail


@cache
def message_atlas() -> MessageAtlas:
    """Return the atlas that comes with trtdx."""
    return MessageAtlas((resources.files("trtdx") / "data" / "atlas.bin").read_bytes())


def locate_message(line: str) -> tuple[MessagePlace, ...]:
    """Return where a line of a log was raised, the likeliest place first; nothing for a line that is not known."""
    located = message_atlas().locate(line)
    return located.places if located else ()


def write_atlas(
    projects: Sequence[AtlasProject], places: Mapping[tuple[int, ...], Sequence[AtlasPlace]]
) -> bytes:
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
    table = [
        f"{project}\t{path}\t{min(used[project, path])}\t{max(used[project, path])}"
        for project, path in files
    ]
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
