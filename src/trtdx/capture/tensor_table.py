"""A capture as tables: what each tensor looked like over the steps, and what was chosen at each step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.capture.session.steps import CACHE, PROMPT, PROMPT_MASK
from trtdx.model import Section
from trtdx.words import abbreviate_list, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from trtdx.capture.session.selection import StepRanges
    from trtdx.capture.store.format import TensorLayout
    from trtdx.capture.store.reader import Capture, RankFiles
    from trtdx.model import Cell
    from trtdx.tensors.taps import Place, Selector

MAX_ROWS = 40
COLUMNS = ("tensor", "type and shape", "min", "max", "mean", "std", "not finite")
SORT_ORDERS = ("order", "absmax", "std", "nan", "bytes")


class CapturedTensorRow(NamedTuple):
    """One place on one rank, over some steps."""

    place: Place
    rank: int
    records: int
    layouts: list[TensorLayout]
    low: float
    high: float
    mean: float
    std: float
    nan: int
    inf: int
    kept: int
    bytes: int

    @property
    def absmax(self) -> float:
        return max(abs(self.low), abs(self.high)) if self.low <= self.high else math.nan


def tensor_rows(
    capture: Capture, selector: Selector | None = None, steps: StepRanges | None = None
) -> list[CapturedTensorRow]:
    """Return what each selected place looked like, in the order in which it was first passed."""
    return [row for rank in capture.ranks for row in _rank_rows(capture.files(rank), selector, steps)]


def _rank_rows(files: RankFiles, selector: Selector | None, steps: StepRanges | None) -> Iterator[CapturedTensorRow]:
    places = [place for place in files.places if not is_state(place)]
    selected = set(selector.select_or_raise(places) if selector else places)
    # One tensor may be told of as a tap and as what is fed.
    parts_by_name: dict[str, tuple[Place, list[Any]]] = {}
    for batch in files.rows():
        rows = batch if steps is None else batch[[steps.has(int(step)) for step in batch["step"]]]
        for number in dict.fromkeys(rows["place"].tolist()):
            place = files.places[number]
            if place in selected:
                parts_by_name.setdefault(place.name, (place, []))[1].append(rows[rows["place"] == number])
    for place, parts in parts_by_name.values():
        yield _tensor_row(files, place, parts)


def is_state(place: Place) -> bool:
    """Whether a place is not the model's, but what a session needs to go on."""
    return place.op == CACHE or (not place.path and place.argument in (PROMPT, PROMPT_MASK))


def _tensor_row(files: RankFiles, place: Place, parts: Sequence[np.ndarray[Any, Any]]) -> CapturedTensorRow:
    import numpy as np

    rows = np.concatenate(parts)
    rows = rows[np.unique(rows["step"], return_index=True)[1]]  # a watched tensor is told of twice
    finite = rows["elements"] - rows["nan"] - rows["pos_inf"] - rows["neg_inf"]
    measured = rows[finite > 0]
    count = finite[finite > 0].astype(float)
    mean = float((measured["mean"] * count).sum() / count.sum()) if len(measured) else math.nan
    square = (
        ((measured["std"] ** 2 + (measured["mean"] - mean) ** 2) * count).sum() / count.sum() if len(measured) else 0
    )
    return CapturedTensorRow(
        place,
        files.rank,
        len(rows),
        [files.layouts[number] for number in dict.fromkeys(rows["layout"].tolist())],
        float(measured["min"].min()) if len(measured) else math.nan,
        float(measured["max"].max()) if len(measured) else math.nan,
        mean,
        math.sqrt(max(square, 0)) if len(measured) else math.nan,
        int(rows["nan"].sum()),
        int(rows["pos_inf"].sum() + rows["neg_inf"].sum()),
        int(files.rows_with_values(rows).sum()),
        int(rows["bytes"].sum()),
    )


def tensor_section(
    rows: Sequence[CapturedTensorRow], *, title: str = "tensors", by: str = "order", most: int = MAX_ROWS
) -> Section:
    """Return the table of tensors, the first of them where there are many."""
    keys = {
        "absmax": lambda row: -_zero_if_nan(row.absmax),
        "std": lambda row: -_zero_if_nan(row.std),
        "nan": lambda row: -(row.nan + row.inf),
        "bytes": lambda row: -row.bytes,
    }
    ordered = sorted(rows, key=keys[by]) if by in keys else list(rows)
    shown = ordered[:most] if most else ordered
    ranks = len({row.rank for row in rows}) > 1
    left = len(rows) - len(shown)
    note = f"{format_count(left, 'more tensor')} not shown: --all shows them" if left else ""
    columns = (*(("rank",) if ranks else ()), *COLUMNS)
    return Section("tensors", title, columns, tuple(_row_cells(row, ranks) for row in shown), note)


def _zero_if_nan(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _row_cells(row: CapturedTensorRow, ranks: bool) -> tuple[Cell, ...]:
    numbers = (row.low, row.high, row.mean, row.std)
    shown = [None if math.isnan(value) else float(f"{value:.3g}") for value in numbers]
    return (
        *((row.rank,) if ranks else ()),
        row.place.name,
        _describe_layouts(row.layouts),
        *shown,
        _describe_not_finite(row),
    )


def _describe_layouts(layouts: Sequence[TensorLayout]) -> str:
    """Return type and shape over the steps, where they differ those of the first and the last: 1x3..1x32."""
    first, last = layouts[0], layouts[-1]
    if first.dtype == last.dtype and len(first.shape) == len(last.shape):
        sizes = zip(first.shape, last.shape, strict=True)
        return f"{first.dtype} {'x'.join(str(a) if a == b else f'{a}..{b}' for a, b in sizes) or 'scalar'}"
    return " .. ".join(f"{end.dtype} {'x'.join(map(str, end.shape)) or 'scalar'}" for end in (first, last))


def _describe_not_finite(row: CapturedTensorRow) -> str | None:
    parts = [f"{row.nan} NaN" if row.nan else "", f"{row.inf} Inf" if row.inf else ""]
    return ", ".join(part for part in parts if part) or None


def place_section(places: Sequence[Place], *, sure: bool = True, most: int = MAX_ROWS) -> Section:
    """Return the table of places that a selector hits, or may hit where only a run can tell."""
    shown = places[:most] if most else places
    rows = tuple((place.name, place.path, place.port, place.op, place.dtype) for place in shown)
    left = len(places) - len(shown)
    notes = (
        f"{left} more not shown: --all shows them" if left else "",
        "" if sure else "which of them have this name, type or argument only shows when they run",
    )
    return Section(
        "places",
        format_count(len(places), "place" if sure else "possible place"),
        ("name", "path", "port", "operator", "type"),
        rows,
        "; ".join(note for note in notes if note),
    )


def describe_capture(capture: Capture) -> str:
    """Return in one line what a capture holds."""
    header, notes = capture.header, capture.notes(rank=capture.ranks[0])
    steps = sum(note.data.get("kind") in ("step", "run") for note in notes)
    size = sum(path.stat().st_size for path in capture.folder.iterdir() if path.is_file())
    parts = [
        f"{format_count(len(capture), 'tensor')} of {header.engine or 'an unknown engine'}",
        format_count(steps, "step") if steps else "",
        f"{len(capture.ranks)} ranks" if len(capture.ranks) > 1 else "",
        format_bytes(size),
        f"{format_count(capture.left_out, 'value')} beyond the budget" if capture.left_out else "",
    ]
    return f"{capture.folder}: {abbreviate_list([part for part in parts if part])}"
