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

from trtdx.compare.align.pair_rows import AlignedRows
from trtdx.compare.judge.graph_runs import QuantiserSteps, run_graph_from_candidate
from trtdx.compare.judge.local_replay import graft_candidate_tensors
from trtdx.compare.judge.quantised_modules import (
    QuantisedModules,
    find_quantised_modules,
    quantise_linear_modules,
)
from trtdx.compare.nouns import AlignedTensor
from trtdx.compare.sides.side import MODULE_BORDERS, ComparisonQuestion, Side, record_run
from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.capture.store.reader import TensorRecord
    from trtdx.compare.nouns import Array, CauseHypothesis, TensorPair
    from trtdx.host import Host


COMPUTE_DTYPES = ("bfloat16", "float16", "float32", "float64")  # the coarsest first
LEAST_DTYPE_SHARE = 0.2  # of a candidate's tensors that a type must have to be what it computes in
ONE_ULP = 1 + 2.0**-23


class ReferenceRunSpec(NamedTuple):
    """One way to run the reference."""

    name: str
    dtype: str
    is_alternative: bool = False  # another kernel, batch shape and rounding of rotary frequencies


class ReferenceRun(NamedTuple):
    """A run of the reference again: its side, and its records by step and name."""

    side: Side
    records: Mapping[tuple[int, str], TensorRecord]
    sequence_count: int = 0  # sequences that were asked for, where more were computed

    def aligned_tensor(self, pair: TensorPair) -> AlignedTensor | None:
        """Return this run's tensor that a pair's reference stands for."""
        run_records = []
        for reference_record in pair.reference.records:
            record = self.records.get((reference_record.step, reference_record.name))
            if record is None or not self._fits_record(record, reference_record):
                return None
            run_records.append(record)
        cut = (_first_rows_change(self.sequence_count),) if self._has_extra_rows(run_records, pair) else ()
        return AlignedTensor(
            tuple(run_records),
            pair.reference.join,
            (*cut, *pair.reference.changes),
            pair.reference.joined_changes,
        )

    def pair_with_run(self, pair: TensorPair, aligned: AlignedTensor) -> TensorPair:
        """Return a pair with this run's tensor in the place of the candidate's."""
        from trtdx.compare.nouns import TokenRows

        tokens = pair.tokens
        if tokens is not None:
            tokens = TokenRows(tokens.reference, tokens.reference, tokens.sequence, tokens.position)
        return pair._replace(candidate=aligned, tokens=tokens)

    def _fits_record(self, record: TensorRecord, other: TensorRecord) -> bool:
        shape, other_shape = record.layout.shape, other.layout.shape
        cut = (min(self.sequence_count, shape[0]), *shape[1:]) if self.sequence_count and shape else shape
        return record.kept and other_shape in (shape, cut)

    def _has_extra_rows(self, run_records: Sequence[TensorRecord], pair: TensorPair) -> bool:
        return any(
            record.layout.shape != reference_record.layout.shape
            for record, reference_record in zip(run_records, pair.reference.records, strict=True)
        )


def _first_rows_change(rows: int) -> Any:
    from trtdx.compare.nouns import LayoutChange

    return LayoutChange(f"first {rows}", lambda array: array[:rows])


class ReferenceRuns:
    """Runs of the reference again, each made when it is first asked for."""

    def __init__(
        self,
        host: Host,
        question: ComparisonQuestion,
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
        self.selector = selector or selector_of_capture(reference)
        self.segment_runs = 0  # counted by locate
        self.run_names: list[str] = []
        self.problem = ""  # why the reference could not be run again
        self._runs: dict[str, ReferenceRun | None] = {}
        self._quantised: QuantisedModules | None = None
        self._quantiser_steps: QuantiserSteps | None = None
        self._uses_graph_runs: bool | None = None

    @property
    def can_rerun(self) -> bool:
        """Whether the reference can be computed in float64 and in the candidate's types."""
        return self.reference.spec.kind == "hf"

    @property
    def uses_graph_runs(self) -> bool:
        """Whether the reference is a float graph, and what is expected of the quantised candidate can be had from its weights."""
        if self._uses_graph_runs is None:
            models = self.reference.spec.kind == "onnx" and self.candidate.spec.is_model
            self._uses_graph_runs = (
                models and bool(self.quantised.modules) and not find_quantised_modules(self.reference).modules
            )
        return self._uses_graph_runs

    @property
    def quantised(self) -> QuantisedModules:
        """What of the candidate is quantised."""
        if self._quantised is None:
            self._quantised = find_quantised_modules(self.candidate)
        return self._quantised

    def quantiser_steps(self, pairs: Sequence[TensorPair]) -> QuantiserSteps:
        """Return what the candidate's own quantisers do by their steps, made once."""
        if self._quantiser_steps is None:
            self._quantiser_steps = QuantiserSteps(self.candidate, self.folder)
            self._quantiser_steps.compute_steps(pairs)
        return self._quantiser_steps

    def explain_clipping(self, pair: TensorPair, pairs: Sequence[TensorPair]) -> CauseHypothesis | None:
        """Return the cause if a quantiser of the candidate clamps values, and how much of a pair's error that explains."""
        from trtdx.compare.judge.metrics import measure_pair

        truth = self.truth_run(pairs)
        at = None if truth is None else truth.aligned_tensor(pair)
        if truth is None or at is None:
            return None
        wrong = measure_pair(pair._replace(reference=at), truth.side, self.candidate).difference.sums.dd
        return self.quantiser_steps(pairs).explain_clipping(pair, wrong)

    def truth_run(self, pairs: Sequence[TensorPair] | None = None) -> ReferenceRun | None:
        """Return the reference in float64; with pairs, each operation from the candidate's own inputs."""
        return self._get_run(ReferenceRunSpec("truth", "float64"), pairs)

    def honest_run(
        self, dtype: str, pairs: Sequence[TensorPair] | None = None, *, alternative: bool = False
    ) -> ReferenceRun | None:
        """Return the reference in a type, in one of two ways; with pairs, from the candidate's own inputs."""
        return self._get_run(ReferenceRunSpec("honest", dtype, alternative), pairs)

    def _get_run(self, spec: ReferenceRunSpec, pairs: Sequence[TensorPair] | None = None) -> ReferenceRun | None:
        fashion = "global" if pairs is None else "local"
        name = f"{fashion}-{spec.name}-{spec.dtype}" + ("-other" if spec.is_alternative else "")
        if name not in self._runs:
            possible = self.can_rerun or (self.uses_graph_runs and pairs is not None and not spec.is_alternative)
            self._runs[name] = self._try_run(name, spec, pairs) if possible and not self.problem else None
        return self._runs[name]

    def _try_run(
        self, name: str, run_spec: ReferenceRunSpec, pairs: Sequence[TensorPair] | None
    ) -> ReferenceRun | None:
        try:
            return self._compute_run(name, run_spec, pairs)
        except (TrtdxError, RuntimeError) as err:
            if not run_spec.is_alternative:  # no kernel in float64; attention that this architecture has not
                self.problem = str(err)
            return None

    def _compute_run(self, name: str, run_spec: ReferenceRunSpec, pairs: Sequence[TensorPair] | None) -> ReferenceRun:
        if pairs is not None and self.uses_graph_runs:
            how = self.quantised if run_spec.name == "honest" else None
            side = run_graph_from_candidate(
                self.reference, pairs, self._candidate_donor(pairs), self.folder / name, how
            )
            return self._make_run(side, name)
        spec, forced = self.reference.spec, self.reference.step_tokens() or None
        question, rows = self.question, 0
        changed = {"dtype": run_spec.dtype}
        if run_spec.is_alternative:
            attention = self.reference.capture.header.details.get("attention", "")
            changed["attention"] = "eager" if attention != "eager" else "sdpa"
            if pairs is None and question.prompts and not question.inputs:
                rows = len(question.prompts)
                question, forced = _repeat_first_prompt(question, forced)
        engine: Any = spec.open(self.selector, **changed)
        with ExitStack() as stack:
            stack.callback(engine.close)
            _use_plain_experts(engine.model)
            if run_spec.is_alternative:
                _perturb_rotary_frequencies(engine.model)
                stack.enter_context(split_matmul_sums(engine.model))
            if pairs is not None:
                stack.enter_context(graft_candidate_tensors(engine, self._candidate_donor(pairs)))
            if run_spec.name == "honest" and self.quantised.modules:
                stack.enter_context(quantise_linear_modules(engine, self.quantised))
            record_run(self.host, engine, question, self.folder / name, forced=forced, run=name)
        return self._make_run(Side(spec, self.folder / name), name, rows)

    def _make_run(self, side: Side, name: str, rows: int = 0) -> ReferenceRun:
        self.run_names.append(name)
        return ReferenceRun(side, {(record.step, record.name): record for record in side.capture.records()}, rows)

    def _candidate_donor(self, pairs: Sequence[TensorPair]) -> Any:
        """Return what gives the candidate's tensors by the reference's names, in the reference's layout."""
        pairs_by_name = {
            (pair.step, pair.reference.first.name): pair
            for pair in pairs
            if len(pair.reference.records) == 1 and not (pair.reference.changes or pair.reference.joined_changes)
        }

        def donor(step: int, name: str) -> Array | None:
            pair = pairs_by_name.get((step, name))
            if pair is None or not all(record.kept for record in pair.candidate.records):
                return None
            return candidate_in_reference_layout(pair, self.reference, self.candidate)

        return donor


def candidate_in_reference_layout(pair: TensorPair, reference: Side, candidate: Side) -> Array | None:
    """Return the candidate's tensor as the reference has it; rows that it has not, such as padding, are the reference's."""
    import numpy as np

    reference_array = reference.capture.values(pair.reference.first)
    candidate_rows = AlignedRows(pair.candidate, candidate.capture, pair.token_axis)
    if pair.tokens is None:
        array = candidate_rows.span(slice(0, candidate_rows.count))
        return array.reshape(reference_array.shape) if array.size == reference_array.size else None
    if pair.token_axis is None:
        return None
    if _has_reference_layout(pair):  # with its own padding
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


def _has_reference_layout(pair: TensorPair) -> bool:
    """Whether the candidate's tensor has the reference's layout already, row by row."""
    import numpy as np

    reference, candidate = pair.reference, pair.candidate
    changed = (
        candidate.join or reference.changes or candidate.changes or reference.joined_changes or candidate.joined_changes
    )
    same = not changed and len(candidate.records) == 1 and reference.first.layout.shape == candidate.first.layout.shape
    return same and pair.tokens is not None and np.array_equal(pair.tokens.reference, pair.tokens.candidate)


def selector_of_capture(side: Side) -> str:
    """Return a selector of the module borders that a side's capture has, the same in all layers."""
    places = (place for rank in side.capture.ranks for place in side.capture.files(rank).places)
    selectors: dict[str, None] = {}
    for place in places:
        if not place.tensor and place.path:
            path = ".".join("*" if part.isdigit() else part for part in place.path.partition("#")[0].split("."))
            selectors[f".{path}:{place.port}"] = None
        elif not place.tensor:
            selectors[".:*"] = None
    return ", ".join(selectors) or MODULE_BORDERS


def infer_candidate_dtype(pairs: Sequence[TensorPair]) -> str:
    """Return the type a candidate computes in: the coarsest that a good part of its tensors has."""
    counts = Counter(pair.candidate.first.layout.dtype for pair in pairs)
    floats = {name: counts[name] for name in COMPUTE_DTYPES if counts[name]}
    total = sum(floats.values())
    return next((name for name, count in floats.items() if count >= LEAST_DTYPE_SHARE * total), "float32")


def _repeat_first_prompt(
    question: ComparisonQuestion, forced: list[list[int]] | None
) -> tuple[ComparisonQuestion, list[list[int]] | None]:
    """Return the same question with its first sequence once more."""
    longer = ComparisonQuestion(prompts=(*question.prompts, question.prompts[0]), new_tokens=question.new_tokens)
    return longer, [[*tokens, tokens[0]] for tokens in forced] if forced else None


@contextmanager
def split_matmul_sums(model: Any) -> Iterator[None]:
    """Let matrix products add two halves up inside the block, each rounded, as ranks that share a layer do."""
    from functools import partial

    from trtdx.engines.torch.lazy_import import torch

    functional = torch.nn.functional
    original_linear = functional.linear  # routers and experts have no linear module, and call it themselves
    turned = [module for module in model.modules() if type(module).__name__ == "Conv1D" and module.weight.ndim == 2]
    functional.linear = _linear_in_halves
    for module in turned:
        module.forward = partial(_conv1d_in_halves, module)
    try:
        yield
    finally:
        functional.linear = original_linear
        for module in turned:
            del module.forward


def _linear_in_halves(x: Any, weight: Any, bias: Any = None) -> Any:
    half = weight.shape[1] // 2
    product = x[..., :half] @ weight[:, :half].t() + x[..., half:] @ weight[:, half:].t()
    return product if bias is None else product + bias


def _conv1d_in_halves(module: Any, x: Any) -> Any:
    return _linear_in_halves(x, module.weight.t(), module.bias)


def _use_plain_experts(model: Any) -> None:
    """Compute experts one by one: the grouped kernels do not support float64."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "_experts_implementation", None) is not None:
        config._experts_implementation = "eager"


def _perturb_rotary_frequencies(model: Any) -> None:
    """Perturb rotary frequencies by one unit in the last place: how they are rounded is no mistake."""
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq"):
            buffer.mul_(ONE_ULP)
