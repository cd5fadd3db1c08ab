"""Whether each pair's difference is more than the candidate's precision explains.

    judged = judge(pairs, reference, candidate, runs=Runs(host, question, folder, reference, candidate))

In this order: the same hash is the same. Integers and masks have to be equal. A tolerance of the user's is taken at
its word. Where the reference can be run again, each operation from the candidate's own inputs decides (local), and
the whole run tells how far the error has come (global). Else there is the error model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.compare.align.data_flow import DataFlow, reference_place
from trtdx.compare.align.pair_rows import row_tokens
from trtdx.compare.judge.error_model import (
    ErrorModel,
    ObservedError,
    coarser_dtype,
    dtype_rounding_error,
    tensor_role,
)
from trtdx.compare.judge.exact_types import MANY_CHOICES_SHARE, find_unequal_rows, is_chosen, is_exact, is_mask
from trtdx.compare.judge.honest_runs import infer_candidate_dtype
from trtdx.compare.judge.metrics import has_same_hash, is_float_pair, measure_pair
from trtdx.compare.judge.noise_limits import (
    AMID_QUANTISED_FLOOR,
    MOST_TOKENS,
    WeighedError,
    is_rounding_elsewhere,
    limits_for,
    weigh_error,
)
from trtdx.compare.judge.quantised_modules import find_quantised_modules
from trtdx.compare.judge.tolerance import Tolerances, judge_by_tolerance
from trtdx.compare.nouns import JudgedPair, PairVerdict
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trtdx.compare.judge.honest_runs import ReferenceRun, ReferenceRuns
    from trtdx.compare.judge.metrics import PairMeasurement
    from trtdx.compare.nouns import TensorPair
    from trtdx.compare.sides.side import Side
    from trtdx.tensors.difference import TensorDifference


LOCAL_BASIS, GRAPH_BASIS, GLOBAL_BASIS = (
    "local replay in float64",
    "local replay of the graph",
    "honest run in",
)
CHANCE_MARGIN = {
    "local": 6.0,
    "global": 12.0,
}  # elements err by themselves locally, and together further down
TOO_NARROW_LIMITS = (0.02, 96.0)  # what one operation loses, relative, and as many roundings as that must be
BASIS_CERTAINTY = {"local": 0.99, "global": 0.95, "error model": 0.85, "statistics": 0.6}


def judge_pairs(
    pairs: Sequence[TensorPair],
    reference: Side,
    candidate: Side,
    *,
    runs: ReferenceRuns,
    tolerance: Tolerances | None = None,
    only_local: bool = False,
    explained: Collection[tuple[int, str]] = (),
) -> list[JudgedPair]:
    """Return a verdict on every pair, in data-flow order.

    Args:
        pairs: the pairs.
        reference: one side.
        candidate: the other.
        runs: runs of the reference again, shared with `locate`.
        tolerance: what the user allows; then nothing is run again.
        only_local: whether to leave out how far errors have come: three runs of the whole model less.
        explained: steps and names of tensors whose difference is known and tolerated: what comes of them is not ill.
    """
    flow = DataFlow(pairs)
    court = _PairJudge(flow, reference, candidate, runs)
    if tolerance is not None:
        return [
            court.settle_pair(pair) or judge_by_tolerance(pair, reference, candidate, tolerance) for pair in flow.pairs
        ]
    possible = runs.can_rerun or (runs.uses_graph_runs and court.dtype == "float32")
    judged = court.judge_by_runs(only_local=only_local) if possible and court.has_open_pairs else None
    return judged if judged is not None else court.judge_by_model(explained)


class _PairJudge:
    """Judges the pairs of one comparison."""

    def __init__(self, flow: DataFlow, reference: Side, candidate: Side, runs: ReferenceRuns) -> None:
        self.flow, self.reference, self.candidate, self.runs = flow, reference, candidate, runs
        self.dtype = infer_candidate_dtype(flow.pairs)
        self._settled: dict[int, JudgedPair | None] = {}
        self._ranks = len(candidate.capture.ranks)
        self._same_engine = bool(reference.kind) and reference.kind == candidate.kind and self._ranks == 1

    @property
    def has_open_pairs(self) -> bool:
        """Whether there is anything that hashes and equality do not settle."""
        return any(self.settle_pair(pair) is None for pair in self.flow.pairs)

    def settle_pair(self, pair: TensorPair) -> JudgedPair | None:
        """Return the verdict on a pair that needs no judgement."""
        key = self.flow.order_of(pair)
        if key not in self._settled:
            self._settled[key] = self._settle_exactly(pair)
        return self._settled[key]

    def _settle_exactly(self, pair: TensorPair) -> JudgedPair | None:
        if has_same_hash(pair):
            return JudgedPair(pair, None, 0.0, 0.0, 1.0, PairVerdict.SAME, 1.0, "the same hash")
        if not pair.has_values:
            return self._judge_by_statistics(pair)
        if is_float_pair(pair) and not is_mask(pair):
            return None
        if not is_exact(pair):
            note = "one side is quantised here: its integers are not these numbers"
            return JudgedPair(pair, None, 0.0, 0.0, 1.0, PairVerdict.UNKNOWN, 0.0, "types", note=note)
        wrong, count = find_unequal_rows(pair, self.reference, self.candidate)
        if not wrong:
            return JudgedPair(pair, None, 0.0, 0.0, 1.0, PairVerdict.SAME, 1.0, "equal")
        tokens = self._token_positions(pair, wrong)
        if is_chosen(pair) and len(wrong) <= max(1, MANY_CHOICES_SHARE * len(pair.tokens or ())):
            note = f"chosen differently for {format_count(len(wrong), 'row')}, as near ties may be"
            return JudgedPair(pair, None, count, 0.0, 1.0, PairVerdict.NOISE, 0.7, "choices", tokens, note)
        return JudgedPair(pair, None, count, 0.0, 1.0, PairVerdict.WRONG, 0.99, "has to be equal", tokens)

    def _judge_by_statistics(self, pair: TensorPair) -> JudgedPair:
        """Return the verdict from statistics alone: wrong if the norm is far off, otherwise unknown."""
        reference_stats, candidate_stats = pair.reference.first.statistics, pair.candidate.first.statistics
        why = "the values of one side were not kept"
        if len(pair.candidate.records) > 1 or reference_stats.elements != candidate_stats.elements:
            return JudgedPair(pair, None, 0.0, 0.0, 1.0, PairVerdict.UNKNOWN, 0.0, "statistics", note=why)
        dtype = coarser_dtype(pair.reference.first.layout.dtype, pair.candidate.first.layout.dtype)
        off = (
            abs(candidate_stats.l2 - reference_stats.l2) / reference_stats.l2
            if reference_stats.l2
            else float(candidate_stats.l2 > 0)
        )
        usual = max(dtype_rounding_error(dtype) * math.sqrt(1 + self.flow.order_of(pair)), 1e-12)
        wrong = off > 16 * usual or (candidate_stats.nan > 0) != (reference_stats.nan > 0)
        verdict = PairVerdict.WRONG if wrong else PairVerdict.UNKNOWN
        certainty = BASIS_CERTAINTY["statistics"] if wrong else 0.0
        return JudgedPair(pair, None, off, usual, 16.0, verdict, certainty, "statistics", note=why)

    def judge_by_runs(self, *, only_local: bool = False) -> list[JudgedPair] | None:
        """Return verdicts from runs of the reference again; None if it cannot be run."""
        local = self._available_runs(self.flow.pairs)
        global_runs = self._available_runs() if not only_local or local is None else None
        if global_runs is None and local is None:
            return None
        judged: list[JudgedPair] = []
        wrong_before = False
        near = self._weigh_locally(*local) if local else {}
        for number, pair in enumerate(self.flow.pairs):
            judged_pair = self.settle_pair(pair) or self._judge_pair_by_runs(
                pair, near.get(number), global_runs, wrong_before
            )
            wrong_before |= judged_pair.verdict is PairVerdict.WRONG
            judged.append(judged_pair)
        return judged

    def _weigh_locally(self, truth: ReferenceRun, honest: Sequence[ReferenceRun]) -> dict[int, WeighedError]:
        """Return each pair's local error, and settle what rounds more often in every layer alike."""
        weighed_by_number: dict[int, WeighedError] = {}
        roles: dict[tuple[int, str], dict[int, float]] = {}
        for number, pair in enumerate(self.flow.pairs):
            weighed = None if self.settle_pair(pair) else self._weigh_pair(pair, truth, honest, local=True)
            if weighed is not None:
                weighed_by_number[number] = weighed
                roles.setdefault((pair.step, tensor_role(pair.name)), {})[number] = weighed.tensor_ratio
        wider = limits_for(self.dtype, local=True, alike=False)
        for number, weighed in weighed_by_number.items():
            pair = self.flow.pairs[number]
            peers = [ratio for other, ratio in roles[pair.step, tensor_role(pair.name)].items() if other != number]
            mild = weighed.is_wrong and weighed.excess * weighed.limit <= min(wider.tensor, wider.row)
            if mild and is_rounding_elsewhere(weighed, peers):
                weighed_by_number[number] = weighed._replace(
                    limit=wider.tensor, excess=weighed.tensor_ratio / wider.tensor, rows=()
                )
        return weighed_by_number

    def _available_runs(
        self, pairs: Sequence[TensorPair] | None = None
    ) -> tuple[ReferenceRun, list[ReferenceRun]] | None:
        """Return the truth and honest runs, with pairs those from the candidate's own inputs; None if one kind is missing."""
        truth = self.runs.truth_run(pairs)
        honest = [self.runs.honest_run(self.dtype, pairs, alternative=other) for other in (False, True)]
        available = [run for run in honest if run is not None]
        return (truth, available) if truth is not None and available else None

    def _judge_pair_by_runs(
        self,
        pair: TensorPair,
        local_error: WeighedError | None,
        global_runs: tuple[ReferenceRun, list[ReferenceRun]] | None,
        wrong_before: bool,
    ) -> JudgedPair:
        far = self._weigh_pair(pair, *global_runs, local=False) if global_runs else None
        difference = measure_pair(pair, self.reference, self.candidate).difference
        if local_error is None and far is None:
            return self._unknown_verdict(pair, difference)
        if local_error is not None and local_error.is_wrong:
            return self._judged_pair(pair, local_error, PairVerdict.WRONG, difference, "local")
        if (
            local_error is not None
            and local_error.tensor_error > TOO_NARROW_LIMITS[0]
            and self._is_too_narrow(pair, local_error)
        ):
            note = f"so is the reference in {self.dtype}: the type is too narrow here"
            judged_pair = self._judged_pair(pair, local_error, PairVerdict.WRONG, difference, "local")
            return judged_pair._replace(
                observed=local_error.tensor_error,
                expected=dtype_rounding_error(self.dtype),
                limit=TOO_NARROW_LIMITS[1],
                note=note,
            )
        if far is None or not far.is_wrong:
            return self._judged_pair(
                pair, far or local_error, PairVerdict.NOISE, difference, "global" if far else "local"
            )
        if local_error is None:
            verdict = PairVerdict.POISONED if wrong_before else PairVerdict.WRONG
            return self._judged_pair(pair, far, verdict, difference, "global")
        if wrong_before:
            return self._judged_pair(pair, far, PairVerdict.POISONED, difference, "global")
        note = "more than honest runs have, but each operation before it is healthy: noise that was amplified"
        return self._judged_pair(pair, far, PairVerdict.NOISE, difference, "global")._replace(note=note, confidence=0.8)

    def _is_too_narrow(self, pair: TensorPair, local_error: WeighedError) -> bool:
        """Whether one operation loses far more than a rounding, in honest runs too: numbers too small for the type."""
        quantised = self._noisiest_dtype(pair, local=True) == "int8"
        return not quantised and local_error.tensor_error > TOO_NARROW_LIMITS[1] * dtype_rounding_error(
            self._candidate_dtype(pair)
        )

    def _unknown_verdict(self, pair: TensorPair, difference: TensorDifference) -> JudgedPair:
        note, observed = "the reference, run again, has no such tensor", difference.relative_l2
        return JudgedPair(pair, difference, observed, 0.0, 1.0, PairVerdict.UNKNOWN, 0.0, "nothing", note=note)

    def _weigh_pair(
        self, pair: TensorPair, truth: ReferenceRun, honest: Sequence[ReferenceRun], *, local: bool
    ) -> WeighedError | None:
        """Return a pair's error from the truth beside those of honest runs."""
        truth_aligned = truth.aligned_tensor(pair)
        others = [(run, aligned) for run in honest if (aligned := run.aligned_tensor(pair)) is not None]
        if truth_aligned is None or not others:
            return None
        candidate_error = measure_pair(pair._replace(reference=truth_aligned), truth.side, self.candidate)
        if candidate_error.difference.sums.nan_reference and not candidate_error.difference.sums.nan_candidate:
            return None  # a truth that is no number tells nothing
        if candidate_error.difference.not_finite:
            return _weigh_not_finite(candidate_error)
        honest_errors = [
            measure_pair(run.pair_with_run(pair, aligned)._replace(reference=truth_aligned), truth.side, run.side)
            for run, aligned in others
        ]
        step_error = self.runs.quantiser_steps(self.flow.pairs).measure_step_noise(pair) if local else None
        honest_errors += [step_error] if step_error is not None else []
        alike, dtype = self._is_same_code(pair), self._noisiest_dtype(pair, local=local)
        limits = limits_for(dtype, local=local, alike=alike, ranks=self._ranks)
        if dtype == "int8" and self._candidate_dtype(pair) in ("float32", "float64"):
            # Not all that is computed beside integers is quantised.
            limits = limits._replace(floor=AMID_QUANTISED_FLOOR)
        chance = CHANCE_MARGIN["local" if local else "global"]
        return weigh_error(
            candidate_error,
            honest_errors,
            self._candidate_dtype(pair),
            limits,
            chance=chance,
            absolute=self._rotary_angle_error(pair),
        )

    def _is_same_code(self, pair: TensorPair) -> bool:
        """Whether both compute a tensor by the same code: then an honest difference is chance alone."""
        one, other = pair.reference, pair.candidate
        changed = other.join or one.changes or other.changes or other.joined_changes
        if self.runs.uses_graph_runs:
            return False  # what is expected is imitated
        return self._same_engine and one.first.place.op == other.first.place.op and not changed

    def _noisiest_dtype(self, pair: TensorPair, *, local: bool) -> str:
        """Return the type whose rounding dominates a pair; a quantiser's dominates all others."""
        quantised = self.runs.quantised
        here = quantised.scheme_inside(self.flow.module_of(pair)) if local else quantised.modules
        return "int8" if here else self.dtype

    def _candidate_dtype(self, pair: TensorPair) -> str:
        return coarser_dtype(pair.candidate.first.layout.dtype, self.dtype)

    def _rotary_angle_error(self, pair: TensorPair) -> float:
        """Return the error of rotary angles: a frequency's rounding is multiplied by the position."""
        place = reference_place(pair)
        if "rotary" not in f"{place.path}{place.op}".lower() and "position_embeddings" not in place.argument:
            return 0.0
        tokens = row_tokens(pair)
        return float(2.0**-24 * (1 + max((token.position for token in tokens), default=0)))

    def _judged_pair(
        self,
        pair: TensorPair,
        weighed: WeighedError | None,
        verdict: PairVerdict,
        difference: TensorDifference,
        evidence: str,
    ) -> JudgedPair:
        assert weighed is not None
        beyond = weighed.excess
        sure = 1 - 1 / beyond if beyond > 1 else 1 - beyond
        confidence = BASIS_CERTAINTY[evidence] * (0.5 + 0.5 * min(max(sure, 0.0), 1.0) ** 0.5) * pair.confidence
        local = GRAPH_BASIS if self.runs.uses_graph_runs else LOCAL_BASIS
        basis = local if evidence == "local" else f"{GLOBAL_BASIS} {self.dtype}" if evidence == "global" else evidence
        tokens = (
            self._token_positions(pair, weighed.rows) if verdict in (PairVerdict.WRONG, PairVerdict.POISONED) else ()
        )
        numbers = weighed.observed, weighed.expected, weighed.limit
        return JudgedPair(pair, difference, *numbers, verdict, confidence, basis, tokens)

    def _token_positions(self, pair: TensorPair, rows: Sequence[int]) -> tuple[int, ...]:
        tokens = row_tokens(pair)
        positions = dict.fromkeys(tokens[row].position for row in rows if row < len(tokens))
        return tuple(positions)[:MOST_TOKENS]

    def judge_by_model(self, explained: Collection[tuple[int, str]] = ()) -> list[JudgedPair]:
        """Return verdicts from the error model: the captures alone."""
        model = ErrorModel(self._quantiser_bits())
        errors: dict[int, float] = {}
        tainted: set[int] = set()
        judged = []
        for number, pair in enumerate(self.flow.pairs):
            judged_pair = self.settle_pair(pair)
            if judged_pair is None:
                before = [self.flow.order_of(one) for one in self.flow.computed_from(pair)]
                ill = any(one in tainted for one in before)
                entering = [errors[one] for one in before if one in errors and one not in tainted]
                judged_pair = self._judge_pair_by_model(pair, model, entering, wrong_before=ill)
            error = judged_pair.difference.relative_l2 if judged_pair.difference else 0.0
            errors[number] = error if math.isfinite(error) else 1.0
            tolerated = (pair.step, pair.name) in explained
            if judged_pair.verdict in (PairVerdict.WRONG, PairVerdict.POISONED) and not tolerated:
                tainted.add(number)
            judged.append(judged_pair)
        return judged

    def _quantiser_bits(self) -> int:
        """Return the fewest bits that the candidate's quantiser leaves, where the reference's does not leave the same; or 0.

        Engines may quantise what enters a product too, if its weights are quantised: only the same engine leaves the same.
        """
        same = self._same_engine and self.reference.spec.options == self.candidate.spec.options
        alike = find_quantised_modules(self.reference).modules if same else {}
        return min(
            (
                how.bits
                for path, how in self.runs.quantised.modules.items()
                if how.activations or alike.get(path) != how
            ),
            default=0,
        )

    def _judge_pair_by_model(
        self, pair: TensorPair, model: ErrorModel, entering: list[float], *, wrong_before: bool
    ) -> JudgedPair:
        """Return the verdict on a pair; `ill` means that something it was computed from is wrong already."""
        measured = measure_pair(pair, self.reference, self.candidate)
        bad = PairVerdict.POISONED if wrong_before else PairVerdict.WRONG
        if measured.difference.not_finite:
            return self._judged_pair(pair, _weigh_not_finite(measured), bad, measured.difference, "error model")
        relative_error, worst, rows = _relative_errors(measured)
        expected = model.expected_error(pair, entering)
        as_whole = relative_error / expected.overall / expected.limit
        as_row = worst / expected.worst_row / expected.limit
        weighed = (
            WeighedError(relative_error, expected.overall, expected.limit, as_whole, rows, 0.0)
            if as_whole >= as_row
            else WeighedError(worst, expected.worst_row, expected.limit, as_row, rows, 0.0)
        )
        if not weighed.is_wrong:
            model.learn(ObservedError(pair, relative_error, worst), entering)
        judged_pair = self._judged_pair(
            pair, weighed, bad if weighed.is_wrong else PairVerdict.NOISE, measured.difference, "error model"
        )
        return judged_pair._replace(basis=expected.basis)


def _relative_errors(measured: PairMeasurement) -> tuple[float, float, tuple[int, ...]]:
    """Return the relative error of the whole and of its worst row, and which rows are worst."""
    import numpy as np

    sizes, errors = measured.row_sizes, measured.row_errors
    if not errors.size:
        return 0.0, 0.0, ()
    usual = float(np.mean(sizes)) or 1e-300
    with np.errstate(all="ignore"):
        rows = np.sqrt(errors / np.maximum(sizes, 1e-3 * usual))
    order = np.argsort(-rows, kind="stable")
    return math.sqrt(float(errors.mean()) / usual), float(rows[order[0]]), tuple(order[:MOST_TOKENS].tolist())


def _weigh_not_finite(measured: PairMeasurement) -> WeighedError:
    """Return the verdict on a tensor that has NaN or infinities where the other has none."""
    import numpy as np

    finite = measured.rows[:, 2]
    rows = tuple(np.flatnonzero(finite < finite.max(initial=0))[:MOST_TOKENS].tolist())
    return WeighedError(math.inf, 0.0, 1.0, math.inf, rows, 0.0)
