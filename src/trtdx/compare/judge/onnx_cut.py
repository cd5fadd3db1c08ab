"""A graph computed in one go with every border tensor given: each operation from the tensors just before it.

At each border the graph is cut in two: what is computed there is an output, and what reads it reads a new input. So one
run of the whole graph is a run of each part of it alone, and no error goes from one part to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.capture.store.format import Header
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.sides.side import Side
from trtdx.engines.onnxruntime.session import Options, Session
from trtdx.errors import InputError
from trtdx.formats.onnx.edit import import_onnx_ir
from trtdx.formats.onnx.graph import Graph
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.places import all_taps
from trtdx.tensors.statistics import source_from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from trtdx.capture.store.reader import Capture, Record
    from trtdx.compare.nouns import Array
    from trtdx.tensors.taps import Place

    Given = dict[int, dict[str, Array]]  # by step and value

GIVEN = "__given"
NEW = ":new"  # of a cache, the part that a step has added
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Cut:
    """A graph that is cut at some of its values."""

    def __init__(self, path: str | Path, change: Callable[[Graph], Any] = lambda graph: None) -> None:
        """Open a graph.

        Args:
            path: the file.
            change: what is done to the graph before it is computed; values keep their names.
        """
        self.graph = Graph(open_model(path))
        value_by_place: dict[Place, str] = {}
        self.values = dict(self.graph.values)
        for tap in all_taps(self.graph):
            value_by_place.setdefault(tap.place, tap.value)
        self.value_at = value_by_place
        self.fed = [str(graph_input.name) for graph_input in self.graph.inputs]
        self.changed = change(self.graph)  # whatever it says of what it did
        self.values |= {str(value.name): value for node in self.graph.model.graph for value in node.outputs}

    def value_of(self, record: Record) -> str:
        """Return the value that a record of this graph's capture is of; "" where that is not known."""
        place = record.place
        result_name = place.argument.removesuffix(NEW)  # a graph's result is told by its own name
        return self.value_at.get(place, "") or (
            result_name if result_name in self.graph.values and not place.path else ""
        )

    def values_in(self, capture: Capture, records: Iterable[Record]) -> Given:
        """Return what a capture of this graph has of its values, by step."""
        step_values: Given = {}
        for record in records:
            value = self.value_of(record)
            if (
                value
                and not is_new(record)
                and record.kept
                and value not in step_values.setdefault(record.step, {})
            ):
                step_values[record.step][value] = capture.values(record)
        return step_values

    def run(
        self, fed: Given, borders: Mapping[int, Mapping[str, Array]], more: Collection[str] = ()
    ) -> Given:
        """Return what is computed at each border, from what is given at those before it.

        Args:
            fed: what the model is fed, by step; steps for which something is missing are left out.
            borders: the values to cut at, by step, and what later parts are given there.
            more: values that are wanted as well, and are not cut at.
        """
        names = sorted({name for border_values in borders.values() for name in border_values} - set(self.fed))
        names = [name for name in names if name in self.graph.values]
        if not names:
            return {}
        steps = [
            step
            for step, border_values in borders.items()
            if set(self.fed) <= set(fed.get(step, {})) and border_values
        ]
        extra_outputs = [name for name in more if name in self.values and name not in {*names, *self.fed}]
        inputs = self._cut(names)
        self.graph.model.graph.outputs.extend(self.values[name] for name in extra_outputs)
        session = Session(self.graph.model.graph, self.graph, Options(optimisation="basic", threads=1))
        computed: Given = {}
        for step in steps:
            known_values = {**fed[step], **borders[step]}
            if not set(names) <= set(known_values):
                continue  # another step has other borders
            feeds = {name: known_values[name] for name in self.fed}  # a cache is a border too
            feeds |= {input_name: known_values[name] for name, input_name in inputs.items()}
            computed[step] = session.fetch([*names, *extra_outputs], feeds)
        return computed

    def made_of(self, name: str) -> set[str]:
        """Return the values that one is made of in its own part of the cut graph, itself included."""
        visited: set[str] = set()
        waiting = [self.values.get(name)]
        while waiting:
            value: Any = waiting.pop()
            if value is None or str(value.name) in visited:
                continue
            visited.add(str(value.name))
            maker = value.producer()
            waiting += list(maker.inputs) if maker is not None else []
        return visited

    def _cut(self, names: Iterable[str]) -> dict[str, str]:
        """Cut the graph at values; returns the name of each one's new input, where something reads it."""
        graph, ir = self.graph.model.graph, import_onnx_ir()
        new_inputs: dict[str, str] = {}
        results = []
        for name in names:
            value: Any = self.graph.values[name]
            results.append(value)
            uses = [(use.node, use.idx) for use in value.uses()]
            if not uses:
                continue
            new_input = ir.Value(name=f"{name}{GIVEN}", shape=value.shape, type=value.type)
            for node, input_index in uses:
                node.replace_input_with(input_index, new_input)
            graph.inputs.append(new_input)
            new_inputs[name] = str(new_input.name)
        graph.outputs[:] = results
        return new_inputs


def is_new(record: Record) -> bool:
    """Whether a record is the part of a cache that a step has added."""
    return record.name.endswith(NEW)


def _as_recorded(array: Array | None, record: Record) -> Array | None:
    """Return an array as a record has it: of a cache only what is new, which is at the end."""
    shape = record.layout.shape
    if array is None or array.shape == shape:
        return array
    if not is_new(record) or array.ndim != len(shape):
        return None
    return array[
        tuple(slice(have - want, None) for have, want in zip(array.shape, shape, strict=True))
    ].copy()


def written(
    found: Mapping[int, Mapping[str, Array]], cut: Cut, records: Iterable[Record], like: Side, folder: Path
) -> Side:
    """Return a side whose capture has what was computed, at the places of some records."""
    header = like.capture.header
    with CaptureWriter(
        folder,
        Header(run=folder.name, engine=header.engine, selector=header.selector, details=header.details),
        parquet=False,
    ) as writer:
        for record in sorted(records, key=lambda record: record.step):
            array = _as_recorded(found.get(record.step, {}).get(cut.value_of(record)), record)
            if array is not None:
                writer.add(record.step, record.place, source_from_array(array), values=True)
    if not folder.is_dir():
        raise InputError(f"nothing was computed for {folder.name}")
    return Side(like.spec, folder)
