"""A graph computed in one go with every border tensor given: each operation from the tensors just before it.

At each border the graph is cut in two: what is computed there is an output, and what reads it reads a new input. So one
run of the whole graph is a run of each part of it alone, and no error goes from one part to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.sides.side import Side
from trtdx.engines.onnxruntime.session import OrtOptions, OrtSession
from trtdx.errors import InputError
from trtdx.formats.onnx.edit import import_onnx_ir
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph
from trtdx.formats.onnx.places import all_taps
from trtdx.tensors.statistics import source_from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from trtdx.capture.store.reader import Capture, TensorRecord
    from trtdx.compare.nouns import Array
    from trtdx.tensors.taps import Place

    StepValues = dict[int, dict[str, Array]]  # by step and value

CUT_INPUT_SUFFIX = "__given"
NEW_CACHE_SUFFIX = ":new"  # of a cache, the part that a step has added
FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")


class CutGraph:
    """A graph that is cut at some of its values."""

    def __init__(self, path: str | Path, change: Callable[[OnnxGraph], Any] = lambda graph: None) -> None:
        """Open a graph.

        Args:
            path: the file.
            change: what is done to the graph before it is computed; values keep their names.
        """
        self.graph = OnnxGraph(open_model(path))
        value_by_place: dict[Place, str] = {}
        self.values = dict(self.graph.values)
        for tap in all_taps(self.graph):
            value_by_place.setdefault(tap.place, tap.value)
        self.value_by_place = value_by_place
        self.input_names = [str(graph_input.name) for graph_input in self.graph.inputs]
        self.change_result = change(self.graph)  # whatever it says of what it did
        self.values |= {str(value.name): value for node in self.graph.model.graph for value in node.outputs}

    def value_of_record(self, record: TensorRecord) -> str:
        """Return the value that a record of this graph's capture is of; "" if that is not known."""
        place = record.place
        result_name = place.argument.removesuffix(NEW_CACHE_SUFFIX)  # a graph's result is told by its own name
        return self.value_by_place.get(place, "") or (
            result_name if result_name in self.graph.values and not place.path else ""
        )

    def captured_values(self, capture: Capture, records: Iterable[TensorRecord]) -> StepValues:
        """Return what a capture of this graph has of its values, by step."""
        step_values: StepValues = {}
        for record in records:
            value = self.value_of_record(record)
            if (
                value
                and not is_new_cache_part(record)
                and record.kept
                and value not in step_values.setdefault(record.step, {})
            ):
                step_values[record.step][value] = capture.values(record)
        return step_values

    def run_parts(
        self,
        model_inputs: StepValues,
        borders: Mapping[int, Mapping[str, Array]],
        extra_values: Collection[str] = (),
    ) -> StepValues:
        """Return what is computed at each border, from what is given at those before it.

        Args:
            model_inputs: what the model is fed, by step; steps for which something is missing are left out.
            borders: the values to cut at, by step, and what later parts are given there.
            extra_values: values that are wanted as well, and are not cut at.
        """
        names = sorted({name for border_values in borders.values() for name in border_values} - set(self.input_names))
        names = [name for name in names if name in self.graph.values]
        if not names:
            return {}
        steps = [
            step
            for step, border_values in borders.items()
            if set(self.input_names) <= set(model_inputs.get(step, {})) and border_values
        ]
        extra_outputs = [
            name for name in extra_values if name in self.values and name not in {*names, *self.input_names}
        ]
        inputs = self._cut_at(names)
        self.graph.model.graph.outputs.extend(self.values[name] for name in extra_outputs)
        session = OrtSession(self.graph.model.graph, self.graph, OrtOptions(optimisation="basic", threads=1))
        computed: StepValues = {}
        for step in steps:
            known_values = {**model_inputs[step], **borders[step]}
            if not set(names) <= set(known_values):
                continue  # another step has other borders
            feeds = {name: known_values[name] for name in self.input_names}  # a cache is a border too
            feeds |= {input_name: known_values[name] for name, input_name in inputs.items()}
            computed[step] = session.compute_values([*names, *extra_outputs], feeds)
        return computed

    def ancestors_of(self, name: str) -> set[str]:
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

    def _cut_at(self, names: Iterable[str]) -> dict[str, str]:
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
            new_input = ir.Value(name=f"{name}{CUT_INPUT_SUFFIX}", shape=value.shape, type=value.type)
            for node, input_index in uses:
                node.replace_input_with(input_index, new_input)
            graph.inputs.append(new_input)
            new_inputs[name] = str(new_input.name)
        graph.outputs[:] = results
        return new_inputs


def is_new_cache_part(record: TensorRecord) -> bool:
    """Whether a record is the part of a cache that a step has added."""
    return record.name.endswith(NEW_CACHE_SUFFIX)


def _match_record_shape(array: Array | None, record: TensorRecord) -> Array | None:
    """Return an array as a record has it: of a cache only what is new, which is at the end."""
    shape = record.layout.shape
    if array is None or array.shape == shape:
        return array
    if not is_new_cache_part(record) or array.ndim != len(shape):
        return None
    return array[tuple(slice(have - want, None) for have, want in zip(array.shape, shape, strict=True))].copy()


def write_computed_capture(
    computed: Mapping[int, Mapping[str, Array]],
    cut: CutGraph,
    records: Iterable[TensorRecord],
    template: Side,
    folder: Path,
) -> Side:
    """Return a side whose capture has what was computed, at the places of some records."""
    header = template.capture.header
    with CaptureWriter(
        folder,
        CaptureHeader(run=folder.name, engine=header.engine, selector=header.selector, details=header.details),
        parquet=False,
    ) as writer:
        for record in sorted(records, key=lambda record: record.step):
            array = _match_record_shape(computed.get(record.step, {}).get(cut.value_of_record(record)), record)
            if array is not None:
                writer.add(record.step, record.place, source_from_array(array), values=True)
    if not folder.is_dir():
        raise InputError(f"nothing was computed for {folder.name}")
    return Side(template.spec, folder)
