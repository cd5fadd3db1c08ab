"""What trtexec exports: times of inferences (`--exportTimes`) and of layers (`--exportProfile`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.trace.names import module_from_node
from trtdx.trace.nouns import SpanKind, SpanName, SpanTable, StepWords
from trtdx.trace.readers.figures import number_from, time_from

if TYPE_CHECKING:
    from collections.abc import Sequence

_PARTS = (("H2d", SpanKind.COPY), ("Compute", SpanKind.KERNEL), ("D2h", SpanKind.COPY))


def table_from_times(records: Sequence[dict[str, Any]], path: str) -> SpanTable:
    """Return the spans of inferences: enqueuing on the host, the copies and the computing on the device."""
    table = SpanTable(path, "trtexec times")
    host, stream = table.add_track("host", "enqueue"), table.add_track("GPU", "stream")
    step = table.add_name(SpanName("inference", SpanKind.HOST, step=StepWords()))
    enqueue = table.add_name(SpanName("enqueue", SpanKind.LAUNCH))
    names = {part: table.add_name(SpanName(part, kind, operator=part)) for part, kind in _PARTS}
    for record in records:
        edges = _edges_from(record)
        if edges is None:
            table.skipped += 1
            continue
        begin, end = min(edges["Enq"][0], edges["H2d"][0]), max(edges["Enq"][1], edges["D2h"][1])
        table.add_span(step, host, begin, end - begin)
        table.add_span(enqueue, host, edges["Enq"][0], edges["Enq"][1] - edges["Enq"][0])
        for part, name in names.items():
            table.add_span(name, stream, edges[part][0], edges[part][1] - edges[part][0])
    return table


def _edges_from(record: dict[str, Any]) -> dict[str, tuple[float, float]] | None:
    """Return when each part of an inference began and ended, in microseconds; None where one is not told."""
    edges = {}
    for part in ("Enq", *(part for part, _ in _PARTS)):
        start, end = (time_from(record.get(f"{edge}{part}Ms")) for edge in ("start", "end"))
        if start is None or end is None:
            return None
        edges[part] = (start * 1e3, end * 1e3)
    return edges


def table_from_layers(records: Sequence[dict[str, Any]], path: str) -> SpanTable:
    """Return one inference of average length, its layers one behind the other: when they ran was not recorded."""
    table = SpanTable(path, "TensorRT layer profile")
    table.is_synthetic_clock = True
    stream = table.add_track("GPU", "stream")
    at = 0.0
    for record in records:
        if "averageMs" not in record:  # the first has only the count of runs
            continue
        text, length = str(record.get("name", "")), max(number_from(record["averageMs"]), 0.0) * 1e3
        name = SpanName(text, SpanKind.KERNEL, module=module_from_node(text), operator=_layer_type(text))
        table.add_span(table.add_name(name), stream, at, length)
        at += length
    return table


def _layer_type(text: str) -> str:
    return "Reformat" if "eformat" in text else text
