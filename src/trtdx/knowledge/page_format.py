"""The one layout of a rule page: its keys and sections in a fixed order. `trtdx rules fmt` writes it.

Values are moved as they are written, with the comments above them, so a long pattern or table keeps its shape;
a page whose meaning would change is refused.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from trtdx.errors import RulePageError
from trtdx.model import Fix
from trtdx.rule import (
    EXAMPLE_SECTIONS,
    PAGE_SECTIONS,
    DescriptionPattern,
    EvidencePattern,
    FindingTemplate,
    LogPattern,
    PageProblem,
)

PAGE_KEYS = (
    "code", "slug", "severity", "stage", "area", "kind", "since", "retired", "replaced_by", "holds_for", "checked", "source",
    "message", "verify", "described", "follows", "computed", "harm",
)  # fmt: skip
TABLES: dict[str, type[msgspec.Struct]] = {
    "found": FindingTemplate,
    "fix": Fix,
    "log": LogPattern,
    "told": DescriptionPattern,
    "evidence": EvidencePattern,
}  # in the order they are written in
SECTION_ORDER = (*PAGE_SECTIONS, *EXAMPLE_SECTIONS)
KEY = re.compile(r"([A-Za-z_][\w-]*)\s*=\s*(?=\S)")
HEADER = re.compile(r"\[\[?(\w+)\]\]?\s*(#.*)?$")


class _Entry(NamedTuple):
    """A key with all lines of its value and the comments above it."""

    key: str
    lines: list[str]


class _Table(NamedTuple):
    """A table of the front matter: its header with the comments above it, and its entries."""

    name: str  # "" for what stands before the first header
    header: list[str]
    entries: list[_Entry]


def format_page(text: str, path: str) -> str:
    """Return the page in the house's layout."""
    split = re.match(r"\+\+\+\r?\n(.*?)^\+\+\+\r?\n(.*)\Z", text.replace("\r\n", "\n"), re.DOTALL | re.MULTILINE)
    if split is None:
        raise RulePageError(f"{path} does not start with front matter between two lines of +++")
    front = format_front_matter(split[1])
    try:
        same = msgspec.toml.decode(front) == msgspec.toml.decode(split[1])
    except msgspec.DecodeError as err:
        raise RulePageError(f"{path}: the front matter is not TOML: {err}") from err
    if not same:
        raise RulePageError(f"{path}: the front matter cannot be put in order without changing its meaning")
    return f"+++\n{front}+++\n{format_body(split[2])}"


def format_front_matter(text: str) -> str:
    """Return the front matter with its tables and keys in order."""
    tables = _split_tables(text.splitlines())
    order = ["", *TABLES]
    tables.sort(key=lambda table: order.index(table.name) if table.name in order else len(order))
    blocks = [[*table.header, *(line for entry in _sort_entries(table) for line in entry.lines)] for table in tables]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def format_body(text: str) -> str:
    """Return the body with its sections in order and without stray blank lines."""
    head, *parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    sections = {part.partition("\n")[0][3:].strip(): part for part in parts}
    names = [name for name in SECTION_ORDER if name in sections]
    names[3:3] = [name for name in sections if name not in SECTION_ORDER]  # a page's own, before its examples
    blocks = [head, *(sections[name] for name in names)]
    return "\n".join(line.rstrip() for block in blocks for line in block.strip("\n").splitlines()) + "\n"


def _sort_entries(table: _Table) -> list[_Entry]:
    keys = TABLES[table.name].__struct_fields__ if table.name in TABLES else PAGE_KEYS
    return sorted(table.entries, key=lambda entry: keys.index(entry.key) if entry.key in keys else len(keys))


def _split_tables(lines: list[str]) -> list[_Table]:
    """Return the tables of the front matter as they stand."""
    tables = [_Table("", [], [])]
    above: list[str] = []  # comments that belong to what follows
    number = 0
    while number < len(lines):
        line = lines[number].rstrip()
        if not line.strip() or line.lstrip().startswith("#"):
            above += [line] if line.strip() else []
        elif header := HEADER.match(line):
            tables.append(_Table(header[1], [*above, line], []))
            above = []
        elif key := KEY.match(line):
            end = _end_of_value(lines, number, key.end())
            tables[-1].entries.append(_Entry(key[1], [*above, *(row.rstrip() for row in lines[number : end + 1])]))
            above, number = [], end
        else:
            raise RulePageError(f"cannot tell what this line of front matter is: {line}")
        number += 1
    tables[-1].entries.append(_Entry("", above))
    return tables


def _end_of_value(lines: list[str], number: int, column: int) -> int:
    """Return the line on which the value that begins here ends: the first at which it is TOML."""
    for end in range(number, len(lines)):
        value = "\n".join([lines[number][column:], *lines[number + 1 : end + 1]])
        try:
            msgspec.toml.decode(f"value = {value}")
        except msgspec.DecodeError:
            continue
        return end
    raise RulePageError(f"the value does not end: {lines[number]}")


def check_layout(text: str, path: str) -> list[PageProblem]:
    """Return the first line that `trtdx rules fmt` would change, if there is one."""
    try:
        lines = format_page(text, path).splitlines()
    except RulePageError as err:
        return [PageProblem(path, 1, err.message)]
    pairs = zip_longest(text.splitlines(), lines)
    number = next((number for number, (line, tidy_line) in enumerate(pairs, 1) if line != tidy_line), None)
    return [] if number is None else [PageProblem(path, number, "not in the layout of a page: trtdx rules fmt")]
