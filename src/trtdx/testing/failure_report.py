"""What a failing test leaves behind: a table of its tensors in the report, and a case on disk."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from trtdx.capture.goldens.compare import CHANGED, MISSING
from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.case import CaseWriter
from trtdx.errors import TrtdxError
from trtdx.host import RealHost
from trtdx.model import Report, Section, Summary
from trtdx.render.table import table_lines
from trtdx.tensors.statistics import source_from_array
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trtdx.capture.goldens.compare import GoldenComparison
    from trtdx.model import Cell
    from trtdx.testing.dx import Dx
    from trtdx.testing.recorded_tensors import RecordedTensor

MAX_SHOWN_ROWS = 40
VALUES_BYTES = 64 << 20  # of values in a case
COLUMNS = ("tensor", "shape", "dtype", "min", "max", "mean", "NaN", "Inf")


def tensor_table(dx: Dx, comparison: GoldenComparison | None) -> Section:
    """Return the tensors of a test as a table."""
    outcomes = {verdict.tensor.key: verdict.outcome for verdict in comparison.verdicts} if comparison else {}
    rows = [_table_row(tensor, outcomes) for tensor in dx.tensors]
    for verdict in comparison.with_outcome(MISSING) if comparison else ():
        gone = verdict.tensor
        rows.append((gone.title, str(list(gone.shape)), gone.dtype, *[None] * 5, MISSING))
    columns = (*COLUMNS, "golden") if outcomes else COLUMNS
    return Section("tensors", "registered tensors", columns, tuple(rows))


def _table_row(tensor: RecordedTensor, outcomes: Mapping[tuple[int, str], str]) -> tuple[Cell, ...]:
    stats = tensor.statistics
    numbers = [None if math.isnan(number) else float(f"{number:.6g}") for number in (stats.min, stats.max, stats.mean)]
    infinite = stats.pos_inf + stats.neg_inf
    cells = (
        tensor.title,
        str(list(tensor.shape)),
        tensor.dtype,
        *numbers,
        stats.nan or None,
        infinite or None,
    )
    return (*cells, outcomes.get((tensor.step, tensor.name), "")) if outcomes else cells


def render_table(section: Section) -> str:
    """Return a table for a report: of a long one the first rows and all that hold NaN, Inf or a change."""
    rows = section.rows
    if len(rows) > MAX_SHOWN_ROWS:
        shown_rows = [row for number, row in enumerate(rows) if number < MAX_SHOWN_ROWS // 2 or _is_salient(row)]
        rows = tuple(shown_rows[:MAX_SHOWN_ROWS])
    lines = list(table_lines(Section(section.key, section.title, section.columns, rows)))
    if len(rows) < len(section.rows):
        lines.append(f"... and {format_count(len(section.rows) - len(rows), 'tensor')} more, in the case")
    return "\n".join(lines)


def _is_salient(row: Sequence[Cell]) -> bool:
    return bool(row[6] or row[7] or row[8:] in ((CHANGED,), (MISSING,)))


def case_name(test: str) -> str:
    """Return a name for a folder that any file system takes."""
    return re.sub(r"[^\w.-]+", "-", test).strip("-.")[-80:] or "test"


def write_case(folder: Path, nodeid: str, dx: Dx, section: Section, failure: str) -> str:
    """Write all that is known of a failing test; returns what went wrong with that, if anything did."""
    try:
        case = CaseWriter(RealHost(), str(folder))
        case.record("test", {"nodeid": nodeid, "engine": dx.engine, "versions": dx.versions(), "taps": dx.taps})
        _keep_text(case, "failure.txt", failure)
        _keep_text(case, "tensors.txt", "\n".join(table_lines(section, width=None)))
        messages = dx.messages()
        if messages:
            _keep_text(case, "tensorrt.log", "\n".join(messages))
        summary = Summary(text=f"{nodeid} failed; {format_count(len(section.rows), 'tensor')} registered")
        case.add_report(Report(summary, sections=(section,)))
        _write_capture(folder / "capture", nodeid, dx)
    except (TrtdxError, OSError) as err:
        return str(err)
    return ""


def _keep_text(case: CaseWriter, name: str, text: str) -> None:
    for _ in case.copy_log(name, [text.encode("utf-8", "backslashreplace") + b"\n"]):
        pass


def _write_capture(folder: Path, nodeid: str, dx: Dx) -> None:
    tensors = [tensor for tensor in dx.tensors if tensor.values is not None]
    if not tensors:
        return
    details: dict[str, Any] = {"versions": dx.versions()}
    header = CaptureHeader(run=f"pytest {nodeid}", engine=dx.engine, selector=dx.taps, details=details)
    with CaptureWriter(folder, header, value_budget_bytes=VALUES_BYTES, parquet=False) as writer:
        for tensor in tensors:
            place = tensor.place
            if place.name != tensor.name:  # a second one of the name, or a module's own input or output
                place = place._replace(tensor=tensor.name)
            writer.add(tensor.step, place, source_from_array(tensor.values), values=True)


def attach_failure(
    report: Any, nodeid: str, dx: Dx, comparison: GoldenComparison | None, folder: Callable[[], Path]
) -> None:
    """Put the table, what TensorRT said and where the case lies into a failing test's report."""
    messages = dx.messages()
    if not dx.tensors and not messages:
        return
    section = tensor_table(dx, comparison)
    if section.rows:
        report.sections.append(("trtdx: registered tensors", render_table(section)))
    if messages:
        report.sections.append(("trtdx: TensorRT said", "\n".join(messages[-20:])))
    target = folder()
    problem = write_case(target, nodeid, dx, section, report.longreprtext)
    outcome = f"could not be written: {problem}" if problem else str(target)
    report.sections.append(("trtdx: case", outcome))
