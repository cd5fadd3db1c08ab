"""How long causes are looked for: a word, or seconds."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from trtdx.errors import InputError

EFFORT_SECONDS = {"quick": 10.0, "normal": 60.0, "thorough": math.inf}


class Effort(NamedTuple):
    """How many seconds causes are looked for after the place is known."""

    seconds: float

    def deadline(self) -> float:
        """Return when to stop, on the monotonic clock."""
        return time.monotonic() + self.seconds


NORMAL_EFFORT = Effort(EFFORT_SECONDS["normal"])


def parse_effort(text: str) -> Effort:
    """Return what "quick", "normal", "thorough" or a number of seconds means."""
    if text in EFFORT_SECONDS:
        return Effort(EFFORT_SECONDS[text])
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise InputError(f"--effort {text} is neither quick, normal, thorough nor a number of seconds")
    return Effort(seconds)
