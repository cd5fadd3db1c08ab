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

import math
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.capture.session.replay import replay_from
from trtdx.compare.align.align import align
from trtdx.compare.search.precision_runs import samples_of
from trtdx.compare.search.reduce_files import (
    Found,
    Reduced,
    command_for,
    reduced_from,
    report_of,
    write_case,
    write_words,
)
from trtdx.compare.search.reduce_graph import Case, Part, Reducer, part_between, tensors_of
from trtdx.compare.search.reduce_same import same_tensors
from trtdx.compare.search.reduce_torch import reduce_torch
from trtdx.compare.sides.side import Spec, open_side, parse_side
from trtdx.engines.onnxruntime.replay import replay_of
from trtdx.errors import InputError, TrtdxError
from trtdx.formats.onnx.graph import Graph, Kind
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.places import module_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.compare.nouns import Pair
    from trtdx.compare.run import Plan
    from trtdx.compare.sides.side import Side
    from trtdx.engines.engine import Array
    from trtdx.host import Host
    from trtdx.model import Where
    from trtdx.rule import RuleBook

    Told = Callable[[str], None]

GRAPHS = ("onnx", "trt")
MOST_RISEN = 3  # modules around the first wrong one that are tried where it is right by itself


def reduce(
    host: Host,
    plan: Plan,
    where: Where,
    folder: str,
    book: RuleBook,
    *,
    progress: Told = lambda text: None,
) -> Reduced:
    """Write the smallest failing part of a candidate.

    Args:
        host: where files are.
        plan: the comparison.
        where: its first wrong place: `report.findings[0].where`.
        folder: a new or empty folder.
        book: the words of findings, to try the command.
        progress: told in words what is being done.

    Raises:
        InputError: the candidate cannot be run, or no part of it fails by itself.
    """
    spec = parse_side(host, plan.candidate)
    target = _new_folder(folder)
    if spec.kind == "hf":
        done = Reduced(folder, *reduce_torch(host, plan, where, target))
        write_words(done, where, target)
        return done
    if spec.kind not in GRAPHS:
        raise InputError(
            f"{plan.candidate} cannot be computed in parts",
            fix="give the candidate as onnx:FILE, trt:FILE or hf:DIR",
        )
    with tempfile.TemporaryDirectory(prefix="trtdx-reduce-") as scratch:
        found = _Search(host, plan, spec, where, Path(scratch), progress).found()
    if found is None:
        raise InputError(
            f"no part around {where.tensor} fails by itself with the inputs it had",
            fix="the mistake may be in the whole: report it with the model and --keep DIR",
        )
    write_case(found, target)
    command, confirmed = command_for(host, spec, found.case, target, book)
    done = reduced_from(found, folder, command, confirmed)
    write_words(done, where, target)
    return done


def _new_folder(folder: str) -> Path:
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{folder} is there already", fix="name a new folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise InputError(f"cannot write {folder}: {err.strerror or err}") from err
    return target


class _Search:
    """The search for the part."""

    def __init__(
        self, host: Host, plan: Plan, spec: Spec, where: Where, scratch: Path, progress: Told
    ) -> None:
        self.host, self.plan, self.spec, self.where, self.scratch = host, plan, spec, where, scratch
        self.progress = progress
        self.reference = parse_side(host, plan.reference)
        self.engine = _opened(spec)
        self.graph = self.engine.graph

    def found(self) -> Found | None:
        truths = [self.reference] if self.reference.kind in GRAPHS else []
        others = [self._same_graph()] if self._same_graph() not in truths else []
        for truth in (*truths, *others):
            self.progress(f"looking for the smallest part that differs from {truth.kind}:")
            case = self._by_graph(truth)
            if case is not None:
                against = "the reference" if truth in truths else f"the same graph on {_engine(truth)}"
                return Found(case, self.graph, against)
        reference = open_side(self.host, self.reference, self.plan.question, self.scratch / "reference")
        case = self._by_borders(reference)
        if case is not None:
            return Found(case, self.graph, "the reference")
        case = self._by_module(reference)
        return None if case is None else Found(case, self.graph, "the reference's module")

    def _same_graph(self) -> Spec:
        if self.spec.kind == "onnx":
            return Spec("trt", self.spec.path)
        return Spec("onnx", self.spec.path, {"level": "none"})

    def _windows(self) -> list[list[int]]:
        """Return the operations of the module, of the modules around it, and of the whole."""
        modules, found = module_nodes(self.graph), []
        path = self._path()
        for _ in range(MOST_RISEN):
            if path in modules:
                found.append(modules[path])
            path = path.rpartition(".")[0]
        return [*found, list(range(len(self.graph.nodes)))]

    def _path(self) -> str:
        try:
            return replay_of(self.engine, self.where.module).path if self.where.module else ""
        except TrtdxError:
            return ""

    def _by_graph(self, truth: Spec) -> Case | None:
        try:
            right = _opened(truth)
            samples, _ = samples_of(self.host, self.spec.open(), self.plan.question)
        except TrtdxError:
            return None
        same = self._same(truth)
        for nodes in self._windows():
            data = [
                at
                for at in nodes
                if any(self.graph.kind(v) is Kind.DATA for v in self.graph.nodes[at].outputs)
            ]
            values = [self._values(right, same, data, feeds) for feeds in samples]
            reducer = Reducer(self.engine, values, truth=partial(_part_there, right, same))
            case = reducer.reduced(data)
            if case is not None:
                return reducer.with_fewer_rows(case)
        return None

    def _same(self, truth: Spec) -> dict[str, str]:
        """Return the candidate's tensors that the truth has, and what they are called there."""
        if Path(truth.path) == Path(self.spec.path):
            return {name: name for name in self.graph.values}
        return same_tensors(Graph(open_model(self.spec.path)), Graph(open_model(truth.path)))

    def _values(
        self, right: Any, same: Mapping[str, str], nodes: Sequence[int], feeds: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the right values of what enters some operations and of what they make."""
        names = tensors_of(self.graph, nodes)
        found = {name: feeds[name] for name in names if name in feeds}
        shapes = [n for n in names if n not in found and self.graph.kind(self.graph.values[n]) is Kind.SHAPE]
        if shapes:
            exact = _opened(Spec("onnx", self.spec.path, {"level": "none"}))
            found |= exact.part(shapes, feeds)
        there = right.graph.values
        rest = {
            name: same[name]
            for name in names
            if name not in found
            and same.get(name) in there
            and right.graph.kind(there[same[name]]) is Kind.DATA
        }
        given = {name: array for name, array in feeds.items() if name in right.inputs}
        try:
            made = right.part(list(dict.fromkeys(rest.values())), given) if rest else {}
        except TrtdxError:
            return found
        return found | {name: made[told] for name, told in rest.items()}

    def _by_borders(self, reference: Side) -> Case | None:
        """Return what lies between the first wrong tensor and those before it that the reference has, too."""
        candidate = open_side(
            self.host,
            self.spec,
            self.plan.question,
            self.scratch / "candidate",
            forced=reference.tokens() or None,
        )
        tensor_of = {tap.place: tap.value for tap in self.engine.all_taps}
        known: dict[str, Array] = {}
        last = None
        for pair in align(reference, candidate).pairs:
            tensor = tensor_of.get(pair.candidate.first.place)
            if pair.step != self.where.step or tensor is None or len(pair.candidate.records) != 1:
                continue
            right = in_candidate_layout(pair, reference, candidate)
            if pair.name == self.where.tensor and right is not None:
                last = self.graph.made.get(self.graph.values[tensor])
            known |= {} if right is None else {tensor: right}
        if last is None:
            return None
        samples, _ = samples_of(self.host, self.spec.open(), self.plan.question)
        feeds = samples[self.where.step] if self.where.step < len(samples) else samples[-1]
        part = part_between(self.graph, last, {*known, *feeds})
        shapes = [name for name in part.inputs if name not in known and name not in feeds]
        exact = _opened(Spec("onnx", self.spec.path, {"level": "none"}))
        sample = {**feeds, **(exact.part(shapes, feeds) if shapes else {}), **known}
        reducer = Reducer(self.engine, [sample])
        case = reducer.case(part)
        return None if case is None else reducer.with_fewer_rows(case)

    def _by_module(self, side: Side) -> Case | None:
        """Return the whole module with what the reference's takes and gives, of each step that can be replayed."""
        part: Part | None = None
        samples = []
        for step in sorted({record.step for record in side.capture.records()}):
            spy = _Spy(self.engine)
            try:
                done = replay_from(side.capture, spy.engine, self.where.module, step=step)
            except TrtdxError:
                continue
            finally:
                spy.leave()
            right = {each.name: side.capture.values(each.captured) for each in done.leaving if each.captured}
            if right:
                part = Part((), tuple(spy.taken), tuple(right))
                samples.append({**spy.taken, **right})
        if part is None:
            return None
        reducer = Reducer(self.engine, samples)
        case = reducer.case(part)
        return None if case is None else reducer.with_fewer_rows(case)


def _part_there(
    right: Any, same: Mapping[str, str], names: Sequence[str], feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return some tensors of the candidate's as the truth computes them from others."""
    given = {same.get(name, name): array for name, array in feeds.items()}
    made = right.part([same[name] for name in names], given)
    return {name: made[same[name]] for name in names}


def in_candidate_layout(pair: Pair, reference: Side, candidate: Side) -> Array | None:
    """Return the reference's values of a pair where both sides have them in one layout."""
    ours, theirs = pair.reference, pair.candidate
    if (
        not pair.kept
        or len(ours.records) != 1
        or ours.changes
        or theirs.changes
        or ours.after
        or theirs.after
    ):
        return None
    array = reference.capture.values(ours.first)
    shape = theirs.first.layout.shape
    return (
        array.reshape(shape)
        if array.size == math.prod(shape) and _squeezed(array.shape) == _squeezed(shape)
        else None
    )


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _opened(spec: Spec) -> Any:
    """Return an engine that computes parts of a graph."""
    return spec.open()


class _Spy:
    """Sees what the parts of a graph are fed that an engine computes last."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.taken = engine, dict[str, Any]()
        self._plain = engine.part
        engine.part = self._part

    def _part(self, names: Sequence[str], feeds: Mapping[str, Array]) -> Any:
        self.taken = dict(feeds)
        return self._plain(names, feeds)

    def leave(self) -> None:
        self.engine.part = self._plain


def _engine(spec: Spec) -> str:
    return "TensorRT" if spec.kind == "trt" else "ONNX Runtime without optimisation"


__all__ = ["Reduced", "reduce", "report_of"]
