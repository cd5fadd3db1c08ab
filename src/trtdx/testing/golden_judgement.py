"""One test against its golden, or into it; what comes of it travels with the test's report.

Reports are what pytest-xdist carries from its workers to the process that writes files, so that recording works
alike with and without it, and a worker that crashes loses no test but its own.
"""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.capture.goldens.compare import CLOSE, NEW, GoldenComparison, compare_with_golden
from trtdx.capture.goldens.store import (
    Golden,
    GoldenFile,
    StoredValues,
    choose_stored_values,
    content_key,
    golden_from_statistics,
)
from trtdx.tensors.statistics import kernel_in_use
from trtdx.version import __version__
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.testing.dx import Dx

COMPARED, CHANGED, RECORDED, NO_GOLDEN, NO_TENSORS, LEFT_OUT = (
    "compared", "changed", "recorded", "no golden", "no tensors", "left out",
)  # fmt: skip


class NotFiniteTensor(msgspec.Struct, frozen=True):
    """A tensor of a test that holds NaN or infinities."""

    name: str
    what: str  # "3 NaN and 1 +Inf"
    elements: int


class GoldenMessage(msgspec.Struct):
    """What one test tells the process that writes."""

    module: str  # the path of the test's file
    test: str  # its id in there
    outcome: str
    compared: int = 0
    close: int = 0  # of them, differing within the tolerance
    new: tuple[str, ...] = ()  # tensors that are not in the golden
    not_finite: tuple[NotFiniteTensor, ...] = ()
    change: str = ""  # while recording, what changed first
    golden: Golden | None = None  # to be recorded
    values: dict[str, StoredValues] = {}

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()


def message_from_json(text: str) -> GoldenMessage:
    return msgspec.json.decode(text, type=GoldenMessage)


class GoldenJudgement(NamedTuple):
    """What came of a test: what to tell, the comparison if there was one, and why the test is to fail."""

    message: GoldenMessage
    comparison: GoldenComparison | None
    problem: str


def judge_test(
    message: GoldenMessage, dx: Dx | None, file: GoldenFile, *, record: bool, values_bytes: int
) -> GoldenJudgement:
    """Compare what a test saw with its golden or, when recording, make a new one."""
    before = file.goldens.get(message.test)
    if dx is None or not dx.tensors:
        message.outcome = NO_TENSORS
        problem = _nothing_to_compare(before) if before is not None and not record else ""
        return GoldenJudgement(message, None, problem)
    now = golden_from_test(message.test, dx)
    comparison = _compare_with_file(before, file, now, dx) if before is not None else None
    if comparison is not None:
        message.compared, message.close = comparison.compared_count, len(comparison.with_outcome(CLOSE))
        message.new = tuple(verdict.tensor.title for verdict in comparison.with_outcome(NEW))
    if record:
        message.outcome, message.golden = RECORDED, now
        message.values = choose_stored_values(_arrays_by_content(dx), values_bytes)
        if comparison is not None and not comparison.is_fine:
            message.change = next(comparison.lines(now))
        return GoldenJudgement(message, comparison, "")
    if comparison is None:
        message.outcome = NO_GOLDEN
        return GoldenJudgement(message, None, "")
    message.outcome = COMPARED if comparison.is_fine else CHANGED
    return GoldenJudgement(message, comparison, "" if comparison.is_fine else "\n  ".join(comparison.lines(now)))


def _nothing_to_compare(golden: Golden) -> str:
    return (
        f"the golden of this test has {format_count(len(golden.tensors), 'tensor')}, but the test registered none, "
        f"so nothing was compared\n  recorded: {abbreviate_list(tensor.title for tensor in golden.tensors)}"
    )


def _compare_with_file(before: Golden, file: GoldenFile, now: Golden, dx: Dx) -> GoldenComparison:
    same = before.same_as(now)
    values = {} if same else file.values  # not read where the hashes suffice
    return compare_with_golden(before, values, now.tensors, {} if same else _arrays_by_content(dx), dx.marker.tolerance)


def _arrays_by_content(dx: Dx) -> dict[str, Any]:
    tensors = (tensor for tensor in dx.tensors if tensor.values is not None)
    return {content_key(tensor.dtype, tensor.statistics.hash): tensor.values for tensor in tensors}


def list_not_finite(dx: Dx) -> Iterator[NotFiniteTensor]:
    """Yield the tensors that hold NaN or +Inf; -Inf alone is what masks are made of."""
    for tensor in dx.tensors:
        if tensor.statistics.nan or tensor.statistics.pos_inf:
            yield NotFiniteTensor(tensor.title, tensor.statistics.specials, tensor.statistics.elements)


def golden_from_test(test: str, dx: Dx) -> Golden:
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
            golden_from_statistics(tensor.name, tensor.step, tensor.dtype, tensor.shape, tensor.statistics)
            for tensor in dx.tensors
        ),
    )
