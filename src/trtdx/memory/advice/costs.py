"""What a change costs beside memory: one small table, in points that only compare with each other.

A point of accuracy is what users of an evaluated model notice last (FP8 weights are 1, four bits about 2); one of
throughput or latency is about a tenth; effort is a restart 0, an engine build 1, a conversion 2; money is one for each
GPU that is added for one there was. Limits (tokens, batch, seq) cost theirs for each halving. Negative points are gains. The table orders advice; it measures nothing.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import msgspec


class ChangeHarm(NamedTuple):
    """The costs of one change, and its words on speed."""

    accuracy: float = 0
    throughput: float = 0
    latency: float = 0
    effort: float = 0
    money: float = 0
    function: float = 0  # something that was asked for is given up
    words: str = ""  # what it does to throughput and latency

    @property
    def points(self) -> float:
        """Return the whole cost; a gain of speed makes up for a loss of speed, and for one point of the rest."""
        speed = max(self.throughput + self.latency, -1.0)
        rest = self.accuracy * 2 + self.function * 2 + self.effort + self.money * 6
        return max(rest + speed, 0.1)


_DATA = resources.files("trtdx").joinpath("data/change_harms.toml").read_bytes()
CHANGE_HARMS = {name: ChangeHarm(**values) for name, values in msgspec.toml.decode(_DATA).items()}
STAGE_EFFORT = {"launch": 0.0, "serve": 0.0, "build": 1.0, "convert": 2.0, "install": 3.0}
