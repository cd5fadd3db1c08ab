"""What moves between the parts of a comparison."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.model import Where as Where

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from trtdx.capture.store.reader import TensorRecord
    from trtdx.tensors.difference import TensorDifference

    Array = np.ndarray[Any, Any]


class LayoutChange(NamedTuple):
    """One change of layout: what it is, in words that a mapping file keeps, and how it is made."""

    text: str  # "transpose 0 2 1 3", "part q of qkv", "sum over ranks"
    apply: Callable[[Array], Array]


class AlignedTensor(NamedTuple):
    """One tensor of one side, made of one record or of several (shards, parts), and changed in layout."""

    records: tuple[TensorRecord, ...]  # those of one step are shards, several steps follow each other
    join: str = ""  # of a step's shards: "", "concatenate AXIS", "sum", or "tokens" where each has some
    changes: tuple[LayoutChange, ...] = ()  # of each record
    joined_changes: tuple[LayoutChange, ...] = ()  # of the rows, once shards are joined

    @property
    def first(self) -> TensorRecord:
        return self.records[0]

    @property
    def is_unchanged(self) -> bool:
        """Whether it is one record as that was captured."""
        return len(self.records) == 1 and not (self.join or self.changes or self.joined_changes)


class TokenRows:
    """Which rows of the two tensors are the same token; rows count sequences and tokens of all records, padding too."""

    __slots__ = ("candidate", "position", "reference", "sequence")

    def __init__(self, reference: Array, candidate: Array, sequence: Array, position: Array) -> None:
        self.reference, self.candidate = reference, candidate
        self.sequence, self.position = sequence, position  # positions count without padding

    def __len__(self) -> int:
        return len(self.reference)


class TensorPair(NamedTuple):
    """The same tensor on both sides."""

    name: str  # the reference's name of it
    step: int
    reference: AlignedTensor
    candidate: AlignedTensor
    matched_by: str  # "name", "scope", "shape and order", "map"
    token_axis: int | None = None  # of both, after the changes; rows of padding are left out along it
    position: int = 0  # in the reference's data flow
    tokens: TokenRows | None = None  # the rows to compare; none: all, one by one
    note: str = ""  # what is to be known about the alignment
    confidence: float = 1.0  # that the two are the same tensor

    @property
    def has_values(self) -> bool:
        """Whether the values of both tensors were kept."""
        return all(record.kept for record in (*self.reference.records, *self.candidate.records))


class UnmatchedTensor(NamedTuple):
    """A tensor that has no counterpart, and why."""

    side: str  # "reference" or "candidate"
    name: str
    step: int
    reason: str


class PairVerdict(str, Enum):
    """The verdict on a pair's difference."""

    SAME = "same"  # bitwise
    NOISE = "noise"  # within what the precision explains
    WRONG = "wrong"
    POISONED = "poisoned"  # wrong, because something before it was
    UNKNOWN = "unknown"  # cannot be told, and why is said


class JudgedPair(NamedTuple):
    """A pair, how it differs, and whether that is more than expected."""

    pair: TensorPair
    difference: TensorDifference | None  # none where only hashes or statistics could be compared
    observed: float  # the error of the worst token, relative to the reference
    expected: float  # what the candidate's precision explains
    limit: float  # how much more than expected is still honest
    verdict: PairVerdict
    confidence: float
    basis: str  # "local replay in float64", "honest run in bfloat16", "error model", "tolerance 1e-3"
    tokens: tuple[int, ...] = ()  # the positions that are wrong, worst first
    note: str = ""

    @property
    def ratio(self) -> float:
        """Observed over expected: healthy is about 1."""
        return self.observed / self.expected if self.expected else float("inf") if self.observed else 0.0


class CauseHypothesis(msgspec.Struct, frozen=True):
    """A hypothesis that was tried: its rule, how much of the difference it explains, and its numbers for the page."""

    code: str
    share: float  # of the squared difference; 1 explains it all
    values: dict[str, str] = {}
    tested_by: str = ""  # how it was tested, in words
