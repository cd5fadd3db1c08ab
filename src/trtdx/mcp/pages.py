"""Answers in pages that fit an assistant's context, and cursors to ask for the next."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.redact import redact_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.model import Report

PAGE_BYTES = 20_000
MAX_STRING = 4_000
KEPT_ANSWERS = 32


def plain_data(data: Any) -> Any:
    """Return any answer as JSON has it, without secrets, long texts cut."""
    return _cut_strings(redact_value(msgspec.json.decode(msgspec.json.encode(data))))


def _cut_strings(data: Any) -> Any:
    if isinstance(data, str):
        return (
            data if len(data) <= MAX_STRING else f"{data[:MAX_STRING]} ... ({len(data) - MAX_STRING} more characters)"
        )
    if isinstance(data, dict):
        return {key: _cut_strings(value) for key, value in data.items()}
    return [_cut_strings(item) for item in data] if isinstance(data, list) else data


def pages_of_report(report: Report) -> list[dict[str, Any]]:
    """Return a report as one or more of the same form: findings first, then the rows of tables, in their order."""
    whole = plain_data(report)
    lists = {key: value for key, value in whole.items() if isinstance(value, list)}
    frame = {key: value for key, value in whole.items() if key not in lists} | {key: [] for key in lists}
    pages = [_ReportPage(frame)]
    for key, section, item in _items(lists):
        size = len(msgspec.json.encode(item))
        if not pages[-1].has_room(size):
            pages.append(_ReportPage(frame))
        pages[-1].add(key, section, item, size)
    return [page.data for page in pages]


def _items(lists: dict[str, list[Any]]) -> Iterator[tuple[str, dict[str, Any] | None, Any]]:
    """Yield what a report lists, piece by piece: (field, the table a row belongs to, the piece)."""
    for key in sorted(lists, key=lambda key: key != "findings"):
        for item in lists[key]:
            if key != "sections":
                yield key, None, item
                continue
            for row in item["rows"]:
                yield key, item, row


class _ReportPage:
    """A report that is filled until it is full."""

    def __init__(self, frame: dict[str, Any]) -> None:
        self.data = {key: [] if isinstance(value, list) else value for key, value in frame.items()}
        self._size = self._items = 0
        self._section: dict[str, Any] | None = None

    def has_room(self, size: int) -> bool:
        return not self._items or self._size + size <= PAGE_BYTES

    def add(self, key: str, section: dict[str, Any] | None, item: Any, size: int) -> None:
        self._size, self._items = self._size + size, self._items + 1
        if section is None:
            self.data[key].append(item)
            return
        if section is not self._section:
            self._section = section
            self.data[key].append({**section, "rows": []})
        self.data[key][-1]["rows"].append(item)


class KeptAnswers:
    """The last answers, so that their further pages can be asked for."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def keep(self, pages: list[dict[str, Any]]) -> str:
        """Return the name under which an answer's pages are kept; empty where there is only one."""
        if len(pages) < 2:
            return ""
        name = secrets.token_hex(8)
        self._answers[name] = pages
        while len(self._answers) > KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return name

    def page(self, cursor: str) -> tuple[dict[str, Any], str | None]:
        """Return the page that a cursor means, and the cursor of the one after it.

        Raises:
            InputError: nobody gave out such a cursor, or too long ago.
        """
        name, _, number = cursor.partition(".")
        pages = self._answers.get(name)
        if pages is None or not number.isdigit() or int(number) >= len(pages):
            raise InputError("this cursor is unknown or too old", fix="call the tool again")
        following = int(number) + 1
        return pages[int(number)], f"{name}.{following}" if following < len(pages) else None
