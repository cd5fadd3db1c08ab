"""The nouns of the smoke test: what is to be tried, and what the ranks said."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from trtdx.ranks.collect import Launch
    from trtdx.ranks.launchers import RankLauncher

DEFAULT_SIZES = (8, 65_536, 1 << 20, 16 << 20)


class SmokeQuestion(NamedTuple):
    """What the smoke test is to try."""

    launcher: RankLauncher
    expected: int
    python: str = "python3"
    backend: str = "mpi"
    spawn: int = 0
    sizes: tuple[int, ...] = DEFAULT_SIZES
    step_s: float = 20.0
    start_s: float = 60.0
    master: tuple[str, int] = ("127.0.0.1", 29_617)

    @property
    def timeout_s(self) -> float:
        """The time after which the launcher itself is ended, whatever its ranks say."""
        pairs = self.expected * (self.expected - 1) // 2
        return self.start_s + self.step_s * 4 + min(600.0, 0.5 * pairs + 2.0 * self.expected) + 30.0


class SmokeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a rank said."""

    event: str
    rank: int
    size: int = 0
    host: str = ""
    pid: int = 0
    library: str = ""
    stated: int = 0
    cpus: int = 0
    number: int = 0
    kind: str = ""
    peers: tuple[int, ...] = ()
    error: str = ""
    is_data: bool = False
    tail: str = ""
    pair: tuple[int, int] = (0, 0)
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    times: tuple[dict[str, Any], ...] = ()

    @property
    def is_pair(self) -> bool:
        """Whether the step is one of two ranks."""
        return self.kind in ("contact", "send_receive")

    @property
    def step_words(self) -> str:
        """The step in words: "contact between ranks 0 and 2 of 16777216 bytes"."""
        between = f" between ranks {self.peers[0]} and {self.peers[1]}" if self.is_pair else ""
        size = f" of {self.size} bytes" if self.size else ""
        return f"{self.kind or 'start'}{between}{size}"


class SmokeRun(NamedTuple):
    """What the ranks of one smoke test said, and how the launcher ended."""

    question: SmokeQuestion
    events: tuple[SmokeEvent, ...]
    launch: Launch

    def of_kind(self, event: str) -> list[SmokeEvent]:
        return sorted((entry for entry in self.events if entry.event == event), key=lambda entry: entry.rank)

    @property
    def crowded_hosts(self) -> set[str]:
        """Hosts with more ranks than cores, where times say little."""
        starts = self.of_kind("start")
        counts = Counter(entry.host for entry in starts)
        return {entry.host for entry in starts if 0 < entry.cpus < counts[entry.host]}

    @property
    def host_of_rank(self) -> dict[int, str]:
        return {entry.rank: entry.host for entry in self.of_kind("start")}
