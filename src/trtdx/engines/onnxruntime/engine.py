"""Any ONNX model on ONNX Runtime, watched without an edit of its file.

    engine = OrtEngine("model.onnx", "layers.*.mlp:out", sink=show, budget_bytes=1 << 30)
    engine.run({"input_ids": ids, ...})             # one step; `show` gets every selected tensor
    for step in generate_tokens(engine, ids, 16): ...      # many steps with a KV cache
    engine.replay("layers.3", captured)             # one module with captured inputs

Selected tensors become outputs of a copy of the graph in memory; weights stay in their files. ONNX Runtime cannot
fuse across an output: `OrtEngine.tap_effect` tells what that changed. Where the selected tensors exceed the budget, the
graph is computed in parts. At optimisation "none" the parts give bitwise what the whole gives; otherwise they do
as long as no cut goes through something that would have been fused, and cuts between modules seldom do.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.engines.engine import Array, OperatorInput, Sink, TapEffect
from trtdx.engines.onnxruntime.replay import PartialEngine
from trtdx.engines.onnxruntime.segments import (
    GraphSegment,
    ValueSizes,
    bounds_within_budget,
    extract_subgraph,
    split_graph,
    tap_bytes_by_node,
    weight_bytes,
    weight_bytes_by_node,
)
from trtdx.engines.onnxruntime.session import (
    OrtOptions,
    OrtSession,
    count_optimised_operators,
    import_onnxruntime,
    trim_free_memory,
)
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph
from trtdx.formats.onnx.places import OnnxTap, all_taps, declared_input
from trtdx.tensors.feeds import check_feeds
from trtdx.tensors.taps import Place, Selector, parse_selector
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


SLACK_BYTES = 64 << 20  # of freed memory that may wait to be given back


def onnx_model_places(path: str | Path) -> list[Place]:
    """Return every place of a model, in the order of the data's flow, without reading a weight."""
    return list(dict.fromkeys(tap.place for tap in all_taps(OnnxGraph(open_model(path)))))


class OrtEngine(PartialEngine):
    """A model, what to watch in it, and where what is seen goes."""

    kind = "onnxruntime"

    def __init__(
        self,
        path: str | Path,
        selector: Selector | str = "",
        *,
        sink: Sink | None = None,
        optimisation: str = "all",
        budget_bytes: int | None = None,
        weight_budget_bytes: int | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        threads: int = 0,
        settings: Mapping[str, str] | None = None,
        disabled: Sequence[str] = (),
    ) -> None:
        """Open a model; nothing is computed yet.

        Args:
            path: an ONNX file, its external data beside it.
            selector: what to watch; nothing where it is empty.
            sink: called with each selected tensor, in the order of the data's flow. The array is ONNX Runtime's
                own memory: keep it as long as you like, and do not write to it.
            optimisation: "none", "basic", "extended" or "all"; what production uses is "all".
            budget_bytes: how much of selected tensors may be in memory at once; without one, all of a step.
            weight_budget_bytes: how much of weights ONNX Runtime may hold at once, in memory of its own; parts
                of the model beyond that are loaded for each step and let go. Without one, all weights.
            providers: ONNX Runtime's execution providers, best first.
            threads: how many compute one operator; 0 leaves it to ONNX Runtime.
            settings: entries of the session's configuration, such as {"session.x64quantprecision": "1"}.
            disabled: optimisers that are not to run, by name.
        """
        self.path, self.sink = Path(path), sink
        self.budget_bytes, self.weight_budget_bytes = budget_bytes, weight_budget_bytes
        sparing = budget_bytes is not None or weight_budget_bytes is not None
        self.options = OrtOptions(
            optimisation, tuple(providers), threads, sparing, tuple((settings or {}).items()), tuple(disabled)
        ).validate()
        self.graph = OnnxGraph(open_model(path))
        self.all_taps = all_taps(self.graph)
        self.taps = _select_taps(self.all_taps, selector)
        self.inputs = {str(value.name): declared_input(value) for value in self.graph.inputs}
        self.outputs = [str(value.name) for value in self.graph.outputs]
        self.step = 0  # the number that the next run has
        self._bounds = [0, len(self.graph.nodes)]
        if weight_budget_bytes is not None:
            weights = weight_bytes_by_node(self.graph)
            self._bounds = bounds_within_budget(self.graph, weights, weight_budget_bytes, self._bounds)
        self._segments = split_graph(self.graph, self.taps, self._bounds)
        self._sessions: dict[tuple[int, int], OrtSession] = {}
        self._session_weight_bytes = 0  # of weights, by these sessions
        self._freed_bytes = 0  # of tensors, since memory was last given back

    @property
    def segments(self) -> list[GraphSegment]:
        """The parts in which the graph is computed; a budget may make them more after a run with larger inputs."""
        return list(self._segments)

    @property
    def details(self) -> dict[str, Any]:
        """What a reader of the capture has to know to repeat the run."""
        return {
            "onnxruntime": import_onnxruntime().__version__,
            "model": str(self.path),
            "optimisation": self.options.optimisation,
            "providers": list(self.options.providers),
            "threads": self.options.threads,
            "settings": dict(self.options.settings),
            "disabled": list(self.options.disabled),
            "budget_bytes": self.budget_bytes,
        }

    def operator_inputs(self, place: Place) -> list[OperatorInput]:
        """Return what the node behind a place reads; nothing for what is fed."""
        value = next((tap.value for tap in self.all_taps if tap.place == place), "")
        output = self.graph.values.get(value)
        if output is None or output not in self.graph.producers or place.port != "out":
            return []
        read = self.graph.reads[self.graph.producers[output]]
        return [
            OperatorInput(str(operand.name), None if operand.const_value is None else operand.const_value.numpy())
            for operand in read
        ]

    def with_selector(self, selector: Selector, sink: Sink) -> OrtEngine:
        """Return the same model with another selector and sink."""
        return OrtEngine(
            self.path,
            selector,
            sink=sink,
            optimisation=self.options.optimisation,
            budget_bytes=self.budget_bytes,
            weight_budget_bytes=self.weight_budget_bytes,
            providers=self.options.providers,
            threads=self.options.threads,
            settings=dict(self.options.settings),
            disabled=self.options.disabled,
        )

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Compute one step: returns the model's outputs, and hands each selected tensor to the sink.

        Raises:
            InputError: something fed is missing, unknown, or of another type or shape than the model declares.
            EvaluationError: ONNX Runtime cannot compute a node.
        """
        arrays = check_feeds(self.inputs, feeds)
        self._fit_tap_budget({name: array.shape for name, array in arrays.items()})
        alive = self._constant_outputs | arrays
        step, self.step = self.step, self.step + 1
        for segment in self._segments:
            alive |= self._compute_segment(segment, alive)
            self.emit_taps(segment.taps, alive, step)
            alive = self._release_unneeded(alive, segment)
        return {name: alive[name] for name in self.outputs}

    def _compute_segment(self, segment: GraphSegment, alive: Mapping[str, Array]) -> dict[str, Array]:
        if not segment.outputs:
            return {}
        session = self._segment_session(segment)
        return session.compute_values(segment.outputs, {name: alive[name] for name in segment.inputs})

    def _release_unneeded(self, alive: dict[str, Array], segment: GraphSegment) -> dict[str, Array]:
        """Return what later parts need; the memory of the rest goes back to the system from time to time."""
        needed = {name: array for name, array in alive.items() if name in segment.needed_later}
        self._freed_bytes += sum(array.nbytes for name, array in alive.items() if name not in needed)
        if self.budget_bytes is not None and self._freed_bytes > max(self.budget_bytes, SLACK_BYTES):
            alive.clear()
            trim_free_memory()
            self._freed_bytes = 0
        return needed

    def compute_tensors(self, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return some tensors of the graph, computed from others."""
        session = OrtSession(extract_subgraph(self.graph, feeds, names), self.graph, self.options)
        return session.compute_values(names, feeds)

    def _fit_tap_budget(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Cut the graph further where the selected tensors of these inputs would exceed the budget."""
        if self.budget_bytes is None or not self.taps:
            return
        size_of = ValueSizes(self.graph, shapes).bytes_by_name({tap.value for tap in self.taps})
        cost = tap_bytes_by_node(self.graph, self.taps, size_of)
        bounds = bounds_within_budget(self.graph, cost, self.budget_bytes, self._bounds)
        if bounds != self._bounds:
            self._bounds = bounds
            self._segments = split_graph(self.graph, self.taps, bounds)
            self.close()

    def _segment_session(self, segment: GraphSegment) -> OrtSession:
        """Return a session, made when it is first needed and kept if the budget of weights has room for it."""
        key = segment[:2]
        if key in self._sessions:
            return self._sessions[key]
        part = self._extract_segment(segment)
        session, size = OrtSession(part, self.graph, self.options), weight_bytes(part)
        if self.weight_budget_bytes is None or self._session_weight_bytes + size <= self.weight_budget_bytes:
            self._sessions[key] = session
            self._session_weight_bytes += size
        return session

    def _extract_segment(self, segment: GraphSegment) -> Any:
        return extract_subgraph(self.graph, segment.inputs, segment.outputs)

    @cached_property
    def _constant_outputs(self) -> dict[str, Array]:
        """The outputs that are weights."""
        return {
            str(value.name): value.const_value.numpy()
            for value in self.graph.outputs
            if value.is_initializer() and value.const_value is not None
        }

    @cached_property
    def tap_effect(self) -> TapEffect:
        """What watching changed; told by building the optimised graph with and without, so it takes a while."""
        unsplit = split_graph(self.graph, (), [0, len(self.graph.nodes)])
        plain = self._count_operators(unsplit)
        watched = self._count_operators(self._segments)
        return TapEffect(
            self.options.optimisation != "none",
            len({tap.value for tap in self.taps}),
            _render_tap_effect(self.options, len(self._segments), plain, watched),
        )

    def _count_operators(self, segments: Sequence[GraphSegment]) -> Counter[str]:
        operators: Counter[str] = Counter()
        for part in segments:
            if part.outputs:
                operators += count_optimised_operators(self._extract_segment(part), self.graph, self.options)
        return operators

    def close(self) -> None:
        """Let go of the sessions and the memory they hold; a later run makes new ones."""
        self._sessions.clear()
        self._session_weight_bytes = 0


def _select_taps(taps: Sequence[OnnxTap], selector: Selector | str) -> list[OnnxTap]:
    if not selector:
        return []
    parsed = parse_selector(selector) if isinstance(selector, str) else selector
    chosen = set(parsed.select_or_raise([tap.place for tap in taps]))
    return [tap for tap in taps if tap.place in chosen]


def _render_tap_effect(options: OrtOptions, parts: int, plain: Counter[str], watched: Counter[str]) -> str:
    """Return how the computed graph differs from the unwatched one, in one line."""
    nodes = f"{format_count(plain.total(), 'node')} unwatched, {watched.total()} watched"
    note = f"optimisation {options.optimisation!r}: {nodes}"
    if parts > 1:
        note += f" in {parts} parts"
    lost, gained = plain - watched, watched - plain
    if not lost and not gained:
        return f"{note}; watching changed nothing"
    was, now = (", ".join(f"{count} {op}" for op, count in operators.most_common()) for operators in (lost, gained))
    if was and now:
        return f"{note}; watching replaced {was} by {now}"
    return f"{note}; watching {f'added {now}' if now else f'removed {was}'}"
