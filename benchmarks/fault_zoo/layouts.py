"""The same run in another layout: captures written anew with parts fused, rows packed, or padding added."""

from __future__ import annotations

import re
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
    from trtdx.capture.store.format import CaptureHeader
    from trtdx.capture.store.reader import Capture
    from trtdx.capture.store.writer import CaptureWriter
    from trtdx.tensors.statistics import source_from_array

    with Capture(source) as capture:
        header = capture.header
        copied = CaptureHeader(run=header.run, engine=header.engine, selector=header.selector, details=header.details)
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
    mask = next(values(record) for record in records if record.name == "attention_mask")[:, -ids.shape[1] :].astype(
        bool
    )
    for record in records:
        array = values(record)
        if record.name in ("prompt", "prompt_mask", "input_ids", "attention_mask", "position_ids"):
            yield record.place, array
        elif array.shape[:2] == mask.shape:
            yield record.place, array[mask]
        elif "attention_mask" not in record.name:
            yield record.place, array


PADDED_TO = 192  # columns of logits: engines round the size of a vocabulary up
STAGES = 2


def wider_vocabulary(records: list[Any], values: Any) -> Any:
    """Logits have columns that no token has, with whatever their weights make of it."""
    for record in records:
        array = values(record)
        if record.name.endswith(("lm_head:out", "logits")):
            more = PADDED_TO - array.shape[-1]
            array = np.concatenate((array, np.full((*array.shape[:-1], more), -3, array.dtype)), -1)
        yield record.place, array


def beams(records: list[Any], values: Any) -> Any:
    """Each sequence is there twice, one after the other, as a search that has not forked yet computes it."""
    rows = next(values(record) for record in records if record.name == "input_ids").shape[0]
    for record in records:
        array = values(record)
        yield record.place, np.repeat(array, 2, 0) if array.shape[:1] == (rows,) else array


def in_stages(source: Path, folder: Path, *, local: bool) -> None:
    """Write a capture anew as two stages of a pipeline: ranks that have half of the layers each, perhaps counted from 0."""
    from trtdx.capture.store.format import CaptureHeader
    from trtdx.capture.store.reader import Capture
    from trtdx.capture.store.writer import CaptureWriter
    from trtdx.tensors.statistics import source_from_array

    with Capture(source) as capture:
        header, notes = capture.header, {note.step: note.data for note in capture.notes()}
        count = 1 + max(_layer(record.name)[1] for record in capture.records())
        for rank in range(STAGES):
            own = CaptureHeader(run=header.run, engine=header.engine, selector=header.selector, rank=rank,
                         details={**header.details, "pipeline_parallel": STAGES})  # fmt: skip
            with CaptureWriter(folder, own, parquet=False) as writer:
                for step, records in _steps(capture).items():
                    for record in records:
                        place = _at_stage(record, rank, count // STAGES, local=local)
                        if place is not None:
                            array = np.ascontiguousarray(capture.values(record))
                            writer.add(step, place, source_from_array(array), values=True)
                    if step in notes:
                        writer.note(step, notes[step])


def _layer(name: str) -> tuple[str, int]:
    """Return what stands before the number of a layer in a name, and the number; -1 where there is none."""
    found = re.match(r"(.*?\.(?:layers|h)\.|(?:past|present)\.)(\d+)", name)
    return (found[1], int(found[2])) if found else ("", -1)


def _at_stage(record: Any, rank: int, size: int, *, local: bool) -> Any:
    """Return where a stage has a record; nothing if another stage has it."""
    before, number = _layer(record.name)
    if number < 0:
        last = record.place.path.startswith(("model.norm", "lm_head", "transformer.ln_f")) or "logits" in record.name
        return None if record.place.path and last != bool(rank) else record.place
    if number // size != rank:
        return None
    if not local or not record.place.path:
        return record.place
    moved = f"{before}{number - rank * size}"
    return record.place._replace(path=moved + record.place.path[len(f"{before}{number}") :])
