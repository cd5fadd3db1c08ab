"""The same run in another layout: captures written anew with parts fused, rows packed, or padding added."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


def _steps(capture: Any) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for record in capture.records():
        if record.kept:
            found[record.step].append(record)
    return found


def rewritten(source: Path, folder: Path, change: Any) -> None:
    """Write a capture anew: `change(records, values)` yields (place, array) for each step."""
    from trtdx.capture.format import Header
    from trtdx.capture.reader import Capture
    from trtdx.capture.stats import source_from_array
    from trtdx.capture.store import CaptureWriter

    with Capture(source) as capture:
        header = capture.header
        copied = Header(
            run=header.run, engine=header.engine, selector=header.selector, details=header.details
        )
        with CaptureWriter(folder, copied, parquet=False) as writer:
            notes = {note.step: note.data for note in capture.notes()}
            for step, records in _steps(capture).items():
                for place, array in change(records, capture.values):
                    writer.add(step, place, source_from_array(np.ascontiguousarray(array)), values=True)
                if step in notes:
                    writer.note(step, notes[step])


def fused(records: list[Any], values: Any) -> Any:
    """Queries, keys and values leave one module, gate and up another, as in most serving engines."""
    waiting: dict[str, list[Any]] = defaultdict(list)
    for record in records:
        scope, _, part = record.place.path.rpartition(".")
        name = FUSED.get(part)
        if name is None:
            yield record.place, values(record)
            continue
        place = record.place._replace(path=f"{scope}.{name}")
        if place.port == "in":
            if part in ("q_proj", "gate_proj"):
                yield place, values(record)
            continue
        waiting[scope, name].append(values(record))  # type: ignore[index]
        if part in ("v_proj", "up_proj"):
            yield place, np.concatenate(waiting.pop((scope, name)), -1)  # type: ignore[call-overload]


def packed(records: list[Any], values: Any) -> Any:
    """Rows of padding are not there, and all sequences lie one after the other: [tokens, ...]."""
    ids = next(values(record) for record in records if record.name == "input_ids")
    mask = next(values(record) for record in records if record.name == "attention_mask")[
        :, -ids.shape[1] :
    ].astype(bool)
    for record in records:
        array = values(record)
        if record.name in ("prompt", "prompt_mask", "input_ids", "attention_mask", "position_ids"):
            yield record.place, array
        elif array.shape[:2] == mask.shape:
            yield record.place, array[mask]
        elif "attention_mask" not in record.name:
            yield record.place, array
