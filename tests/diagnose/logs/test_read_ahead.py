from __future__ import annotations

import threading
import time

import pytest

from trtdx.diagnose.logs.read_ahead import QUEUE_LENGTH, read_ahead


def test_all_items_come_in_order():
    assert list(read_ahead(range(1000))) == list(range(1000))
    assert list(read_ahead([])) == []


def test_an_error_of_the_maker_is_raised_where_the_items_are_used():
    def items():
        yield 1
        raise ValueError("damaged")

    got = read_ahead(items())
    assert next(got) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(got)


@pytest.mark.heavy
def test_only_a_few_items_are_made_in_advance_and_none_after_the_listener_left():
    made = []

    def items():
        for number in range(1000):
            made.append(number)
            yield number

    got = read_ahead(items())
    assert next(got) == 0
    got.close()
    deadline = time.monotonic() + 10
    while any(thread.name == "trtdx-read" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(made) <= QUEUE_LENGTH + 3
