"""What trtexec exports: times of inferences (`--exportTimes`) and of layers (`--exportProfile`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.trace.names import module_from_node
from trtdx.trace.nouns import SpanKind, SpanName, SpanTable, StepWords

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
        begin = min(record["startEnqMs"], record["startH2dMs"]) * 1e3
        end = max(record["endEnqMs"], record["endD2hMs"]) * 1e3
        table.add_span(step, host, begin, end - begin)
        table.add_span(enqueue, host, record["startEnqMs"] * 1e3, (record["endEnqMs"] - record["startEnqMs"]) * 1e3)
        for part, name in names.items():
            start = record[f"start{part}Ms"] * 1e3
            table.add_span(name, stream, start, record[f"end{part}Ms"] * 1e3 - start)
    return table


def table_from_layers(records: Sequence[dict[str, Any]], path: str) -> SpanTable:
    """Return one inference of average length, its layers one behind the other: when they ran was not recorded."""
    table = SpanTable(path, "TensorRT layer profile")
    table.is_synthetic_clock = True
    stream = table.add_track("GPU", "stream")
    at = 0.0
    for record in records:
        if "averageMs" not in record:  # the first has only the count of runs
            continue
        text, length = str(record["name"]), float(record["averageMs"]) * 1e3
        name = SpanName(text, SpanKind.KERNEL, module=module_from_node(text), operator=_layer_type(text))
        table.add_span(table.add_name(name), stream, at, length)
        at += length
    return table


def _layer_type(text: str) -> str:
    return "Reformat" if "eformat" in text else text
