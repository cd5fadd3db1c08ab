"""Whether each pair's difference is more than the candidate's precision explains.

    judged = judge(pairs, reference, candidate, runs=Runs(host, question, folder, reference, candidate))

In this order: the same hash is the same. Integers and masks have to be equal. A tolerance of the user's is taken at
its word. Where the reference can be run again, each operation from the candidate's own inputs decides (local), and
the whole run tells how far the error has come (global). Else there is the error model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.compare.align.pair_rows import tokens_of
from trtdx.compare.judge.envelope import candidate_dtype
from trtdx.compare.judge.error_model import ErrorModel, Seen, coarser, role, rounding
from trtdx.compare.judge.exact_types import MANY_CHOICES, is_chosen, is_exact, is_mask, unequal_rows
from trtdx.compare.judge.metrics import is_float, is_same, measure
from trtdx.compare.judge.noise_limits import (
    AMID_QUANTISED,
    MOST_TOKENS,
    Weighed,
    is_rounding_elsewhere,
    limits_for,
    weigh,
)
from trtdx.compare.judge.quantised import quantised_in
from trtdx.compare.judge.tolerance import Tolerances, judged_by_tolerance
from trtdx.compare.locate.data_flow import Flow, place_of
from trtdx.compare.nouns import Judged, Verdict
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trtdx.compare.judge.envelope import Run, Runs
    from trtdx.compare.judge.metrics import Measured
    from trtdx.compare.nouns import Pair
    from trtdx.compare.sides.side import Side
    from trtdx.tensors.difference import Difference


LOCAL, IN_GRAPH, GLOBAL = "local replay in float64", "local replay of the graph", "honest run in"
BY_CHANCE = {"local": 6.0, "global": 12.0}  # elements err by themselves locally, and together further down
TOO_NARROW = (0.02, 96.0)  # what one operation loses, relative, and as many roundings as that must be
CERTAINTY = {"local": 0.99, "global": 0.95, "error model": 0.85, "statistics": 0.6}


def judge(
    alignment: Sequence[Pair],
    reference: Side,
    candidate: Side,
    *,
    runs: Runs,
    tolerance: Tolerances | None = None,
    only_local: bool = False,
    explained: Collection[tuple[int, str]] = (),
) -> list[Judged]:
    """Return a verdict on every pair, in data-flow order.

    Args:
        alignment: the pairs.
        reference: one side.
        candidate: the other.
        runs: runs of the reference again, shared with `locate`.
        tolerance: what the user allows; then nothing is run again.
        only_local: whether to leave out how far errors have come: three runs of the whole model less.
        explained: steps and names of tensors whose difference is known and tolerated: what comes of them is not ill.
    """
    flow = Flow(alignment)
    court = _Court(flow, reference, candidate, runs)
    if tolerance is not None:
        return [
            court.trivial(pair) or judged_by_tolerance(pair, reference, candidate, tolerance)
            for pair in flow.pairs
        ]
    possible = runs.possible or (runs.in_graph and court.dtype == "float32")
    judged = court.by_runs(only_local=only_local) if possible and court.open_questions else None
    return judged if judged is not None else court.by_model(explained)


class _Court:
    """Judges the pairs of one comparison."""

    def __init__(self, flow: Flow, reference: Side, candidate: Side, runs: Runs) -> None:
        self.flow, self.reference, self.candidate, self.runs = flow, reference, candidate, runs
        self.dtype = candidate_dtype(flow.pairs)
        self._settled: dict[int, Judged | None] = {}
        self._ranks = len(candidate.capture.ranks)
        self._same_engine = bool(reference.kind) and reference.kind == candidate.kind and self._ranks == 1

    @property
    def open_questions(self) -> bool:
        """Whether there is anything that hashes and equality do not settle."""
        return any(self.trivial(pair) is None for pair in self.flow.pairs)

    def trivial(self, pair: Pair) -> Judged | None:
        """Return the verdict on a pair that needs no judgement."""
        key = self.flow.at(pair)
        if key not in self._settled:
            self._settled[key] = self._trivial(pair)
        return self._settled[key]

    def _trivial(self, pair: Pair) -> Judged | None:
        if is_same(pair):
            return Judged(pair, None, 0.0, 0.0, 1.0, Verdict.SAME, 1.0, "the same hash")
        if not pair.kept:
            return self._by_statistics(pair)
        if is_float(pair) and not is_mask(pair):
            return None
        if not is_exact(pair):
            note = "one side is quantised here: its integers are not these numbers"
            return Judged(pair, None, 0.0, 0.0, 1.0, Verdict.UNKNOWN, 0.0, "types", note=note)
        wrong, count = unequal_rows(pair, self.reference, self.candidate)
        if not wrong:
            return Judged(pair, None, 0.0, 0.0, 1.0, Verdict.SAME, 1.0, "equal")
        tokens = self._tokens(pair, wrong)
        if is_chosen(pair) and len(wrong) <= max(1, MANY_CHOICES * len(pair.tokens or ())):
            note = f"chosen differently for {counted(len(wrong), 'row')}, as near ties may be"
            return Judged(pair, None, count, 0.0, 1.0, Verdict.NOISE, 0.7, "choices", tokens, note)
        return Judged(pair, None, count, 0.0, 1.0, Verdict.WRONG, 0.99, "has to be equal", tokens)

    def _by_statistics(self, pair: Pair) -> Judged:
        """Return what the statistics alone tell: a norm that is far off is wrong, else nobody knows."""
        reference_stats, candidate_stats = pair.reference.first.statistics, pair.candidate.first.statistics
        why = "the values of one side were not kept"
        if len(pair.candidate.records) > 1 or reference_stats.elements != candidate_stats.elements:
            return Judged(pair, None, 0.0, 0.0, 1.0, Verdict.UNKNOWN, 0.0, "statistics", note=why)
        dtype = coarser(pair.reference.first.layout.dtype, pair.candidate.first.layout.dtype)
        off = (
            abs(candidate_stats.l2 - reference_stats.l2) / reference_stats.l2
            if reference_stats.l2
            else float(candidate_stats.l2 > 0)
        )
        usual = max(rounding(dtype) * math.sqrt(1 + self.flow.at(pair)), 1e-12)
        wrong = off > 16 * usual or (candidate_stats.nan > 0) != (reference_stats.nan > 0)
        verdict = Verdict.WRONG if wrong else Verdict.UNKNOWN
        certainty = CERTAINTY["statistics"] if wrong else 0.0
        return Judged(pair, None, off, usual, 16.0, verdict, certainty, "statistics", note=why)

    def by_runs(self, *, only_local: bool = False) -> list[Judged] | None:
        """Return verdicts from runs of the reference again; none where it cannot be run."""
        local = self._available_runs(self.flow.pairs)
        global_runs = self._available_runs() if not only_local or local is None else None
        if global_runs is None and local is None:
            return None
        judged: list[Judged] = []
        wrong_before = False
        near = self._near(*local) if local else {}
        for number, pair in enumerate(self.flow.pairs):
            judged_pair = self.trivial(pair) or self._by_runs(
                pair, near.get(number), global_runs, wrong_before
            )
            wrong_before |= judged_pair.verdict is Verdict.WRONG
            judged.append(judged_pair)
        return judged

    def _near(self, truth: Run, honest: Sequence[Run]) -> dict[int, Weighed]:
        """Return each pair's local error, and settle what rounds more often in every layer alike."""
        weighed_by_number: dict[int, Weighed] = {}
        roles: dict[tuple[int, str], dict[int, float]] = {}
        for number, pair in enumerate(self.flow.pairs):
            weighed = None if self.trivial(pair) else self._weighed(pair, truth, honest, local=True)
            if weighed is not None:
                weighed_by_number[number] = weighed
                roles.setdefault((pair.step, role(pair.name)), {})[number] = weighed.whole
        wider = limits_for(self.dtype, local=True, alike=False)
        for number, weighed in weighed_by_number.items():
            pair = self.flow.pairs[number]
            peers = [ratio for other, ratio in roles[pair.step, role(pair.name)].items() if other != number]
            mild = weighed.wrong and weighed.beyond * weighed.limit <= min(wider.whole, wider.row)
            if mild and is_rounding_elsewhere(weighed, peers):
                weighed_by_number[number] = weighed._replace(
                    limit=wider.whole, beyond=weighed.whole / wider.whole, rows=()
                )
        return weighed_by_number

    def _available_runs(self, pairs: Sequence[Pair] | None = None) -> tuple[Run, list[Run]] | None:
        """Return the truth and honest runs, with pairs those from the candidate's own inputs; none where one kind is missing."""
        truth = self.runs.truth_run(pairs)
        honest = [self.runs.honest_run(self.dtype, pairs, alternative=other) for other in (False, True)]
        available = [run for run in honest if run is not None]
        return (truth, available) if truth is not None and available else None

    def _by_runs(
        self, pair: Pair, near: Weighed | None, whole: tuple[Run, list[Run]] | None, wrong_before: bool
    ) -> Judged:
        far = self._weighed(pair, *whole, local=False) if whole else None
        difference = measure(pair, self.reference, self.candidate).difference
        if near is None and far is None:
            return self._unknown(pair, difference)
        if near is not None and near.wrong:
            return self._told(pair, near, Verdict.WRONG, difference, "local")
        if near is not None and near.error > TOO_NARROW[0] and self._is_too_narrow(pair, near):
            note = f"so is the reference in {self.dtype}: the type is too narrow here"
            judged_pair = self._told(pair, near, Verdict.WRONG, difference, "local")
            return judged_pair._replace(
                observed=near.error, expected=rounding(self.dtype), limit=TOO_NARROW[1], note=note
            )
        if far is None or not far.wrong:
            return self._told(pair, far or near, Verdict.NOISE, difference, "global" if far else "local")
        if near is None:
            verdict = Verdict.POISONED if wrong_before else Verdict.WRONG
            return self._told(pair, far, verdict, difference, "global")
        if wrong_before:
            return self._told(pair, far, Verdict.POISONED, difference, "global")
        note = "more than honest runs have, but each operation before it is healthy: noise that was amplified"
        return self._told(pair, far, Verdict.NOISE, difference, "global")._replace(note=note, confidence=0.8)

    def _is_too_narrow(self, pair: Pair, near: Weighed) -> bool:
        """Whether one operation loses far more than a rounding, in honest runs too: numbers too small for the type."""
        quantised = self._noisiest(pair, local=True) == "int8"
        return not quantised and near.error > TOO_NARROW[1] * rounding(self._own_dtype(pair))

    def _unknown(self, pair: Pair, difference: Difference) -> Judged:
        note, observed = "the reference, run again, has no such tensor", difference.relative_l2
        return Judged(pair, difference, observed, 0.0, 1.0, Verdict.UNKNOWN, 0.0, "nothing", note=note)

    def _weighed(self, pair: Pair, truth: Run, honest: Sequence[Run], *, local: bool) -> Weighed | None:
        """Return a pair's error from the truth beside those of honest runs."""
        truth_aligned = truth.aligned(pair)
        others = [(run, aligned) for run in honest if (aligned := run.aligned(pair)) is not None]
        if truth_aligned is None or not others:
            return None
        candidate_error = measure(pair._replace(reference=truth_aligned), truth.side, self.candidate)
        if (
            candidate_error.difference.sums.nan_reference
            and not candidate_error.difference.sums.nan_candidate
        ):
            return None  # a truth that is no number tells nothing
        if candidate_error.difference.not_finite:
            return _not_finite(candidate_error)
        honest_errors = [
            measure(run.beside(pair, aligned)._replace(reference=truth_aligned), truth.side, run.side)
            for run, aligned in others
        ]
        step_error = self.runs.own_steps(self.flow.pairs).at(pair) if local else None
        honest_errors += [step_error] if step_error is not None else []
        alike, dtype = self._alike(pair), self._noisiest(pair, local=local)
        limits = limits_for(dtype, local=local, alike=alike, ranks=self._ranks)
        if dtype == "int8" and self._own_dtype(pair) in ("float32", "float64"):
            # Not all that is computed beside integers is quantised.
            limits = limits._replace(floor=AMID_QUANTISED)
        chance = BY_CHANCE["local" if local else "global"]
        return weigh(
            candidate_error,
            honest_errors,
            self._own_dtype(pair),
            limits,
            chance=chance,
            absolute=self._absolute(pair),
        )

    def _alike(self, pair: Pair) -> bool:
        """Whether both compute a tensor by the same code: then an honest difference is chance alone."""
        one, other = pair.reference, pair.candidate
        changed = other.join or one.changes or other.changes or other.after
        if self.runs.in_graph:
            return False  # what is expected is imitated
        return self._same_engine and one.first.place.op == other.first.place.op and not changed

    def _noisiest(self, pair: Pair, *, local: bool) -> str:
        """Return the type whose noise a pair has: that of a quantiser drowns all others."""
        quantised = self.runs.quantised
        here = quantised.inside(self.flow.module_of(pair)) if local else quantised.modules
        return "int8" if here else self.dtype

    def _own_dtype(self, pair: Pair) -> str:
        return coarser(pair.candidate.first.layout.dtype, self.dtype)

    def _absolute(self, pair: Pair) -> float:
        """Return what angles are off by: a frequency's rounding counts as often as the position says."""
        place = place_of(pair)
        if "rotary" not in f"{place.path}{place.op}".lower() and "position_embeddings" not in place.argument:
            return 0.0
        tokens = tokens_of(pair)
        return float(2.0**-24 * (1 + max((token.position for token in tokens), default=0)))

    def _told(
        self, pair: Pair, weighed: Weighed | None, verdict: Verdict, difference: Difference, by: str
    ) -> Judged:
        assert weighed is not None
        beyond = weighed.beyond
        sure = 1 - 1 / beyond if beyond > 1 else 1 - beyond
        confidence = CERTAINTY[by] * (0.5 + 0.5 * min(max(sure, 0.0), 1.0) ** 0.5) * pair.confidence
        local = IN_GRAPH if self.runs.in_graph else LOCAL
        basis = local if by == "local" else f"{GLOBAL} {self.dtype}" if by == "global" else by
        tokens = self._tokens(pair, weighed.rows) if verdict in (Verdict.WRONG, Verdict.POISONED) else ()
        numbers = weighed.observed, weighed.expected, weighed.limit
        return Judged(pair, difference, *numbers, verdict, confidence, basis, tokens)

    def _tokens(self, pair: Pair, rows: Sequence[int]) -> tuple[int, ...]:
        tokens = tokens_of(pair)
        positions = dict.fromkeys(tokens[row].position for row in rows if row < len(tokens))
        return tuple(positions)[:MOST_TOKENS]

    def by_model(self, explained: Collection[tuple[int, str]] = ()) -> list[Judged]:
        """Return verdicts from the error model: the captures alone."""
        model = ErrorModel(self._bits())
        errors: dict[int, float] = {}
        tainted: set[int] = set()
        judged = []
        for number, pair in enumerate(self.flow.pairs):
            judged_pair = self.trivial(pair)
            if judged_pair is None:
                before = [self.flow.at(one) for one in self.flow.before(pair)]
                ill = any(one in tainted for one in before)
                entering = [errors[one] for one in before if one in errors and one not in tainted]
                judged_pair = self._by_model(pair, model, entering, ill=ill)
            error = judged_pair.difference.relative_l2 if judged_pair.difference else 0.0
            errors[number] = error if math.isfinite(error) else 1.0
            tolerated = (pair.step, pair.name) in explained
            if judged_pair.verdict in (Verdict.WRONG, Verdict.POISONED) and not tolerated:
                tainted.add(number)
            judged.append(judged_pair)
        return judged

    def _bits(self) -> int:
        """Return the fewest bits that the candidate's quantiser leaves, where the reference's does not leave the same; or 0.

        Engines may quantise what enters a product too, if its weights are quantised: only the same engine leaves the same.
        """
        same = self._same_engine and self.reference.spec.options == self.candidate.spec.options
        alike = quantised_in(self.reference).modules if same else {}
        return min(
            (
                how.bits
                for path, how in self.runs.quantised.modules.items()
                if how.activations or alike.get(path) != how
            ),
            default=0,
        )

    def _by_model(self, pair: Pair, model: ErrorModel, entering: list[float], *, ill: bool) -> Judged:
        """Return the verdict on a pair; `ill`: something it was computed from is wrong already."""
        measured = measure(pair, self.reference, self.candidate)
        bad = Verdict.POISONED if ill else Verdict.WRONG
        if measured.difference.not_finite:
            return self._told(pair, _not_finite(measured), bad, measured.difference, "error model")
        relative_error, worst, rows = _relative(measured)
        expected = model.expected(pair, entering)
        as_whole = relative_error / expected.whole / expected.limit
        as_row = worst / expected.worst / expected.limit
        weighed = (
            Weighed(relative_error, expected.whole, expected.limit, as_whole, rows, 0.0)
            if as_whole >= as_row
            else Weighed(worst, expected.worst, expected.limit, as_row, rows, 0.0)
        )
        if not weighed.wrong:
            model.learn(Seen(pair, relative_error, worst), entering)
        judged_pair = self._told(
            pair, weighed, bad if weighed.wrong else Verdict.NOISE, measured.difference, "error model"
        )
        return judged_pair._replace(basis=expected.basis)


def _relative(measured: Measured) -> tuple[float, float, tuple[int, ...]]:
    """Return the relative error of the whole and of its worst row, and which rows are worst."""
    import numpy as np

    sizes, errors = measured.sizes, measured.errors
    if not errors.size:
        return 0.0, 0.0, ()
    usual = float(np.mean(sizes)) or 1e-300
    with np.errstate(all="ignore"):
        rows = np.sqrt(errors / np.maximum(sizes, 1e-3 * usual))
    order = np.argsort(-rows, kind="stable")
    return math.sqrt(float(errors.mean()) / usual), float(rows[order[0]]), tuple(order[:MOST_TOKENS].tolist())


def _not_finite(measured: Measured) -> Weighed:
    """Return the verdict on a tensor that has NaN or infinities where the other has none."""
    import numpy as np

    full = measured.rows[:, 2].max(initial=0)
    rows = tuple(int(row) for row in np.flatnonzero(measured.rows[:, 2] < full)[:MOST_TOKENS])
    return Weighed(math.inf, 0.0, 1.0, math.inf, rows, 0.0)
