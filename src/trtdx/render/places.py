"""Which file and line a finding is about, for formats that point into files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.model import Where

if TYPE_CHECKING:
    from trtdx.model import Finding

# "rank0.log:3", "rank0.log:3: text"; then "config.json: some.key"; then a path alone.
_LINE = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>[1-9]\d{0,8})(?=:|,|\s|$)")
_KEY = re.compile(r"(?P<file>[^\s:][^:\n]*)(?=: )")
_PATH = re.compile(r"(?P<file>\S+)$")
_STREAMS = ("-", "<stdin>", "stdin", "standard input")


class FilePlace(NamedTuple):
    """A file, and the line in it where one is known."""

    file: str
    line: int | None = None


def parse_place(where: str | Where) -> FilePlace | None:
    """Return the file and line that a place names; None for a tensor, a stream or a command."""
    if isinstance(where, Where):
        return None
    for pattern in (_LINE, _KEY, _PATH):
        match = pattern.match(where)
        if match is None:
            continue
        file = match["file"]
        if file in _STREAMS or file.startswith("-") or not _is_file_name(file, has_line=pattern is _LINE):
            continue
        return FilePlace(file, int(match["line"]) if pattern is _LINE else None)
    return None


def _is_file_name(name: str, *, has_line: bool) -> bool:
    """Whether a text reads like a file: it has a line, a folder, or a short suffix and no blanks."""
    return has_line or "/" in name or bool(re.fullmatch(r"\S+\.[A-Za-z]\w{0,11}", name))


def place_of_finding(finding: Finding) -> FilePlace | None:
    """Return where a finding is, or the first of its evidence that lies in a file."""
    places = (parse_place(where) for where in (finding.where, *(item.where for item in finding.evidence)))
    return next((place for place in places if place is not None), None)
