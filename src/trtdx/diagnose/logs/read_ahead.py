"""Reading ahead: the next segment is fetched by a second thread while the last one is looked through."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")
QUEUE_LENGTH = 2
_LOOK_UP_S = 0.2  # how often a waiting reader sees whether anyone still listens


class _QueueEnd(NamedTuple):
    """What the reader says last: there is no more, or what went wrong."""

    error: BaseException | None = None


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; they are made in a thread, a few in advance. What goes wrong there is raised here."""
    ready: queue.Queue[T | _QueueEnd] = queue.Queue(QUEUE_LENGTH)
    abandoned = threading.Event()
    # a daemon: one that waits for a silent pipe does not keep the program from ending
    threading.Thread(target=_produce_items, args=(items, ready, abandoned), name="trtdx-read", daemon=True).start()
    try:
        while not isinstance(item := ready.get(), _QueueEnd):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        abandoned.set()


def _produce_items(items: Iterable[T], ready: queue.Queue[T | _QueueEnd], abandoned: threading.Event) -> None:
    try:
        for item in items:
            if not _put_item(item, ready, abandoned):
                return
        _put_item(_QueueEnd(), ready, abandoned)
    except BaseException as err:  # it belongs to whoever listens
        _put_item(_QueueEnd(err), ready, abandoned)


def _put_item(item: T | _QueueEnd, ready: queue.Queue[T | _QueueEnd], abandoned: threading.Event) -> bool:
    """Hand an item over, unless nobody listens any more; return whether somebody does."""
    while not abandoned.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(item, timeout=_LOOK_UP_S)
            return True
    return False
