"""Lines and stacks without what changes from run to run: paths, numbers, addresses, times, ranks, hosts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.diagnose.logs.prefixes import peel_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_LINES = 24  # of one case
MAX_LOOKED_AT = 300  # lines that may complain
MAX_LINE = 240
MAX_FRAMES = 12
LAST_LINES, MAX_LAST_WORDS, LEAST_WORDS = 20, 2, 4

_MAY_COMPLAIN = re.compile(
    r"(?i)error|fail|exception|fatal|abort|assert|cannot|can't|unable|denied|not found|no such|killed|invalid|illegal|"
    r"timed? ?out|out of memory|unsupported|mismatch|refused|unexpected|exceed|signal|\bWARN|undefined symbol|missing"
)
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Exit)\b")
_SOURCE_FILE = re.compile(r"[\w+-]+\.(?:py|cpp|cc|cu|cuh|h|hpp|c|so(?:\.\d+)*|json|yaml|onnx|engine|safetensors)$")
_DIGITS = re.compile(r"\d+")

# In this order: what holds digits and has a meaning of its own goes before plain numbers.
_CHANGING: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\b[a-z][a-z0-9+.-]{1,15}://[^\s'\"<>)\]]+", "<url>"),
        (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b", "<id>"),
        (r"\b\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?", "<time>"),
        (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "<time>"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<host>"),
        (r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}\b", "<host>"),
        (r"\b[\w-]+(?:\.[\w-]+)*\.(?:local|internal|corp|lan|cluster|com|net|org|io)\b(?::\d+)?", "<host>"),
        (r"(?i)\b((?:host|node|hostname|nodename|machine|peer|worker)(?: name)?[ =:]+)(?!is\b|was\b|has\b|not\b|memory\b|rank\b|and\b|to\b)['\"]?[\w.-]*\d[\w.-]*", r"\1<host>"),
        (r"\b[\w.-]+:\d+:\d+(?= \[)", "<host>"),
        (r"\b0[xX][0-9a-fA-F]+\b", "<hex>"),
        (r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "<hex>"),
        (r"(?<![\w<])(?:\d+(?:[.,]\d+)*)(?:[eE][+-]?\d+)?(?: ?(?:[KMGT]i?B|[kKMG]?B|bytes|[mun]?s)\b)?", "#"),
    )
)  # fmt: skip
_PATH = re.compile(r"(?<![\w.<:/])(?:~|\.{1,2})?/(?:[\w.@+~-]+/)*[\w.@+~-]*|(?<![\w./<])(?:[\w.@+~-]+/){2,}[\w.@+~-]+")
_NUMBERED = re.compile(r"(?<=[A-Za-z])[-_.]?\d+(?=$|[^\w])")  # node-17, rank3, worker_2
_SPACES = re.compile(r"\s+")


def normalize_line(message: str) -> str:
    """Return a message with placeholders for all that differs between two occurrences of one error."""
    text = _PATH.sub(_path_word, message[: 4 * MAX_LINE])
    for pattern, replacement in _CHANGING:
        text = pattern.sub(replacement, text)
    text = _NUMBERED.sub("#", text)
    return _SPACES.sub(" ", text).strip()[:MAX_LINE]


def _path_word(match: re.Match[str]) -> str:
    """Return what of a path stays the same elsewhere: a program's own file, or a place of the system."""
    path = match[0]
    name = path.rpartition("/")[2]
    if _SOURCE_FILE.search(name):
        return "<path>/" + _DIGITS.sub("#", name)
    place = re.match(r"/(?:dev|proc|sys|run)/[a-z]+", path)
    return place[0] + "/<path>" if place else "<path>"


def error_fingerprints(lines: Iterable[str]) -> list[str]:
    """Return the normalised complaints among the lines of a log, each once, in their order."""
    shapes: set[str] = set()
    fingerprints: dict[str, None] = {}
    for line in lines:
        if len(shapes) >= MAX_LOOKED_AT or len(fingerprints) >= MAX_LINES:
            break
        if not _MAY_COMPLAIN.search(line):
            continue
        shape = _DIGITS.sub("", line[:MAX_LINE])
        if shape in shapes:
            continue
        shapes.add(shape)
        if fingerprint := _complaint(line):
            fingerprints[fingerprint] = None
    return list(fingerprints)


def last_words(lines: Sequence[str]) -> list[str]:
    """Return the last lines that are not ordinary talk: what is left of a log, or a description, without complaints."""
    kept: list[str] = []
    for line in reversed(lines[-LAST_LINES:]):
        peeled = peel_line(line.strip()[: 4 * MAX_LINE])
        if peeled.level not in ("info", "debug", "trace") and len(peeled.message.split()) >= LEAST_WORDS:
            kept.append(normalize_line(peeled.message))
    return list(dict.fromkeys(kept))[:MAX_LAST_WORDS]


def line_fingerprint(line: str) -> str:
    """Return one line, whatever its level, without its layers and without what changes."""
    return normalize_line(peel_line(line.strip()).message)


def _complaint(line: str) -> str:
    peeled = peel_line(line.strip()[: 4 * MAX_LINE])
    if peeled.level in ("info", "debug", "trace"):
        return ""
    if peeled.level in ("error", "fatal") or _EXCEPTION.match(peeled.message):
        return normalize_line(peeled.message)
    return ""


_PYTHON_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line \d+, in (?P<name>[\w<>.]+)')
_NATIVE_FRAME = re.compile(
    r"(?:^|\s)(?:#?\d+:?\s+)?0x[0-9a-fA-F]{6,}\s+(?:in )?(?P<name>[A-Za-z_][\w:~<>, *&]{2,160}?)(?=\s*[(+]|\s*$)"
)
_LIBRARY_FRAME = re.compile(
    r"(?P<file>[\w.+-]+\.so)[\w.]*(?:\((?P<name>[\w:~]{0,120})\+0x[0-9a-f]+\)|\(\+0x[0-9a-f]+\))"
)


def stack_frames(lines: Iterable[str]) -> list[str]:
    """Return the functions of the stacks in a log, the innermost of the last Python stack first."""
    frames = dict.fromkeys(_frames_of_lines(lines))
    return list(frames)[::-1][:MAX_FRAMES]


def _frames_of_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if 'File "' in line and (match := _PYTHON_FRAME.search(line)):
            yield f"{match['file'].replace(chr(92), '/').rpartition('/')[2]}:{match['name']}"
        elif ("0x" in line) and (native := _NATIVE_FRAME.search(line)):
            yield native["name"].partition("<")[0].strip()
        elif ".so" in line and (library := _LIBRARY_FRAME.search(line)):
            yield f"{library['file']}:{library['name'] or '?'}"
