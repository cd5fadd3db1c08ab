"""`trtdx compare reduce`: the smallest part of the candidate that is wrong, as a report that anyone can run.

    DIR/model.onnx      a few operations with their own weights, and nothing of the machine they come from
    DIR/inputs.npz      right values of what enters them
    DIR/expected.npz    what should come out
    DIR/README.md       what is wrong, and the command that shows it; reproduce.sh runs it

Right values are those of the reference where it is a graph with the same tensors. Else the same graph on another engine
has them, which tells whether an engine is to blame. If none is, the mistake stands in the file, and what is written lies
between the first wrong tensor and those before it that the reference has too; or else the whole module.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.capture.session.replay import replay_module
from trtdx.compare.align.align import align_sides
from trtdx.compare.align.layouts import squeezed_shape
from trtdx.compare.search.precision_runs import collect_samples
from trtdx.compare.search.reduce_files import (
    FailingPart,
    Reproducer,
    reproduce_command,
    reproducer_from_case,
    reproducer_report,
    write_case,
    write_readme,
)
from trtdx.compare.search.reduce_graph import GraphPart, PartCase, Reducer, part_between, tensor_names
from trtdx.compare.search.reduce_torch import reduce_torch
from trtdx.compare.search.same_tensors import same_tensors
from trtdx.compare.sides.side import SideSpec, open_side, parse_side
from trtdx.engines.onnxruntime.replay import plan_module_replay
from trtdx.errors import InputError, TrtdxError
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph, ValueKind
from trtdx.formats.onnx.places import module_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtdx.compare.nouns import TensorPair
    from trtdx.compare.run import ComparisonPlan
    from trtdx.compare.sides.side import Side
    from trtdx.engines.engine import Array
    from trtdx.host import Host
    from trtdx.model import Where
    from trtdx.rule import RuleBook

    Told = Callable[[str], None]

GRAPHS = ("onnx", "trt")
MOST_RISEN = 3  # modules around the first wrong one that are tried where it is right by itself


def reduce_candidate(
    host: Host,
    plan: ComparisonPlan,
    where: Where,
    folder: str,
    book: RuleBook,
    *,
    progress: Told = lambda text: None,
) -> Reproducer:
    """Write the smallest failing part of a candidate.

    The first wrong place is `report.findings[0].where`; the folder is a new or an empty one.

    Raises:
        InputError: the candidate cannot be run, or no part of it fails by itself.
    """
    spec = parse_side(host, plan.candidate)
    target = _new_folder(folder)
    if spec.kind == "hf":
        done = reduce_torch(host, plan, where, target)._replace(folder=folder)
        write_readme(done, where, target)
        return done
    if spec.kind not in GRAPHS:
        raise InputError(
            f"{plan.candidate} cannot be computed in parts",
            fix="give the candidate as onnx:FILE, trt:FILE or hf:DIR",
        )
    with tempfile.TemporaryDirectory(prefix="trtdx-reduce-") as scratch:
        failing = _FailingPartSearch(host, plan, spec, where, Path(scratch), progress).search()
    if failing is None:
        raise InputError(
            f"no part around {where.tensor} fails by itself with the inputs it had",
            fix="the mistake may be in the whole: report it with the model and --keep DIR",
        )
    write_case(failing, target)
    command, confirmed = reproduce_command(host, spec, failing.case, target, book)
    done = reproducer_from_case(failing, folder, command, confirmed)
    write_readme(done, where, target)
    return done


def _new_folder(folder: str) -> Path:
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{folder} already exists", fix="name a new folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise InputError(f"cannot write {folder}: {err.strerror or err}") from err
    return target


class _FailingPartSearch:
    """The search for the part."""

    def __init__(
        self, host: Host, plan: ComparisonPlan, spec: SideSpec, where: Where, scratch: Path, progress: Told
    ) -> None:
        self.host, self.plan, self.spec, self.where, self.scratch = host, plan, spec, where, scratch
        self.progress = progress
        self.reference = parse_side(host, plan.reference)
        engine: Any = spec.open()
        self.engine, self.graph = engine, engine.graph

    def search(self) -> FailingPart | None:
        truths = [self.reference] if self.reference.kind in GRAPHS else []
        others = [self._other_engine_spec()] if self._other_engine_spec() not in truths else []
        for truth in (*truths, *others):
            self.progress(f"looking for the smallest part that differs from {truth.kind}:")
            case = self._case_against_graph(truth)
            if case is not None:
                against = "the reference" if truth in truths else f"the same graph on {_engine_name(truth)}"
                return FailingPart(case, self.graph, against)
        reference = open_side(self.host, self.reference, self.plan.question, self.scratch / "reference")
        case = self._case_between_borders(reference)
        if case is not None:
            return FailingPart(case, self.graph, "the reference")
        case = self._case_of_module(reference)
        return None if case is None else FailingPart(case, self.graph, "the reference's module")

    def _other_engine_spec(self) -> SideSpec:
        if self.spec.kind == "onnx":
            return SideSpec("trt", self.spec.path)
        return SideSpec("onnx", self.spec.path, {"level": "none"})

    def _module_windows(self) -> list[list[int]]:
        """Return the operations of the module, of the modules around it, and of the whole."""
        modules, windows = module_nodes(self.graph), []
        path = self._module_path()
        for _ in range(MOST_RISEN):
            if path in modules:
                windows.append(modules[path])
            path = path.rpartition(".")[0]
        return [*windows, list(range(len(self.graph.nodes)))]

    def _module_path(self) -> str:
        try:
            return plan_module_replay(self.engine, self.where.module).path if self.where.module else ""
        except TrtdxError:
            return ""

    def _case_against_graph(self, truth: SideSpec) -> PartCase | None:
        try:
            right: Any = truth.open()
            samples, _ = collect_samples(self.host, self.spec.open(), self.plan.question)
        except TrtdxError:
            return None
        same = self._same_tensors(truth)
        for nodes in self._module_windows():
            outputs = {at: map(self.graph.kind, self.graph.nodes[at].outputs) for at in nodes}
            data = [at for at, kinds in outputs.items() if ValueKind.DATA in kinds]
            values = [self._right_values(right, same, data, feeds) for feeds in samples]
            reducer = Reducer(self.engine, values, truth=partial(_compute_truth, right, same))
            case = reducer.reduce_nodes(data)
            if case is not None:
                return reducer.with_fewer_rows(case)
        return None

    def _same_tensors(self, truth: SideSpec) -> dict[str, str]:
        """Return the candidate's tensors that the truth has, and what they are called there."""
        if Path(truth.path) == Path(self.spec.path):
            return {name: name for name in self.graph.values}
        return same_tensors(OnnxGraph(open_model(self.spec.path)), OnnxGraph(open_model(truth.path)))

    def _right_values(
        self, right: Any, same: Mapping[str, str], nodes: Sequence[int], feeds: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the right values of what enters some operations and of what they make."""
        names = tensor_names(self.graph, nodes)
        right_values = {name: feeds[name] for name in names if name in feeds}
        shapes = [
            n for n in names if n not in right_values and self.graph.kind(self.graph.values[n]) is ValueKind.SHAPE
        ]
        if shapes:
            right_values |= self._exact_part(shapes, feeds)
        there = right.graph.values
        rest = {
            name: same[name]
            for name in names
            if name not in right_values
            and same.get(name) in there
            and right.graph.kind(there[same[name]]) is ValueKind.DATA
        }
        right_feeds = {name: array for name, array in feeds.items() if name in right.inputs}
        try:
            computed = right.compute_tensors(list(dict.fromkeys(rest.values())), right_feeds) if rest else {}
        except TrtdxError:
            return right_values
        return right_values | {name: computed[other_name] for name, other_name in rest.items()}

    def _case_between_borders(self, reference: Side) -> PartCase | None:
        """Return what lies between the first wrong tensor and those before it that the reference has, too."""
        folder, forced = self.scratch / "candidate", reference.step_tokens() or None
        candidate = open_side(self.host, self.spec, self.plan.question, folder, forced=forced)
        tensor_of = {tap.place: tap.value for tap in self.engine.all_taps}
        known_values: dict[str, Array] = {}
        last = None
        for pair in align_sides(reference, candidate).pairs:
            tensor = tensor_of.get(pair.candidate.first.place)
            if pair.step != self.where.step or tensor is None or len(pair.candidate.records) != 1:
                continue
            right = reference_in_candidate_layout(pair, reference, candidate)
            if pair.name == self.where.tensor and right is not None:
                last = self.graph.producers.get(self.graph.values[tensor])
            known_values |= {} if right is None else {tensor: right}
        if last is None:
            return None
        samples, _ = collect_samples(self.host, self.spec.open(), self.plan.question)
        feeds = samples[self.where.step] if self.where.step < len(samples) else samples[-1]
        part = part_between(self.graph, last, {*known_values, *feeds})
        shapes = [name for name in part.inputs if name not in known_values and name not in feeds]
        sample = {**feeds, **(self._exact_part(shapes, feeds) if shapes else {}), **known_values}
        return Reducer(self.engine, [sample]).small_case(part)

    def _exact_part(self, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return tensors of the candidate's graph, computed without any optimisation."""
        exact: Any = SideSpec("onnx", self.spec.path, {"level": "none"}).open()
        tensors: dict[str, Array] = exact.compute_tensors(names, feeds)
        return tensors

    def _case_of_module(self, side: Side) -> PartCase | None:
        """Return the whole module with what the reference's takes and gives, of each step that can be replayed."""
        part: GraphPart | None = None
        samples = []
        for step in sorted({record.step for record in side.capture.records()}):
            try:
                with _part_feeds(self.engine) as fed:
                    done = replay_module(side.capture, self.engine, self.where.module, step=step)
            except TrtdxError:
                continue
            records = {output.name: output.captured for output in done.outputs}
            right = {name: side.capture.values(record) for name, record in records.items() if record}
            if right:
                part = GraphPart((), tuple(fed), tuple(right))
                samples.append({**fed, **right})
        return None if part is None else Reducer(self.engine, samples).small_case(part)


def _compute_truth(
    right: Any, same: Mapping[str, str], names: Sequence[str], feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return some tensors of the candidate's as the truth computes them from others."""
    right_feeds = {same.get(name, name): array for name, array in feeds.items()}
    computed = right.compute_tensors([same[name] for name in names], right_feeds)
    return {name: computed[same[name]] for name in names}


def reference_in_candidate_layout(pair: TensorPair, reference: Side, candidate: Side) -> Array | None:
    """Return the reference's values of a pair where both sides have them in one layout."""
    reference_tensor, candidate_tensor = pair.reference, pair.candidate
    if not (pair.has_values and reference_tensor.is_unchanged and candidate_tensor.is_unchanged):
        return None
    array = reference.capture.values(reference_tensor.first)
    shape = candidate_tensor.first.layout.shape
    return array.reshape(shape) if squeezed_shape(array.shape) == squeezed_shape(shape) else None


@contextmanager
def _part_feeds(engine: Any) -> Iterator[dict[str, Array]]:
    """Give what the part of a graph is fed that an engine computes last."""
    fed: dict[str, Array] = {}
    compute = engine.compute_tensors

    def part(names: Sequence[str], feeds: Mapping[str, Array]) -> Any:
        fed.clear()
        fed.update(feeds)
        return compute(names, feeds)

    engine.compute_tensors = part
    try:
        yield fed
    finally:
        engine.compute_tensors = compute


def _engine_name(spec: SideSpec) -> str:
    return "TensorRT" if spec.kind == "trt" else "ONNX Runtime without optimisation"


__all__ = ["Reproducer", "reduce_candidate", "reproducer_report"]
