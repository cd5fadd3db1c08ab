"""Nouns of a trace: spans as they were read, and the ledger of time that they become."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    import numpy as np


class SpanKind(IntEnum):
    """What a span is a record of."""

    OPERATOR = 0  # computes on the host: an operator of torch or ONNX Runtime
    HOST = 1  # code of the host: annotations, NVTX ranges, Python functions
    LAUNCH = 2  # a call of the CUDA runtime or driver
    SYNC = 3  # such a call that waits for the device
    KERNEL = 4
    COMMUNICATION = 5
    COPY = 6  # between devices, or within one

    @property
    def is_on_device(self) -> bool:
        return self in (SpanKind.KERNEL, SpanKind.COPY)


class Category(IntEnum):
    """What an instant of wall time is spent on; the first that holds wins."""

    COMPUTE = 0
    COMMUNICATION = 1  # exposed: nothing is computed meanwhile
    WAIT = 2  # in a collective, for ranks that have not come yet
    COPY = 3
    HOST = 4  # the device, or the operators, wait for code of the host
    IDLE = 5  # nothing was recorded
    QUEUE = 6  # a request that nobody works on yet

    @property
    def words(self) -> str:
        return CATEGORY_WORDS[self]


CATEGORY_WORDS = {
    Category.COMPUTE: "compute",
    Category.COMMUNICATION: "exposed communication",
    Category.WAIT: "waiting for other ranks",
    Category.COPY: "copies",
    Category.HOST: "host gaps",
    Category.IDLE: "idle",
    Category.QUEUE: "queueing",
}


class SpanName(NamedTuple):
    """A name that spans have, and everything that can be told from it alone."""

    text: str
    kind: SpanKind
    phase: str = ""  # "prefill", "decode", "mixed", "sampling", "scheduling", "transfer", "responses"
    module: str = ""  # "layers.3.mlp"
    is_nested_module: bool = False  # the name of a class, which is a path only below the modules around it
    cause: str = ""  # the cause that time below this span has
    is_specific: bool = False  # whether the cause outranks those of the calls inside
    step: StepWords | None = None
    operator: str = ""  # "MatMul", "aten::addmm"
    provider: str = ""


class StepWords(NamedTuple):
    """What the name of a step says of it."""

    number: int = -1
    context_requests: int = -1
    context_tokens: int = -1
    generation_requests: int = -1

    @property
    def phase(self) -> str:
        if self.context_requests < 0:
            return ""
        if self.context_requests and self.generation_requests > 0:
            return "mixed"
        return "prefill" if self.context_requests else "decode"


class TrackKey(NamedTuple):
    """A thread of the host, or a stream of a device."""

    process: int | str
    thread: int | str


class SpanTable:
    """The spans of one file in columns, since there may be millions; times in microseconds."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.rank: int | None = None
        self.world_size = 0
        self.names: list[SpanName] = []
        self.tracks: list[TrackKey] = []
        self.track_names: dict[TrackKey, str] = {}
        self.start, self.duration = array("d"), array("d")
        self.name, self.track = array("i"), array("i")
        self.link = array("q")  # joins a launch and what it launched; 0: nothing
        self.amount = array("f")  # bytes of a copy, elements of a collective
        self.problems: list[str] = []
        self.bytes_read, self.skipped = 0, 0  # skipped: damaged spans
        self.is_synthetic_clock = False  # whether only lengths were recorded, not when they were
        self._name_ids: dict[tuple[str, SpanKind], int] = {}
        self._track_ids: dict[TrackKey, int] = {}

    def __len__(self) -> int:
        return len(self.start)

    def add_name(self, name: SpanName) -> int:
        """Return the number of a name, which is added if it is new."""
        key = (name.text, name.kind)
        if key not in self._name_ids:
            self._name_ids[key] = len(self.names)
            self.names.append(name)
        return self._name_ids[key]

    def add_track(self, process: int | str, thread: int | str) -> int:
        """Return the number of a track, which is added if it is new."""
        key = TrackKey(process, thread)
        if key not in self._track_ids:
            self._track_ids[key] = len(self.tracks)
            self.tracks.append(key)
        return self._track_ids[key]

    def add_span(
        self, name: int, track: int, start: float, duration: float, *, link: int = 0, amount: float = 0.0
    ) -> None:
        self.start.append(start)
        self.duration.append(duration)
        self.name.append(name)
        self.track.append(track)
        self.link.append(link)
        self.amount.append(amount)


class Context(NamedTuple):
    """What an instant belongs to."""

    category: Category
    name: str = ""  # the operator, kernel or piece of host code
    module: str = ""
    phase: str = ""
    cause: str = ""
    operator: str = ""
    provider: str = ""


IDLE = Context(Category.IDLE)


class LoopStep(NamedTuple):
    """One iteration of the loop; times in microseconds."""

    number: int
    start: float
    end: float
    phase: str = ""
    context_requests: int = -1
    context_tokens: int = -1
    generation_requests: int = -1

    @property
    def duration(self) -> float:
        return self.end - self.start


class Segments(NamedTuple):
    """Stretches of time that do not overlap, in order, each with the number of its context."""

    start: np.ndarray
    end: np.ndarray
    context: np.ndarray

    @property
    def duration(self) -> np.ndarray:
        length: np.ndarray = self.end - self.start
        return length


class CollectiveCall(NamedTuple):
    """One call of a collective on one rank."""

    name: str
    start: float
    end: float
    elements: float = 0.0


class RankTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The wall time of one rank, every instant of it once."""

    rank: int
    path: str
    source: str
    segments: Segments
    contexts: tuple[Context, ...]
    steps: tuple[LoopStep, ...]
    collectives: tuple[CollectiveCall, ...] = ()
    launches: int = 0
    kernels: int = 0
    graph_launches: tuple[float, ...] = ()  # when each was made
    sync_ends: tuple[float, ...] = ()  # when the host came back from waiting for the device
    has_device: bool = False
    is_synthetic_clock: bool = False
    clock_shift: float = 0.0  # that was added to its times, so that collectives end together

    @property
    def wall(self) -> float:
        return float(self.segments.end[-1] - self.segments.start[0]) if len(self.segments.start) else 0.0


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration as the executor itself reports it; times in milliseconds, -1 where they are not told."""

    index: int
    rank: int = 0
    host_ms: float = -1
    device_ms: float = -1
    scheduled: int = -1
    context_requests: int = -1
    context_tokens: int = -1
    generation_tokens: int = -1
    generation_requests: int = -1
    paused: int = 0
    queued: int = -1
    active: int = -1
    max_active: int = -1
    kv_used: int = -1
    kv_max: int = -1
    reused_blocks: int = -1
    missed_blocks: int = -1
    max_tokens: int = -1
    drafted: int = 0
    accepted: int = 0
    acceptance_length: float = -1
    where: str = ""

    @property
    def wall_ms(self) -> float:
        return max(self.host_ms, self.device_ms)


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The life of one request, in seconds of one clock."""

    name: str
    arrival: float
    scheduled: float
    first_token: float
    last_token: float
    server_arrival: float = -1
    server_first_token: float = -1
    transfer_start: float = -1
    transfer_end: float = -1
    reused_blocks: int = -1
    missed_blocks: int = -1
    acceptance_rate: float = -1
    where: str = ""

    @property
    def transfer(self) -> float:
        return self.transfer_end - self.transfer_start if self.transfer_start >= 0 else 0.0


class BenchmarkFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark's report says; times in milliseconds, rates per second, -1 where it is not told."""

    tool: str
    path: str
    ttft_ms: float = -1
    ttft_p99_ms: float = -1
    tpot_ms: float = -1
    request_latency_ms: float = -1
    output_tokens_per_s: float = -1
    requests: int = -1
    input_length: float = -1
    output_length: float = -1
    concurrency: float = -1
    tp: int = -1
    pp: int = -1
    max_batch_size: int = -1


class Recordings(msgspec.Struct, kw_only=True):
    """Everything that was read of all files."""

    tables: list[SpanTable] = []
    iterations: list[Iteration] = []
    requests: list[RequestTimes] = []
    benchmarks: list[BenchmarkFigures] = []
    problems: list[str] = []
    files: int = 0
    bytes_read: int = 0
