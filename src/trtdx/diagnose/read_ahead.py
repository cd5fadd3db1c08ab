"""Reading ahead: the next segment is fetched by a second thread while the last one is looked through."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")
AHEAD = 2
_LOOK_UP_S = 0.2  # how often a waiting reader sees whether anyone still listens


class _End:
    """What the reader says last: there is no more, or what went wrong."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Reader(Generic[T]):
    """Makes items in a thread and hands them over through a short queue."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self.made: queue.Queue[T | _End] = queue.Queue(AHEAD)
        self.unheard = threading.Event()
        threading.Thread(target=self._make, name="trtdx-read", daemon=True).start()

    def _make(self) -> None:
        try:
            for item in self._items:
                self._give(item)
                if self.unheard.is_set():
                    return
            self._give(_End())
        except BaseException as err:  # it belongs to whoever listens
            self._give(_End(err))

    def _give(self, item: T | _End) -> None:
        delivered = False
        while not delivered and not self.unheard.is_set():
            with contextlib.suppress(queue.Full):
                self.made.put(item, timeout=_LOOK_UP_S)
                delivered = True


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; they are made in a thread, a few in advance. What goes wrong there is raised here."""
    reader = _Reader(items)
    try:
        while not isinstance(item := reader.made.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        reader.unheard.set()
