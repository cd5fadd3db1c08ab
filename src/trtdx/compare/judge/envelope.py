"""What the candidate's precision does to the reference: runs of the reference again, made once and shared.

*Truth* is the reference in float64. *Honest* runs are the reference in the candidate's types, in two ways that are
equally right: as it is, and with another attention kernel, another batch shape, sums in two parts as two ranks have
them, and rotary frequencies moved by one unit in the last place. Where the candidate is quantised, honest runs are too. Each is made in two fashions: *global*,
the whole model from its input on, and *local*, each operation from the candidate's own inputs (see local.py).
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.align.pair_rows import Rows
from trtdx.compare.judge.graph_runs import OwnSteps, local_run
from trtdx.compare.judge.local_replay import grafting
from trtdx.compare.judge.quantised import Quantised, quantised_in, quantising
from trtdx.compare.nouns import Aligned
from trtdx.compare.sides.side import BORDERS, Question, Side, run_into
from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.capture.store.reader import Record
    from trtdx.compare.nouns import Array, Explained, Pair
    from trtdx.host import Host


COMPUTED_IN = ("bfloat16", "float16", "float32", "float64")  # the coarsest first
LEAST_SHARE = 0.2  # of a candidate's tensors that a type must have to be what it computes in
ONE_ULP = 1 + 2.0**-23


class Way(NamedTuple):
    """One way to run the reference."""

    name: str
    dtype: str
    other: bool = False  # another kernel, batch shape and rounding of rotary frequencies


class Run(NamedTuple):
    """A run of the reference again: its side, and its records by step and name."""

    side: Side
    records: Mapping[tuple[int, str], Record]
    rows: int = 0  # sequences that were asked for, where more were computed

    def aligned(self, pair: Pair) -> Aligned | None:
        """Return this run's tensor that a pair's reference stands for."""
        run_records = []
        for reference_record in pair.reference.records:
            record = self.records.get((reference_record.step, reference_record.name))
            if record is None or not self._fits(record, reference_record):
                return None
            run_records.append(record)
        cut = (_first(self.rows),) if self._longer(run_records, pair) else ()
        return Aligned(
            tuple(run_records), pair.reference.join, (*cut, *pair.reference.changes), pair.reference.after
        )

    def beside(self, pair: Pair, aligned: Aligned) -> Pair:
        """Return a pair with this run's tensor in the place of the candidate's."""
        from trtdx.compare.nouns import TokenRows

        tokens = pair.tokens
        if tokens is not None:
            tokens = TokenRows(tokens.reference, tokens.reference, tokens.sequence, tokens.position)
        return pair._replace(candidate=aligned, tokens=tokens)

    def _fits(self, record: Record, other: Record) -> bool:
        shape, other_shape = record.layout.shape, other.layout.shape
        cut = (min(self.rows, shape[0]), *shape[1:]) if self.rows and shape else shape
        return record.kept and other_shape in (shape, cut)

    def _longer(self, found: Sequence[Record], pair: Pair) -> bool:
        return any(
            record.layout.shape != reference_record.layout.shape
            for record, reference_record in zip(found, pair.reference.records, strict=True)
        )


def _first(rows: int) -> Any:
    from trtdx.compare.nouns import Change

    return Change(f"first {rows}", lambda array: array[:rows])


class Runs:
    """Runs of the reference again, each made when it is first asked for."""

    def __init__(
        self,
        host: Host,
        question: Question,
        folder: str | Path,
        reference: Side,
        candidate: Side,
        *,
        selector: str = "",
    ) -> None:
        """Plan runs.

        Args:
            host: where inputs are read.
            question: what both sides were given.
            folder: where the captures of the runs go.
            reference: what is run again, where it is a model that can be.
            candidate: whose precision is looked at.
            selector: what of the reference is looked at; what its capture has, where it is not told.
        """
        self.host, self.question, self.folder = host, question, Path(folder)
        self.reference, self.candidate = reference, candidate
        self.selector = selector or seen_in(reference)
        self.segment_runs = 0  # counted by locate
        self.made: list[str] = []
        self.problem = ""  # why the reference could not be run again
        self._runs: dict[str, Run | None] = {}
        self._quantised: Quantised | None = None
        self._steps: OwnSteps | None = None
        self._in_graph: bool | None = None

    @property
    def possible(self) -> bool:
        """Whether the reference can be computed in float64 and in the candidate's types."""
        return self.reference.spec.kind == "hf"

    @property
    def in_graph(self) -> bool:
        """Whether the reference is a float graph, and what is expected of the quantised candidate can be had from its weights."""
        if self._in_graph is None:
            models = self.reference.spec.kind == "onnx" and self.candidate.spec.is_model
            self._in_graph = (
                models and bool(self.quantised.modules) and not quantised_in(self.reference).modules
            )
        return self._in_graph

    @property
    def quantised(self) -> Quantised:
        """What of the candidate is quantised."""
        if self._quantised is None:
            self._quantised = quantised_in(self.candidate)
        return self._quantised

    def own_steps(self, pairs: Sequence[Pair]) -> OwnSteps:
        """Return what the candidate's own quantisers do by their steps, made once."""
        if self._steps is None:
            self._steps = OwnSteps(self.candidate, self.folder)
            self._steps.compute(pairs)
        return self._steps

    def held(self, pair: Pair, pairs: Sequence[Pair]) -> Explained | None:
        """Return that a quantiser of the candidate holds values at the end of its range, and how much of a pair's error that is."""
        from trtdx.compare.judge.metrics import measure

        truth = self.truth_run(pairs)
        at = None if truth is None else truth.aligned(pair)
        if truth is None or at is None:
            return None
        wrong = measure(pair._replace(reference=at), truth.side, self.candidate).difference.sums.dd
        return self.own_steps(pairs).explained(pair, wrong)

    def truth_run(self, pairs: Sequence[Pair] | None = None) -> Run | None:
        """Return the reference in float64; with pairs, each operation from the candidate's own inputs."""
        return self._run(Way("truth", "float64"), pairs)

    def honest_run(
        self, dtype: str, pairs: Sequence[Pair] | None = None, *, alternative: bool = False
    ) -> Run | None:
        """Return the reference in a type, in one of two ways; with pairs, from the candidate's own inputs."""
        return self._run(Way("honest", dtype, alternative), pairs)

    def _run(self, way: Way, pairs: Sequence[Pair] | None = None) -> Run | None:
        fashion = "global" if pairs is None else "local"
        name = f"{fashion}-{way.name}-{way.dtype}" + ("-other" if way.other else "")
        if name not in self._runs:
            possible = self.possible or (self.in_graph and pairs is not None and not way.other)
            self._runs[name] = self._made(name, way, pairs) if possible and not self.problem else None
        return self._runs[name]

    def _made(self, name: str, way: Way, pairs: Sequence[Pair] | None) -> Run | None:
        try:
            return self._computed(name, way, pairs)
        except (TrtdxError, RuntimeError) as err:
            if not way.other:  # no kernel in float64; attention that this architecture has not
                self.problem = str(err)
            return None

    def _computed(self, name: str, way: Way, pairs: Sequence[Pair] | None) -> Run:
        if pairs is not None and self.in_graph:
            how = self.quantised if way.name == "honest" else None
            side = local_run(self.reference, pairs, self._donor(pairs), self.folder / name, how)
            return self._make_run(side, name)
        spec, forced = self.reference.spec, self.reference.tokens() or None
        question, rows = self.question, 0
        changed = {"dtype": way.dtype}
        if way.other:
            attention = self.reference.capture.header.details.get("attention", "")
            changed["attention"] = "eager" if attention != "eager" else "sdpa"
            if pairs is None and question.prompts and not question.inputs:
                rows = len(question.prompts)
                question, forced = _with_a_row_more(question, forced)
        engine: Any = spec.open(self.selector, **changed)
        with ExitStack() as stack:
            stack.callback(engine.close)
            _use_plain_experts(engine.model)
            if way.other:
                _move_frequencies(engine.model)
                stack.enter_context(summing_in_parts(engine.model))
            if pairs is not None:
                stack.enter_context(grafting(engine, self._donor(pairs)))
            if way.name == "honest" and self.quantised.modules:
                stack.enter_context(quantising(engine, self.quantised))
            run_into(self.host, engine, question, self.folder / name, forced=forced, run=name)
        return self._make_run(Side(spec, self.folder / name), name, rows)

    def _make_run(self, side: Side, name: str, rows: int = 0) -> Run:
        self.made.append(name)
        return Run(side, {(record.step, record.name): record for record in side.capture.records()}, rows)

    def _donor(self, pairs: Sequence[Pair]) -> Any:
        """Return what gives the candidate's tensors by the reference's names, in the reference's layout."""
        pairs_by_name = {
            (pair.step, pair.reference.first.name): pair
            for pair in pairs
            if len(pair.reference.records) == 1 and not (pair.reference.changes or pair.reference.after)
        }

        def donor(step: int, name: str) -> Array | None:
            pair = pairs_by_name.get((step, name))
            if pair is None or not all(record.kept for record in pair.candidate.records):
                return None
            return in_reference_layout(pair, self.reference, self.candidate)

        return donor


def in_reference_layout(pair: Pair, reference: Side, candidate: Side) -> Array | None:
    """Return the candidate's tensor as the reference has it; rows that it has not, such as padding, are the reference's."""
    import numpy as np

    reference_array = reference.capture.values(pair.reference.first)
    candidate_rows = Rows(pair.candidate, candidate.capture, pair.token_axis)
    if pair.tokens is None:
        array = candidate_rows.span(slice(0, candidate_rows.count))
        return array.reshape(reference_array.shape) if array.size == reference_array.size else None
    if pair.token_axis is None:
        return None
    if _as_it_is(pair):  # with its own padding
        return candidate.capture.values(pair.candidate.first)
    values = candidate_rows.take(pair.tokens.candidate)
    with np.errstate(over="ignore", invalid="ignore"):  # what a mask adds may be more than a type holds
        result = reference_array.astype(values.dtype)  # a copy
    rows = result[None] if pair.token_axis == 0 else np.moveaxis(result, pair.token_axis, 1)
    if rows[0, 0].size != values.shape[1]:
        return None
    row_numbers, length = pair.tokens.reference, rows.shape[1]
    rows[row_numbers // length, row_numbers % length] = values.reshape(len(values), *rows.shape[2:])
    return result


def _as_it_is(pair: Pair) -> bool:
    """Whether the candidate's tensor has the reference's layout already, row by row."""
    import numpy as np

    reference, candidate = pair.reference, pair.candidate
    changed = candidate.join or reference.changes or candidate.changes or reference.after or candidate.after
    same = (
        not changed
        and len(candidate.records) == 1
        and reference.first.layout.shape == candidate.first.layout.shape
    )
    return same and pair.tokens is not None and np.array_equal(pair.tokens.reference, pair.tokens.candidate)


def seen_in(side: Side) -> str:
    """Return a selector of the module borders that a side's capture has, the same in all layers."""
    places = (place for rank in side.capture.ranks for place in side.capture.files(rank).places)
    selectors: dict[str, None] = {}
    for place in places:
        if not place.tensor and place.path:
            path = ".".join(
                "*" if part.isdigit() else part for part in place.path.partition("#")[0].split(".")
            )
            selectors[f".{path}:{place.port}"] = None
        elif not place.tensor:
            selectors[".:*"] = None
    return ", ".join(selectors) or BORDERS


def candidate_dtype(pairs: Sequence[Pair]) -> str:
    """Return the type a candidate computes in: the coarsest that a good part of its tensors has."""
    counts = Counter(pair.candidate.first.layout.dtype for pair in pairs)
    floats = {name: counts[name] for name in COMPUTED_IN if counts[name]}
    total = sum(floats.values())
    return next((name for name, count in floats.items() if count >= LEAST_SHARE * total), "float32")


def _with_a_row_more(
    question: Question, forced: list[list[int]] | None
) -> tuple[Question, list[list[int]] | None]:
    """Return the same question with its first sequence once more."""
    longer = Question(prompts=(*question.prompts, question.prompts[0]), new_tokens=question.new_tokens)
    return longer, [[*tokens, tokens[0]] for tokens in forced] if forced else None


@contextmanager
def summing_in_parts(model: Any) -> Iterator[None]:
    """Let matrix products add two halves up inside the block, each rounded, as ranks that share a layer do."""
    from functools import partial

    from trtdx.engines.torch.lazy import torch

    functional = torch.nn.functional
    original_linear = functional.linear  # routers and experts have no linear module, and call it themselves
    turned = [
        module for module in model.modules() if type(module).__name__ == "Conv1D" and module.weight.ndim == 2
    ]
    functional.linear = _in_parts
    for module in turned:
        module.forward = partial(_turned_in_parts, module)
    try:
        yield
    finally:
        functional.linear = original_linear
        for module in turned:
            del module.forward


def _in_parts(given: Any, weight: Any, bias: Any = None) -> Any:
    half = weight.shape[1] // 2
    product = given[..., :half] @ weight[:, :half].t() + given[..., half:] @ weight[:, half:].t()
    return product if bias is None else product + bias


def _turned_in_parts(module: Any, given: Any) -> Any:
    return _in_parts(given, module.weight.t(), module.bias)


def _use_plain_experts(model: Any) -> None:
    """Compute experts one by one: the grouped kernels of a mixture of experts know no float64."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "_experts_implementation", None) is not None:
        config._experts_implementation = "eager"


def _move_frequencies(model: Any) -> None:
    """Move rotary frequencies by one unit in the last place: how they are rounded is nobody's mistake."""
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq"):
            buffer.mul_(ONE_ULP)
