"""One side as alignment sees it: its tensors by step and name, those of several ranks together, in data-flow order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.layer_paths import LAYERS, count_layers, layer_number
from trtdx.tensors.cache_names import cache_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.capture.store.reader import Capture, TensorRecord
    from trtdx.compare.nouns import Array
    from trtdx.tensors.taps import Place


_LAYER_INDEX = re.compile(rf"((?:^|\.){LAYERS}\.)(\d+)(?=\.|:|$|_)")


class NamedTensor(NamedTuple):
    """One tensor name of a side: its place, and its records at the first step that has any."""

    name: str
    place: Place
    step: int
    records: tuple[TensorRecord, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.records[0].layout.shape

    @property
    def kind(self) -> str:
        """The kind of its elements: "i" (integer), "b" (boolean) or "f" (floating point)."""
        dtype = self.records[0].layout.dtype
        return "b" if dtype == "bool" else "i" if dtype.startswith(("int", "uint")) else "f"


class SideTensors:
    """The records of one side, indexed once."""

    def __init__(self, capture: Capture, *, layers: int = 0) -> None:
        """Index a capture.

        Where the other side has more layers than this one, stages of a pipeline count their own from 0.
        """
        self.capture, self.notes = capture, list[str]()
        self.architecture = str(capture.header.details.get("architecture", ""))
        self.steps: dict[int, dict[str, tuple[TensorRecord, ...]]] = {}
        self._find_pipeline_stages(layers)
        self._index_records()
        self.by_name = self._collect_tensors()

    def _index_records(self) -> None:
        by_step: dict[int, dict[str, dict[int, TensorRecord]]] = {}
        for rank in self.capture.ranks:
            offset = self.offsets.get(rank, 0)
            names: dict[Place, str] = {}
            for record in self.capture.records(rank=rank):
                name = names.get(record.place)
                if name is None:
                    name = names[record.place] = _offset_layer(record.place.name, offset)
                here = by_step.setdefault(record.step, {}).setdefault(name, {})
                before = here.get(rank)
                if before is None or (record.kept and not before.kept):
                    here[rank] = record
        for step in sorted(by_step):
            tensors = {name: tuple(records.values()) for name, records in by_step[step].items()}
            self.steps[step] = {name: tensors[name] for name in sort_by_data_flow(list(tensors))}

    def _find_pipeline_stages(self, layers: int) -> None:
        """Find out whether each pipeline stage numbers its layers from 0."""
        self.offsets: dict[int, int] = {}
        ranks = self.capture.ranks
        counts = {rank: count_layers(place.path for place in self.capture.files(rank).places) for rank in ranks}
        layer_count = max(counts.values(), default=0)
        self.layers = layer_count
        if len(ranks) < 2 or not layer_count or layers <= layer_count or layers % layer_count:
            return
        stages = layers // layer_count
        if len(ranks) % stages or set(counts.values()) != {layer_count}:
            return
        beside = len(ranks) // stages
        self.offsets = {rank: number // beside * layer_count for number, rank in enumerate(ranks)}
        self.notes.append(
            f"{self.capture.folder}: {stages} stages of a pipeline count their {layer_count} layers from 0 each; "
            f"those of stage 1 are taken as layers {layer_count} to {2 * layer_count - 1}, and so on"
        )

    def _collect_tensors(self) -> dict[str, NamedTensor]:
        named: dict[str, NamedTensor] = {}
        for step, tensors in self.steps.items():
            for name, records in tensors.items():
                before = named.get(name)
                if before is None or _is_empty(before.records) > _is_empty(records):  # as a cache is at first
                    place = records[0].place
                    offset = self.offsets.get(records[0].rank, 0)
                    path, tensor = _offset_layer(place.path, offset), _offset_layer(place.tensor, offset)
                    place = place._replace(path=path, tensor=tensor)
                    named[name] = NamedTensor(name, place, step, records)
        return named

    def reorder_steps(self, key: Callable[[str], Any]) -> None:
        """Put the tensors of each step in another order."""
        self.steps = {
            step: {name: tensors[name] for name in sorted(tensors, key=key)} for step, tensors in self.steps.items()
        }

    def steps_with(self, name: str) -> Iterator[tuple[int, tuple[TensorRecord, ...]]]:
        """Yield the steps that have a name, and its records there."""
        for step, tensors in self.steps.items():
            if name in tensors:
                yield step, tensors[name]

    def kept_value(self, step: int, *names: str) -> Array | None:
        """Return the values of the first of some names that a step kept."""
        for name in names:
            for record in self.steps.get(step, {}).get(name, ()):
                if record.kept:
                    return self.capture.values(record)
        return None


def _is_empty(records: tuple[TensorRecord, ...]) -> bool:
    return not any(record.statistics.elements for record in records)


def _offset_layer(name: str, offset: int) -> str:
    """Return a name with its layer counted from the pipeline's beginning."""
    return _LAYER_INDEX.sub(lambda match: f"{match[1]}{int(match[2]) + offset}", name, count=1) if offset else name


def sort_by_data_flow(names: list[str]) -> list[str]:
    """Return names in data-flow order: as captured, except that a cache stands where its layer fills it, not where it is returned.

    It is filled before the attention's values go through its output projection: what enters that, or leaves it where only
    outputs were kept, is the first tensor of the layer that depends on it.
    """
    caches = {name: key.split(".")[0] for name in names if (key := _cache_part(name))}
    if not caches:
        return names
    ordered: list[str] = []
    waiting = dict(caches)
    for name in names:
        if name in caches:
            continue
        layer = layer_number(name.partition(":")[0])
        if layer is not None and _is_after_cache(name):
            ready = [cache for cache, number in waiting.items() if number == str(layer)]
            ordered += ready
            for cache in ready:
                del waiting[cache]
        ordered.append(name)
    return ordered + list(waiting)


_AFTER_CACHE = re.compile(
    r"(?:\.(?:o_proj|dense|out_proj|c_proj|wo):(?:in|out)|\.(?:self_attn|attention|attn|self_attention):out|\.\d+:out)$"
)


def _is_after_cache(name: str) -> bool:
    return bool(_AFTER_CACHE.search(name))


def _cache_part(name: str) -> str:
    return cache_key(name.removeprefix(":out.").removesuffix(":new"))
