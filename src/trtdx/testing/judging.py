"""One test against its golden, or into it; what comes of it travels with the test's report.

Reports are what pytest-xdist carries from its workers to the process that writes files, so that recording works
alike with and without it, and a worker that crashes loses no test but its own.
"""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.capture.goldens.check import CLOSE, NEW, Comparison, compare_with_golden
from trtdx.capture.goldens.store import Golden, GoldenFile, Stored, content_key, golden_tensor, stored_values
from trtdx.tensors.statistics import kernel_in_use
from trtdx.version import __version__
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.testing.dx import Dx

COMPARED, CHANGED, RECORDED, NO_GOLDEN, NO_TENSORS, LEFT_OUT = (
    "compared", "changed", "recorded", "no golden", "no tensors", "left out",
)  # fmt: skip


class NotFinite(msgspec.Struct, frozen=True):
    """A tensor of a test that holds NaN or infinities."""

    name: str
    what: str  # "3 NaN and 1 +Inf"
    elements: int


class Told(msgspec.Struct):
    """What one test tells the process that writes."""

    module: str  # the path of the test's file
    test: str  # its id in there
    outcome: str
    compared: int = 0
    close: int = 0  # of them, differing within the tolerance
    new: tuple[str, ...] = ()  # tensors that are not in the golden
    not_finite: tuple[NotFinite, ...] = ()
    change: str = ""  # while recording, what changed first
    golden: Golden | None = None  # to be recorded
    values: dict[str, Stored] = {}

    def packed(self) -> str:
        return msgspec.json.encode(self).decode()


def unpacked(text: str) -> Told:
    return msgspec.json.decode(text, type=Told)


class Judged(NamedTuple):
    """What came of a test: what to tell, the comparison if there was one, and why the test is to fail."""

    told: Told
    comparison: Comparison | None
    problem: str


def judged(told: Told, dx: Dx | None, file: GoldenFile, *, record: bool, values_bytes: int) -> Judged:
    """Compare what a test saw with its golden or, when recording, make a new one."""
    before = file.goldens.get(told.test)
    if dx is None or not dx.tensors:
        told.outcome = NO_TENSORS
        problem = _nothing_to_compare(before) if before is not None and not record else ""
        return Judged(told, None, problem)
    now = golden_of(told.test, dx)
    comparison = _compared(before, file, now, dx) if before is not None else None
    if comparison is not None:
        told.compared, told.close = comparison.compared, len(comparison.of(CLOSE))
        told.new = tuple(verdict.tensor.title for verdict in comparison.of(NEW))
    if record:
        told.outcome, told.golden = RECORDED, now
        told.values = stored_values(_arrays(dx), values_bytes)
        if comparison is not None and not comparison.fine:
            told.change = next(comparison.lines(now))
        return Judged(told, comparison, "")
    if comparison is None:
        told.outcome = NO_GOLDEN
        return Judged(told, None, "")
    told.outcome = COMPARED if comparison.fine else CHANGED
    return Judged(told, comparison, "" if comparison.fine else "\n  ".join(comparison.lines(now)))


def _nothing_to_compare(golden: Golden) -> str:
    return (
        f"the golden of this test has {counted(len(golden.tensors), 'tensor')}, but the test registered none, "
        f"so nothing was compared\n  recorded: {listed(tensor.title for tensor in golden.tensors)}"
    )


def _compared(before: Golden, file: GoldenFile, now: Golden, dx: Dx) -> Comparison:
    same = before.same_as(now)
    values = {} if same else file.values  # not read where the hashes suffice
    return compare_with_golden(before, values, now.tensors, {} if same else _arrays(dx), dx.marked.tolerance)


def _arrays(dx: Dx) -> dict[str, Any]:
    tensors = (tensor for tensor in dx.tensors if tensor.values is not None)
    return {content_key(tensor.dtype, tensor.statistics.hash): tensor.values for tensor in tensors}


def not_finite(dx: Dx) -> Iterator[NotFinite]:
    """Yield the tensors that hold NaN or +Inf; -Inf alone is what masks are made of."""
    for tensor in dx.tensors:
        if tensor.statistics.nan or tensor.statistics.pos_inf:
            yield NotFinite(tensor.title, tensor.statistics.specials, tensor.statistics.elements)


def golden_of(test: str, dx: Dx) -> Golden:
    """Return what a test saw as a golden."""
    return Golden(
        test=test,
        engine=dx.engine,
        versions=dx.versions(),
        platform=f"{platform.system().lower()} {platform.machine()}",
        kernel=kernel_in_use(),
        recorded=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        made_by=f"trtdx {__version__}",
        taps=dx.taps,
        tensors=tuple(
            golden_tensor(tensor.name, tensor.step, tensor.dtype, tensor.shape, tensor.statistics)
            for tensor in dx.tensors
        ),
    )
