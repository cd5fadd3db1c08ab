"""Collectives and messages as they are called, each with its number in its group, written into the ring."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from .ring import BEGIN, COLLECTIVE, END, FAILED, ISSUED, MESSAGE, SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from .process import SupervisedProcess

OWN_FOLDER = __file__.rpartition("/")[0]


class CollectiveLog:
    """Numbers calls by group and in all. Only the outermost of nested calls is written: what a library does inside is its own."""

    def __init__(self, process: SupervisedProcess) -> None:
        self._ring = process.ring
        self._process = process
        self._numbers: dict[str, int] = {}
        self._count = 0
        self._groups: set[str] = set()
        self._thread = threading.local()

    def add_group(self, group: str, members: list[int]) -> None:
        """Write down who is in a group, in the numbers of the whole world."""
        if group not in self._groups:
            self._groups.add(group)
            self._process.journal.add_event("group", group=group, members=members)

    def call_collective(
        self, name: str, group: str, data: str, call: Callable[..., Any], args: Any, options: Any, later: bool = False
    ) -> Any:
        """Call, with a record before and after; `data` is what all members must agree on, as `key=value` words."""
        if getattr(self._thread, "inside", False):
            return call(*args, **options)
        number = self._numbers[group] = self._numbers.get(group, 0) + 1
        self._count += 1
        text = SEPARATOR.join((name, group, str(number), str(self._count), data, _caller()))
        return self._call(COLLECTIVE, text, call, args, options, later)

    def call_message(
        self, name: str, group: str, data: str, call: Callable[..., Any], args: Any, options: Any, later: bool = False
    ) -> Any:
        if getattr(self._thread, "inside", False):
            return call(*args, **options)
        text = SEPARATOR.join((name, group, "0", "0", data, _caller()))
        return self._call(MESSAGE, text, call, args, options, later)

    def _call(self, kind: int, text: str, call: Callable[..., Any], args: Any, options: Any, later: bool) -> Any:
        begun = self._ring.add_record(kind, ISSUED if later else BEGIN, text)
        self._thread.inside = True
        try:
            result = call(*args, **options)
        except BaseException:
            self._ring.add_record(kind, FAILED, "", begun)
            raise
        finally:
            self._thread.inside = False
        if not later:
            self._ring.add_record(kind, END, "", begun)
        return result


def _caller() -> str:
    """Return the place in the user's program that called."""
    frame: Any = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename.startswith(OWN_FOLDER):
        frame = frame.f_back
    return f"{frame.f_code.co_filename[-80:]}:{frame.f_lineno}" if frame is not None else ""
