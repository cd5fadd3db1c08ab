"""Runs of graphs, each part from the candidate's own tensors: the candidate's with its own steps, the reference's as honest int8.

A statically quantised file says where it quantises and by which steps. `OwnSteps` computes it with these steps and without
any: their difference is the noise that the file has by its own account, also where the honest runs of the reference
quantise nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.judge.metrics import measure
from trtdx.compare.judge.onnx_cut import FLOATS, Cut, is_new, written
from trtdx.compare.judge.onnx_int8 import as_quantised
from trtdx.compare.nouns import Aligned, Explained, TokenRows
from trtdx.errors import TrtdxError
from trtdx.formats.onnx.dequantise import cached_steps, has_static_steps, in_floats, moved_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtdx.capture.store.reader import Record
    from trtdx.compare.judge.local_replay import Donor
    from trtdx.compare.judge.metrics import Measured
    from trtdx.compare.judge.onnx_cut import Given
    from trtdx.compare.judge.quantised import Quantised
    from trtdx.compare.nouns import Pair
    from trtdx.compare.sides.side import Side
    from trtdx.formats.onnx.dequantise import Quantiser

    Found = Mapping[tuple[int, str], Record]


ROOM = 1.0  # steps beyond the end of a range that rounding may ask for


class Held(NamedTuple):
    """A quantiser that holds values at the end of its range."""

    quantiser: Quantiser
    far: float  # steps that the farthest value is beyond
    values: float  # share of the values that are
    share: float  # of the squared difference that goes away where nothing is held


class OwnSteps:
    """What a candidate's own quantisers do by their steps alone, at each pair.

    Attributes:
        problem: why that is not known.
    """

    def __init__(self, candidate: Side, folder: Path) -> None:
        self.problem = ""
        self._candidate, self._folder = candidate, folder
        self._sides: tuple[Side, Side] | None = None
        self._moved: dict[str, float] = {}  # steps of values that are quantised elsewhere than the file says
        self._cut: Cut | None = None
        self._found: Given = {}  # what was computed by steps, by step of the run and value
        self._records: tuple[Found, Found] = ({}, {})

    def compute(self, pairs: Sequence[Pair]) -> None:
        """Compute the candidate's parts from its own tensors, with steps and without."""
        if self._candidate.spec.kind != "onnx":
            return
        try:
            self._compute(pairs)
        except (TrtdxError, RuntimeError, ValueError) as err:
            self.problem = str(err)  # an operator that is not known: nothing is expected of it

    def _compute(self, pairs: Sequence[Pair]) -> None:
        path, sides = self._candidate.spec.path, []
        plain = Cut(path).graph
        if not has_static_steps(plain):
            return
        self._moved = cached_steps(plain)
        if self._candidate.spec.options.get("level", "all") != "none":
            self._moved |= moved_steps(plain)
        records = {
            (record.step, record.name): record
            for pair in pairs
            for record in pair.candidate.records
            if record.layout.dtype in FLOATS and record.kept
        }
        for name, steps in (("steps-without", False), ("steps-own", True)):
            cut = Cut(path, partial(in_floats, steps=steps))
            capture = self._candidate.capture
            values = cut.values_in(capture, capture.records())
            borders = cut.values_in(capture, records.values())
            more = {cut.value_of(record) for record in records.values()} - {""}
            more |= {quantiser.given for quantiser in cut.changed} if steps else set()
            computed = cut.run(values, borders, sorted(more))
            self._cut, self._found = cut, computed
            sides.append(written(computed, cut, records.values(), self._candidate, self._folder / name))
        self._sides = sides[0], sides[1]
        one, other = (
            {(record.step, record.name): record for record in side.capture.records()} for side in sides
        )
        self._records = one, other

    def explained(self, pair: Pair, wrong: float) -> Explained | None:
        """Return in words that values are held, where some are."""
        clipped = self.held(pair, wrong)
        if clipped is None:
            return None
        ends = clipped.quantiser
        limit = f"{ends.low:.5g} to {ends.high:.5g}"
        values = {"where": f"tensor {ends.made}", "limit": limit, "held": f"{100 * clipped.values:.2g} %"}
        how = f"computed by the same steps without an end to their range (values go {clipped.far:.3g} steps beyond it)"
        return Explained("DX947", clipped.share, values | {"tried_in": "in the candidate's graph"}, how)

    def held(self, pair: Pair, wrong: float) -> Held | None:
        """Return the quantiser that holds what a pair is made of at the end of its range the most; none where none does.

        Args:
            pair: what is wrong.
            wrong: its squared difference from the truth.
        """
        stepped = self._beside(pair)
        if stepped is None or self._cut is None or not wrong:
            return None
        share = min(1.0, stepped.difference.sums.dd / wrong)
        part = self._cut.made_of(self._cut.value_of(pair.candidate.first))
        clipped = []
        for quantiser in self._cut.changed:
            values = self._found.get(pair.step, {}).get(quantiser.given)
            if quantiser.made in part and values is not None and values.size:
                out = (values > quantiser.high + ROOM * quantiser.step) | (
                    values < quantiser.low - ROOM * quantiser.step
                )
                far = float(
                    max(values.max() - quantiser.high, quantiser.low - values.min(), 0.0) / quantiser.step
                )
                clipped.append(Held(quantiser, far, float(out.mean()), share))
        worst = max(clipped, key=lambda quantiser: quantiser.far, default=None)
        return worst if worst is not None and worst.far > ROOM and worst.values else None

    def _beside(self, pair: Pair) -> Measured | None:
        """Return the candidate's own tensor beside the same computed by its steps, without holding."""
        recomputed = _of(pair.candidate, self._records[1])
        if self._sides is None or recomputed is None:
            return None
        return measure(
            pair._replace(reference=recomputed, tokens=_own_rows(pair)), self._sides[1], self._candidate
        )

    def at(self, pair: Pair) -> Measured | None:
        """Return how far a pair's tensor is off by steps alone; none where that is not known."""
        import numpy as np

        if self._sides is None:
            return None
        without_steps, with_steps = (_of(pair.candidate, records) for records in self._records)
        if without_steps is None or with_steps is None:
            return None
        measured = measure(
            pair._replace(reference=without_steps, candidate=with_steps, tokens=_own_rows(pair)), *self._sides
        )
        step = (
            self._moved.get(self._cut.value_of(pair.candidate.first), 0.0) if self._cut is not None else 0.0
        )
        if step:
            rows = measured.rows.copy()
            rounding = step**2 / 12 * rows[:, 2]  # of numbers that are rounded to the step
            rows[:, 0] = np.maximum(rows[:, 0], rounding)
            measured = measured._replace(rows=rows)
        return measured


def _own_rows(pair: Pair) -> TokenRows | None:
    """Return which rows of two tensors in the candidate's layout are the same token."""
    rows = pair.tokens
    return rows and TokenRows(rows.candidate, rows.candidate, rows.sequence, rows.position)


def _of(aligned: Aligned, records: Found) -> Aligned | None:
    matches = [records.get((record.step, record.name)) for record in aligned.records]
    present = [record for record in matches if record is not None]
    return aligned._replace(records=tuple(present)) if len(present) == len(matches) else None


def local_run(
    reference: Side, pairs: Sequence[Pair], donor: Donor, folder: Path, quantised: Quantised | None = None
) -> Side:
    """Return the parts of a reference's graph computed from the candidate's tensors, as a capture with the reference's names.

    Args:
        reference: an ONNX file with its capture.
        pairs: what is compared.
        donor: gives the candidate's tensor of a step in the place of the reference's, by its name; none where it has none.
        folder: where the capture goes.
        quantised: how the candidate is quantised, for a run that is so too.
    """
    change = partial(as_quantised, quantised=quantised) if quantised is not None else lambda graph: None
    cut, capture = Cut(reference.spec.path, change), reference.capture
    records = [
        record
        for pair in pairs
        for record in pair.reference.records
        if record.layout.dtype in FLOATS and record.kept
    ]
    borders: Given = {}
    for record in records:
        value, array = cut.value_of(record), donor(record.step, record.name)
        if value and array is not None and array.shape == record.layout.shape and not is_new(record):
            borders.setdefault(record.step, {}).setdefault(value, array)
    more = {cut.value_of(record) for record in records} - {""}
    computed = cut.run(cut.values_in(capture, capture.records()), borders, sorted(more))
    unique = {(record.step, record.name): record for record in records}
    return written(computed, cut, unique.values(), reference, folder)
