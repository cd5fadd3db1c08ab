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
    from collections.abc import Iterator, Sequence

MOST_WORDS, MOST_CHARACTERS = 300, 8000  # of a line; more are a dump
LINES_BELOW = 6  # how far below its first line a statement may be said to stand

LEAST_SHARE, LEAST_WEIGHT = 0.7, 22.0  # of a message's weight that must stand in the line, and bits in all
CUT_SHARE, CUT_WEIGHT, CUT_GRAMS = 0.15, 40.0, 3  # for a message that goes on where the line ends, or nearly
HINTED_SHARE, HINTED_WEIGHT = 0.9, 14.5  # where the line shows which program printed it
NAMED_SHARE, NAMED_WEIGHT = 0.6, 5.0  # where the line names the file
CLOSE = 0.93  # of the best candidate's rank: as good an answer
UNREPORTED = 0.8  # of its rank is what a text counts that nothing is seen to report
MOST_CANDIDATES, MOST_PLACES = 24, 6

# A line of TensorRT's own core, whose sources are not public; plugins say some of it in the same words.
# Nor are Python's words for its own types anybody else's.
_CLOSED = re.compile(
    r"\[\w+\.(?:cpp|h)::\w+::\d+\]|\bError Code \d+: |\[(?:ERROR|WARNING|[EW])\] \d{1,2}: "
    r"|'(?:NoneType|dict|list|str|int|float|tuple|set|bool|bytes|function|method|module)' object has no attribute"
)
_HINTS = (
    (re.compile(r"\[TensorRT-LLM\]|\[TRT-LLM\]|\btensorrt_llm\b"), ("TensorRT-LLM", "tensorrtllm_backend")),
    (re.compile(r"\bNCCL (?:WARN|INFO)\b"), ("NCCL",)),
    (re.compile(r"\b[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ "), ("Triton core", "Triton server", "Triton python_backend", "Triton backend")),
    (re.compile(r"Open MPI|\bORTE\b|\bPMIX\b|\bMPI_\w+|\bmpirun\b"), ("Open MPI",)),
)  # fmt: skip
_MOVED = ("tensorrtllm_backend", "TensorRT-LLM")  # since 0.20 the one is in the other's sources
_ASIDE = ("examples/", "benchmarks/", "scripts/", "samples/")  # less often run than a library
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
        self._decoded: dict[int, list[_Occurrence]] = {}

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
        line = line[:MOST_CHARACTERS]
        if _CLOSED.search(line):
            return None
        hints = programs_hinted(line)
        candidates = self._candidates(line)
        nested = _nest_messages(self._reported_first([one for one in candidates if self._is_strong(one, hints)]))
        groups = [[place for one in group for place in self._occurrences(one.message, one.share)] for group in nested]
        groups, source_line = self._prefer_named(line, candidates, groups, hints)
        if not groups:
            return None
        ordered = [one for group in groups for one in sorted(group, key=self._rank_occurrence)]
        return LocatedLine(
            places=tuple(dict.fromkeys(self._place(one) for one in ordered[:MOST_PLACES])),
            releases=self._releases(groups, source_line),
            source_line=source_line,
        )

    def _candidates(self, line: str) -> list[_Candidate]:
        """Return the messages that a line may be, best first."""
        grams = list(dict.fromkeys(hash_word_pairs(split_words(line)[:MOST_WORDS])))
        weights: dict[int, float] = defaultdict(float)
        spans: dict[int, tuple[int, int]] = {}
        for position, gram in enumerate(grams):
            messages = self._messages_with(gram)
            weight = log2(len(self) / len(messages)) if messages else 0.0
            for number in messages:
                weights[number] += weight
                spans[number] = (spans.get(number, (position,))[0], position)
        candidates = []
        for number, weight in weights.items():
            share = min(1.0, weight * SCALE / max(1, self._weights[number]))
            is_cut = CUT_SHARE <= share < LEAST_SHARE and spans[number][1] >= len(grams) - CUT_GRAMS
            if weight >= NAMED_WEIGHT and (share >= NAMED_SHARE or is_cut):
                candidates.append(_Candidate(number, weight, share, *spans[number], is_cut))
        return sorted(candidates, key=lambda one: (-one.rank, one.message))[:MOST_CANDIDATES]

    def _is_strong(self, candidate: _Candidate, hints: frozenset[str]) -> bool:
        """Whether a line says enough of a message to be taken for it."""
        if candidate.is_cut:
            places = self._occurrences(candidate.message, 0.0)
            return candidate.weight >= CUT_WEIGHT and any(place.level for place in places)
        if candidate.share >= LEAST_SHARE and candidate.weight >= LEAST_WEIGHT:
            return True
        if candidate.share < HINTED_SHARE or candidate.weight < HINTED_WEIGHT:
            return False
        return any(self._project(one).name in hints for one in self._occurrences(candidate.message, 0.0))

    def _reported_first(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Return the candidates best first, where texts that nothing reports count less."""

        def rank(candidate: _Candidate) -> tuple[float, int]:
            is_reported = any(place.level for place in self._occurrences(candidate.message, 0.0))
            return candidate.rank * (1.0 if is_reported else UNREPORTED), -candidate.message

        return sorted(candidates, key=rank, reverse=True)

    def _prefer_named(
        self,
        line: str,
        candidates: Sequence[_Candidate],
        groups: list[list[_Occurrence]],
        hints: frozenset[str],
    ) -> tuple[list[list[_Occurrence]], int]:
        """Return the occurrences in the file that the line names, if it names one, and the line in that file."""
        for path, source_line in reversed(_source_places_in(line)):  # a line that quotes another names it last
            for candidate in candidates:
                occurrences = self._occurrences(candidate.message, candidate.share)
                named = [one._replace(is_named=True) for one in occurrences if self._is_path(one.file, path)]
                if named:
                    return [named], source_line
            if files := self._named_files(path, hints):
                return [files, *groups], source_line
        return groups, 0

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

    def _occurrences(self, message: int, share: float) -> list[_Occurrence]:
        """Return every place that prints a message."""
        if message not in self._decoded:
            self._decoded[message] = list(self._decode_places(message))
        return [one._replace(share=share) for one in self._decoded[message]]

    def _decode_places(self, message: int) -> Iterator[_Occurrence]:
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
            yield _Occurrence(message, file, function, level, lines, 0.0)

    def _is_path(self, file: int, path: str) -> bool:
        known, stated = self._files[file][1].split("/"), path.strip("/").split("/")
        return known[-1] == stated[-1] and (len(stated) < 2 or len(known) < 2 or known[-2] == stated[-2])

    def _named_files(self, path: str, hints: frozenset[str]) -> list[_Occurrence]:
        """Return the file that a line names, also where it was moved, if only one program has such a path."""
        files = [
            number
            for number in self._files_by_name.get(path.rpartition("/")[2], ())
            if self._is_path(number, path) and (not hints or self.projects[int(self._files[number][0])].name in hints)
        ]
        depth = [len(_common_tail(self._files[number][1], path)) for number in files]
        files = [number for number, length in zip(files, depth, strict=True) if length == max(depth)]
        is_clear = len(files) == 1 or (len(files) <= 3 and len({self._files[number][0] for number in files}) == 1)
        if not is_clear or not (hints or "/" in path or len(path) >= 10):
            return []
        return [
            _Occurrence(-1, number, 0, 0, dict.fromkeys(range(int(first), int(last) + 1), 0), 0.0, True)
            for number in files
            for first, last in [self._files[number][2:4]]
        ]

    def _project(self, occurrence: _Occurrence) -> AtlasProject:
        return self.projects[int(self._files[occurrence.file][0])]

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
        """Return the first release without a wording; sources that moved into another project's are not gone."""
        last: dict[int, int] = defaultdict(int)
        for occurrence in self._occurrences(message, 0.0):
            number = int(self._files[occurrence.file][0])
            last[number] = max(last[number], *occurrence.lines)
        releases = self.projects[project].releases
        moved = self.projects[project].name == _MOVED[0] and any(self.projects[n].name == _MOVED[1] for n in last)
        return releases[last[project] + 1] if last[project] + 1 < len(releases) and not moved else ""

    def _is_published_late(self, project: AtlasProject, path: str, first: int) -> bool:
        return any(
            path.startswith(folder) and project.releases[first] == release for folder, release in project.opened.items()
        )

    def _rank_occurrence(self, occurrence: _Occurrence) -> tuple[object, ...]:
        """Return what sorts places: sure ones first, then graver ones, libraries, and what has been there longest."""
        path = self._files[occurrence.file][1]
        aside = path.startswith(_ASIDE)
        return -occurrence.share, -occurrence.level, aside, -len(occurrence.lines), path, occurrence.function

    def _releases(self, groups: Sequence[Sequence[_Occurrence]], source_line: int) -> dict[str, int]:
        """Return the releases that can print the line, by project; where it names its source line, with that line."""
        masks: dict[str, int] = {}
        for group in groups:
            for name, mask in self._group_releases(group, source_line).items():
                masks.setdefault(name, mask)  # what is quoted was raised first
        return masks

    def _group_releases(self, group: Sequence[_Occurrence], source_line: int) -> dict[str, int]:
        masks: dict[str, int] = defaultdict(int)
        by_offset: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for occurrence in group:
            project, path = self._project(occurrence), self._files[occurrence.file][1]
            first = min(occurrence.lines)
            if not occurrence.level and not occurrence.is_named:
                continue  # a text that nothing reports may be there to recognise another program's message
            if self._is_published_late(project, path, first):
                masks[project.name] |= (1 << first) - 1
            for release, line in occurrence.lines.items():
                masks[project.name] |= 1 << release
                if occurrence.is_named and line and line <= source_line <= line + LINES_BELOW:
                    by_offset[source_line - line][project.name] |= 1 << release
        return dict(masks) | dict(by_offset[min(by_offset)] if by_offset else {})


class _Candidate(NamedTuple):
    """A message that a line may be: how much of it stands there, and between which grams of the line."""

    message: int
    weight: float
    share: float
    first: int
    last: int
    is_cut: bool

    @property
    def rank(self) -> float:
        return self.weight * self.share


class _Occurrence(NamedTuple):
    message: int
    file: int
    function: int
    level: int
    lines: dict[int, int]
    share: float
    is_named: bool = False


def _nest_messages(candidates: Sequence[_Candidate]) -> list[list[_Candidate]]:
    """Return the messages of a line in groups as good as each other, what is quoted before what quotes it."""
    groups: list[list[_Candidate]] = []
    rest = list(candidates)
    while rest:
        group = [one for one in rest if one.rank >= CLOSE * rest[0].rank]
        groups.insert(0, group)
        rest = [one for one in rest if one.first > max(member.last for member in group)]
    if len(groups) == 1:  # what begins before it and goes on behind it quotes it
        first, last = min(one.first for one in groups[0]), max(one.last for one in groups[0])
        groups += [[one] for one in candidates if one.first < first and one.last > last][:1]
    return groups


def _source_places_in(line: str) -> list[tuple[str, int]]:
    return [(match["path"], int(match["line"])) for match in _SOURCE_PLACE.finditer(line)]


def _common_tail(path: str, other: str) -> list[str]:
    tail = []
    for left, right in zip(reversed(path.split("/")), reversed(other.split("/")), strict=False):
        if left != right:
            break
        tail.append(left)
    return tail


def programs_hinted(line: str) -> frozenset[str]:
    """Return the projects one of which printed a line, by its form; none where that does not tell."""
    if _CLOSED.search(line):
        return frozenset()
    return frozenset(name for pattern, names in _HINTS if pattern.search(line) for name in names)


@cache
def message_atlas() -> MessageAtlas:
    """Return the atlas that comes with trtdx."""
    return MessageAtlas(resources.files("trtdx").joinpath("data/atlas.bin").read_bytes())


def locate_message(line: str) -> tuple[MessagePlace, ...]:
    """Return where a line of a log was raised, the likeliest place first; nothing for a line that is not known."""
    located = message_atlas().locate(line)
    return located.places if located else ()
