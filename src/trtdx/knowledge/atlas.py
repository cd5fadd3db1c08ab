"""The atlas of messages: where in the sources a line of a log was raised, and in which releases.

`data/atlas.bin` is written by `scripts/make_atlas.py` from the sources of TensorRT-LLM, NCCL, Open MPI, Triton and the
open parts of TensorRT. Of each message it holds fingerprints of neighbouring words (`atlas_format.py`), never the words.
Values break no gram, because grams lie between placeholders; a prefix adds some that nobody knows. A gram weighs as
much as it is rare, and a message is located when most of its weight stands in the line.
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
from importlib import resources
from math import log2
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.knowledge.atlas_format import (
    LEVELS,
    MAGIC,
    SCALE,
    AtlasProject,
    VarintReader,
    hash_word_pairs,
    split_words,
)
from trtdx.model import MessagePlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_WORDS = 300  # of a line; more are a dump

LEAST_SHARE = 0.55  # of a message's weight that must stand in the line
LEAST_WEIGHT = 22.0  # bits in all
CUT_SHARE, CUT_WEIGHT = 0.3, 40.0  # for a message that goes on where the line ends
CLOSE = 0.93  # of the best candidate's rank: as good an answer

_SOURCE_PLACE = re.compile(
    r"(?P<path>[\w./+-]*[\w+-]\.(?:cpp|cc|cuh|cu|hpp|h|c|py))(?:\", line |:|\()(?P<line>\d{1,5})\b"
)


class LocatedLine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line may have been raised, the likeliest place first, and what it tells of releases.

    Attributes:
        releases: by project, the numbers of the releases that can print the line, as bits.
        source_line: the line in the source file that the log line names; 0 where it names none.
    """

    places: tuple[MessagePlace, ...]
    releases: dict[str, int]
    source_line: int = 0


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
        occurrences = [
            occurrence for number, share in best for occurrence in self._occurrences(number, share)
        ]
        occurrences, source_line = self._prefer_named(line, occurrences)
        if not occurrences:
            return None
        places = sorted(dict.fromkeys(map(self._place, occurrences)), key=self._rank_place)
        releases = self._releases(occurrences, source_line)
        return LocatedLine(places=tuple(places), releases=releases, source_line=source_line)

    def _prefer_named(self, line: str, occurrences: list[_Occurrence]) -> tuple[list[_Occurrence], int]:
        """Return the occurrences in the file that the line names, if it names one, and the line in that file."""
        for path, source_line in reversed(
            _source_places_in(line)
        ):  # a line that quotes another names it last
            named = [one._replace(is_named=True) for one in occurrences if self._is_path(one.file, path)]
            if named:
                return named, source_line
            if file := self._named_file(path):
                return file + occurrences, source_line
        return occurrences, 0

    def _best_messages(self, line: str) -> list[tuple[int, float]]:
        """Return the messages that a line is likeliest to be, with the share of each that stands in it."""
        grams = list(dict.fromkeys(hash_word_pairs(split_words(line)[:MOST_WORDS])))
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
        numbers = VarintReader(self._postings, target)
        message, messages = 0, []
        for _ in range(numbers.next()):
            message += numbers.next()
            messages.append(message)
        return messages

    def _occurrences(self, message: int, share: float) -> Iterator[_Occurrence]:
        numbers = VarintReader(self._places, self._starts[message])
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

    def _named_file(self, path: str) -> list[_Occurrence]:
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
        return [_Occurrence(-1, files[0], 0, 0, dict.fromkeys(range(first, last + 1), 0), 0.0, True)]

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
            is_named=occurrence.is_named,
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
            not place.is_named,
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
    is_named: bool = False


def _source_places_in(line: str) -> list[tuple[str, int]]:
    return [(match["path"], int(match["line"])) for match in _SOURCE_PLACE.finditer(line)]


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
