"""What many executions had in common, in memory that does not grow with their number."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trtdx.formats.tensorrt.nouns import OptimizationProfile, TensorSpec

TensorShape = tuple[int, ...]
MAX_VALUES = 4096  # distinct sizes of an axis that are told apart
MAX_SHAPES = 256  # distinct shapes of a tensor that are told apart
MAX_SIGNATURES = 4096  # executions that differ in any shape, before they are folded into the statistics
MAX_CHANGES = 200
KEPT_EXECUTIONS = 3  # executions kept whole at either end
FINE_BITS = 8  # a size beyond the bound keeps so many leading bits


class SizeHistogram:
    """How often each size was seen; after many distinct ones, sizes within 1 % of each other are one."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._coarse = False
        self.low: int | None = None
        self.high: int | None = None

    def add(self, value: int, count: int) -> None:
        self.low = value if self.low is None else min(self.low, value)
        self.high = value if self.high is None else max(self.high, value)
        value = _round_size(value) if self._coarse else value
        self._counts[value] += count
        if len(self._counts) > MAX_VALUES and not self._coarse:
            counts, self._counts, self._coarse = self._counts, Counter(), True
            for size, times in counts.items():
                self._counts[_round_size(size)] += times

    def percentile(self, share: float) -> int:
        """Return the size that so large a share of the executions does not exceed."""
        total, cumulative = sum(self._counts.values()), 0
        for value in sorted(self._counts):
            cumulative += self._counts[value]
            if cumulative >= share * total:
                return value
        return self.high or 0

    @property
    def distinct(self) -> int:
        return len(self._counts)


def _round_size(value: int) -> int:
    shift = max(0, value.bit_length() - FINE_BITS)
    return value >> shift << shift


class TensorStatistics:
    """The shapes one tensor had in executions of one profile."""

    def __init__(self, dims: int) -> None:
        self.axes = [SizeHistogram() for _ in range(dims)]
        self.shapes: Counter[TensorShape] = Counter()
        self.others = 0  # executions with shapes beyond those told apart

    def add(self, shape: TensorShape, count: int) -> None:
        if len(shape) != len(self.axes):
            self.others += count
            return
        if shape in self.shapes or len(self.shapes) < MAX_SHAPES:
            self.shapes[shape] += count
        else:
            self.others += count
        for axis, size in zip(self.axes, shape, strict=True):
            axis.add(size, count)

    @property
    def varies(self) -> bool:
        return len(self.shapes) > 1


class LoggedExecution(NamedTuple):
    """One run of an engine as its table told it; the shapes are in the order of the engine's names."""

    number: int
    where: str
    rank: int | None
    profile: int
    shapes: tuple[TensorShape, ...]


class ShapeChange(NamedTuple):
    """An execution whose shapes differ from those of the one before it on the same rank."""

    number: int
    where: str
    rank: int | None
    profile: int
    changed: dict[str, tuple[TensorShape, TensorShape]]  # before, after


class LoggedEngine:
    """An engine a log tells of: its inputs and outputs, its profiles, and the shapes it was run with."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.tensors: tuple[TensorSpec, ...] = ()
        self.profiles: tuple[OptimizationProfile, ...] = ()
        self.executions = 0
        self.by_rank: Counter[int | None] = Counter()
        self.by_profile: Counter[int] = Counter()
        self.first: list[LoggedExecution] = []
        self.last: deque[LoggedExecution] = deque(maxlen=KEPT_EXECUTIONS)
        self.changes: list[ShapeChange] = []
        self.changed: Counter[str] = Counter()  # how often each tensor's shape changed from step to step
        self.change_count = 0
        self._before: dict[int | None, tuple[TensorShape, ...]] = {}
        self._pending: Counter[tuple[int, tuple[TensorShape, ...]]] = Counter()
        self._statistics: dict[int, dict[str, TensorStatistics]] = {}

    def add_execution(self, where: str, rank: int | None, profile: int, shapes: tuple[TensorShape, ...]) -> None:
        """Take one execution; `shapes` are in the order of `names`."""
        self.executions += 1
        self.by_rank[rank] += 1
        self.by_profile[profile] += 1
        self._pending[profile, shapes] += 1
        if len(self._pending) > MAX_SIGNATURES:
            self._fold_pending()
        execution = LoggedExecution(self.executions, where, rank, profile, shapes)
        (self.first if len(self.first) < KEPT_EXECUTIONS else self.last).append(execution)
        if self._before.get(rank, shapes) != shapes:
            self._add_change(execution)
        self._before[rank] = shapes

    def _add_change(self, execution: LoggedExecution) -> None:
        self.change_count += 1
        pairs = zip(self.names, self._before[execution.rank], execution.shapes, strict=True)
        changed = {name: (old, new) for name, old, new in pairs if old != new}
        self.changed.update(changed.keys())
        if len(self.changes) < MAX_CHANGES:
            self.changes.append(ShapeChange(*execution[:4], changed))

    def statistics(self) -> dict[int, dict[str, TensorStatistics]]:
        """Return the statistics of each tensor by profile."""
        self._fold_pending()
        return self._statistics

    def _fold_pending(self) -> None:
        for (profile, shapes), count in self._pending.items():
            tensors = self._statistics.setdefault(profile, {})
            for name, shape in zip(self.names, shapes, strict=True):
                if name not in tensors:
                    tensors[name] = TensorStatistics(len(shape))
                tensors[name].add(shape, count)
        self._pending.clear()

    def varying_tensors(self) -> list[str]:
        """Return the tensors that did not always have the same shape."""
        return [name for name in self.names if name in self.changed] or [
            name for name in self.names if len(self._shapes_of_tensor(name)) > 1
        ]

    def _shapes_of_tensor(self, name: str) -> set[TensorShape]:
        tables = self.statistics().values()
        return {shape for table in tables if name in table for shape in table[name].shapes}
