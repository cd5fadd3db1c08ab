"""Runs of graphs, each part from the candidate's own tensors: the candidate's with its own steps, the reference's as honest int8.

A statically quantised file says where it quantises and by which steps. `OwnSteps` computes it with these steps and without
any: their difference is the noise that the file has by its own account, also where the honest runs of the reference
quantise nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.judge.cut_graph import FLOAT_DTYPES, CutGraph, is_new_cache_part, write_computed_capture
from trtdx.compare.judge.metrics import measure_pair
from trtdx.compare.judge.onnx_int8 import quantise_graph_weights
from trtdx.compare.nouns import AlignedTensor, CauseHypothesis, TokenRows
from trtdx.errors import TrtdxError
from trtdx.formats.onnx.dequantise import (
    cache_quantisation_steps,
    dequantise_graph,
    has_static_steps,
    steps_quantised_early,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtdx.capture.store.reader import TensorRecord
    from trtdx.compare.judge.cut_graph import StepValues
    from trtdx.compare.judge.local_replay import TensorDonor
    from trtdx.compare.judge.metrics import PairMeasurement
    from trtdx.compare.judge.quantised_modules import QuantisedModules
    from trtdx.compare.nouns import TensorPair
    from trtdx.compare.sides.side import Side
    from trtdx.formats.onnx.dequantise import Quantiser

    RecordsByName = Mapping[tuple[int, str], TensorRecord]


CLIPPING_ROOM_STEPS = 1.0  # steps beyond the end of a range that rounding may ask for


class ClippingQuantiser(NamedTuple):
    """A quantiser that clamps values at the end of its range."""

    quantiser: Quantiser
    excess_steps: float  # steps that the farthest value is beyond
    clipped_share: float  # share of the values that are
    error_share: float  # of the squared difference that goes away where nothing is held


class QuantiserSteps:
    """What a candidate's own quantisers do by their steps alone, at each pair.

    Attributes:
        problem: why that is not known.
    """

    def __init__(self, candidate: Side, folder: Path) -> None:
        self.problem = ""
        self._candidate, self._folder = candidate, folder
        self._sides: tuple[Side, Side] | None = None
        self._moved_steps: dict[str, float] = {}  # steps of values that are quantised elsewhere than the file says
        self._cut: CutGraph | None = None
        self._computed_values: StepValues = {}  # what was computed by steps, by step of the run and value
        self._records: tuple[RecordsByName, RecordsByName] = ({}, {})

    def compute_steps(self, pairs: Sequence[TensorPair]) -> None:
        """Compute the candidate's parts from its own tensors, with steps and without."""
        if self._candidate.spec.kind != "onnx":
            return
        try:
            self._compute_sides(pairs)
        except (TrtdxError, RuntimeError, ValueError) as err:
            self.problem = str(err)  # an operator that is not known: nothing is expected of it

    def _compute_sides(self, pairs: Sequence[TensorPair]) -> None:
        path, sides = self._candidate.spec.path, []
        plain = CutGraph(path).graph
        if not has_static_steps(plain):
            return
        self._moved_steps = cache_quantisation_steps(plain)
        if self._candidate.spec.options.get("level", "all") != "none":
            self._moved_steps |= steps_quantised_early(plain)
        records = {
            (record.step, record.name): record
            for pair in pairs
            for record in pair.candidate.records
            if record.layout.dtype in FLOAT_DTYPES and record.kept
        }
        for name, steps in (("steps-without", False), ("steps-own", True)):
            cut = CutGraph(path, partial(dequantise_graph, steps=steps))
            capture = self._candidate.capture
            values = cut.captured_values(capture, capture.records())
            borders = cut.captured_values(capture, records.values())
            more = {cut.value_of_record(record) for record in records.values()} - {""}
            more |= {quantiser.input_name for quantiser in cut.change_result} if steps else set()
            computed = cut.run_parts(values, borders, sorted(more))
            self._cut, self._computed_values = cut, computed
            sides.append(write_computed_capture(computed, cut, records.values(), self._candidate, self._folder / name))
        self._sides = sides[0], sides[1]
        one, other = ({(record.step, record.name): record for record in side.capture.records()} for side in sides)
        self._records = one, other

    def explain_clipping(self, pair: TensorPair, squared_error: float) -> CauseHypothesis | None:
        """Return in words how many values are clamped; "" if none are."""
        clipped = self.find_clipping_quantiser(pair, squared_error)
        if clipped is None:
            return None
        ends = clipped.quantiser
        limit = f"{ends.low:.5g} to {ends.high:.5g}"
        values = {
            "where": f"tensor {ends.output_name}",
            "limit": limit,
            "held": f"{100 * clipped.clipped_share:.2g} %",
        }
        how = f"computed by the same steps without an end to their range (values go {clipped.excess_steps:.3g} steps beyond it)"
        return CauseHypothesis("DX947", clipped.error_share, values | {"tried_in": "in the candidate's graph"}, how)

    def find_clipping_quantiser(self, pair: TensorPair, squared_error: float) -> ClippingQuantiser | None:
        """Return the quantiser that clamps most of what a pair is computed from; None if none does.

        Args:
            pair: what is wrong.
            squared_error: its squared difference from the truth.
        """
        stepped = self._measure_against_steps(pair)
        if stepped is None or self._cut is None or not squared_error:
            return None
        share = min(1.0, stepped.difference.sums.dd / squared_error)
        part = self._cut.ancestors_of(self._cut.value_of_record(pair.candidate.first))
        clipped = []
        for quantiser in self._cut.change_result:
            values = self._computed_values.get(pair.step, {}).get(quantiser.input_name)
            if quantiser.output_name in part and values is not None and values.size:
                out = (values > quantiser.high + CLIPPING_ROOM_STEPS * quantiser.step) | (
                    values < quantiser.low - CLIPPING_ROOM_STEPS * quantiser.step
                )
                far = float(max(values.max() - quantiser.high, quantiser.low - values.min(), 0.0) / quantiser.step)
                clipped.append(ClippingQuantiser(quantiser, far, float(out.mean()), share))
        worst = max(clipped, key=lambda quantiser: quantiser.excess_steps, default=None)
        return worst if worst is not None and worst.excess_steps > CLIPPING_ROOM_STEPS and worst.clipped_share else None

    def _measure_against_steps(self, pair: TensorPair) -> PairMeasurement | None:
        """Return the candidate's own tensor beside the same computed by its steps, without holding."""
        recomputed = _aligned_from_records(pair.candidate, self._records[1])
        if self._sides is None or recomputed is None:
            return None
        return measure_pair(
            pair._replace(reference=recomputed, tokens=_candidate_token_rows(pair)),
            self._sides[1],
            self._candidate,
        )

    def measure_step_noise(self, pair: TensorPair) -> PairMeasurement | None:
        """Return how far a pair's tensor is off because of quantisation steps alone; None if unknown."""
        import numpy as np

        if self._sides is None:
            return None
        without_steps, with_steps = (_aligned_from_records(pair.candidate, records) for records in self._records)
        if without_steps is None or with_steps is None:
            return None
        measured = measure_pair(
            pair._replace(reference=without_steps, candidate=with_steps, tokens=_candidate_token_rows(pair)),
            *self._sides,
        )
        step = (
            self._moved_steps.get(self._cut.value_of_record(pair.candidate.first), 0.0)
            if self._cut is not None
            else 0.0
        )
        if step:
            rows = measured.rows.copy()
            rounding = step**2 / 12 * rows[:, 2]  # of numbers that are rounded to the step
            rows[:, 0] = np.maximum(rows[:, 0], rounding)
            measured = measured._replace(rows=rows)
        return measured


def _candidate_token_rows(pair: TensorPair) -> TokenRows | None:
    """Return which rows of two tensors in the candidate's layout are the same token."""
    rows = pair.tokens
    return rows and TokenRows(rows.candidate, rows.candidate, rows.sequence, rows.position)


def _aligned_from_records(aligned: AlignedTensor, records: RecordsByName) -> AlignedTensor | None:
    matches = [records.get((record.step, record.name)) for record in aligned.records]
    present = [record for record in matches if record is not None]
    return aligned._replace(records=tuple(present)) if len(present) == len(matches) else None


def run_graph_from_candidate(
    reference: Side,
    pairs: Sequence[TensorPair],
    donor: TensorDonor,
    folder: Path,
    quantised: QuantisedModules | None = None,
) -> Side:
    """Return the parts of a reference's graph computed from the candidate's tensors, as a capture with the reference's names.

    Args:
        reference: an ONNX file with its capture.
        pairs: what is compared.
        donor: gives the candidate's tensor of a step in the place of the reference's, by its name; none where it has none.
        folder: where the capture goes.
        quantised: how the candidate is quantised, for a run that is so too.
    """
    change = partial(quantise_graph_weights, quantised=quantised) if quantised is not None else lambda graph: None
    cut, capture = CutGraph(reference.spec.path, change), reference.capture
    records = [
        record
        for pair in pairs
        for record in pair.reference.records
        if record.layout.dtype in FLOAT_DTYPES and record.kept
    ]
    borders: StepValues = {}
    for record in records:
        value, array = cut.value_of_record(record), donor(record.step, record.name)
        if value and array is not None and array.shape == record.layout.shape and not is_new_cache_part(record):
            borders.setdefault(record.step, {}).setdefault(value, array)
    more = {cut.value_of_record(record) for record in records} - {""}
    computed = cut.run_parts(cut.captured_values(capture, capture.records()), borders, sorted(more))
    unique = {(record.step, record.name): record for record in records}
    return write_computed_capture(computed, cut, unique.values(), reference, folder)
