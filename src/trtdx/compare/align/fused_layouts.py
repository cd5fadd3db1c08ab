"""Tensors that one side keeps together and the other apart: queries, keys and values; gate and up.

The order inside is the one that the module's name declares, on its architecture. Numbers never choose it: were the
order the mistake, choosing the one that fits would hide it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtdx.compare.nouns import LayoutChange
from trtdx.errors import InputError

if TYPE_CHECKING:
    from trtdx.compare.align.name_matching import NameMatch, SideNames
    from trtdx.compare.align.side_tensors import NamedTensor, SideTensors
    from trtdx.compare.nouns import Array

    Changes = tuple[tuple[LayoutChange, ...], tuple[LayoutChange, ...]]

FUSED_PARTS = {"attention.qkv": ("q", "k", "v"), "mlp.gate_up": ("gate", "up")}
_UP_FIRST = {"fused_fc"}  # TensorRT-LLM: [gate | fc], where its gate is up and its fc what the activation is of
_BY_GROUP = {"linear_qkv", "wqkv"}
_BLOCKS_OF_QKV = re.compile(r"glm", re.IGNORECASE)  # architectures whose query_key_value is q | k | v
_PART_TEXT = re.compile(r"(?:part (\w+) of|(regroup)) (?:(\d+) x )?((?:\w+:\d+ ?)+)")


class FusedLayout(NamedTuple):
    """How the columns of a fused tensor are divided: groups that follow each other, each with all parts."""

    groups: int
    parts: tuple[tuple[str, int], ...]  # names in their order, and columns

    @property
    def columns(self) -> int:
        return self.groups * sum(width for _, width in self.parts)

    @property
    def text(self) -> str:
        groups = f"{self.groups} x " if self.groups > 1 else ""
        return groups + " ".join(f"{name}:{width}" for name, width in self.parts)

    def part_change(self, part: str) -> LayoutChange:
        """Return the change that takes one part out."""
        names = [name for name, _ in self.parts]
        begin = sum(width for _, width in self.parts[: names.index(part)])
        end = begin + self.parts[names.index(part)][1]

        def apply(array: Array) -> Array:
            if self.groups == 1:
                return array[..., begin:end]
            return array.reshape(*array.shape[:-1], self.groups, -1)[..., begin:end]

        return LayoutChange(f"part {part} of {self.text}", apply)

    def regroup_change(self) -> LayoutChange:
        """Return the change that puts the parts of all groups side by side; groups are shards here."""

        def apply(array: Array) -> Array:
            shards = array.reshape(*array.shape[:-1], self.groups, -1)
            ends = np.cumsum([width for _, width in self.parts])[:-1]
            parts = np.split(shards, ends, -1)
            return np.concatenate([part.reshape(*array.shape[:-1], -1) for part in parts], -1)

        return LayoutChange(f"regroup {self.text}", apply)

    def shard_layout(self, ranks: int) -> FusedLayout | None:
        """Return how one of several shards is divided; None if it cannot be."""
        if self.groups > 1:
            return FusedLayout(self.groups // ranks, self.parts) if self.groups % ranks == 0 else None
        if any(width % ranks for _, width in self.parts):
            return None
        return FusedLayout(1, tuple((name, width // ranks) for name, width in self.parts))

    def other_orders(self) -> list[FusedLayout]:
        """Return the same parts in other orders, to be reported if the values fit one of them."""
        import itertools

        return [FusedLayout(self.groups, order) for order in itertools.permutations(self.parts) if order != self.parts]


def parse_fused_part(text: str) -> LayoutChange:
    """Return the change that a text such as "part k of 2 x q:16 k:8 v:8" states."""
    match = _PART_TEXT.fullmatch(text)
    pairs = (width_text.split(":") for width_text in match[4].split()) if match else ()
    parts = tuple((name, int(width)) for name, width in pairs)
    if match is None or not (match[2] or match[1] in dict(parts)):
        raise InputError(f"{text!r} is not a part of a fused tensor", fix="write part k of q:32 k:16 v:16")
    split = FusedLayout(int(match[3] or 1), parts)
    return split.regroup_change() if match[2] else split.part_change(match[1])


def declared_layout(module: str, architecture: str, widths: dict[str, int], head_size: int) -> FusedLayout | None:
    """Return how a fused module's output is divided, as its name declares.

    The architecture is the class of the model or of the module around it. A head of 0 columns is not known.

    Returns:
        None where the order needs the size of a head, and that is not known.
    """
    if "gate" in widths:
        names = ("up", "gate") if module in _UP_FIRST else ("gate", "up")
        return FusedLayout(1, tuple((name, widths[name]) for name in names))
    by_group = module in _BY_GROUP or (module == "query_key_value" and not _BLOCKS_OF_QKV.search(architecture))
    if not by_group:
        return FusedLayout(1, tuple((name, widths[name]) for name in ("q", "k", "v")))
    if not head_size or widths["k"] % head_size:
        return None
    groups = widths["k"] // head_size
    if widths["q"] % groups:
        return None
    return FusedLayout(groups, (("q", widths["q"] // groups), ("k", head_size), ("v", head_size)))


class FusedLayouts:
    """Knows how the fused tensors of two sides are divided."""

    def __init__(
        self,
        reference: SideTensors,
        candidate: SideTensors,
        reference_names: SideNames,
        candidate_names: SideNames,
    ) -> None:
        self._sides = (
            (reference, reference_names, candidate_names),
            (candidate, candidate_names, reference_names),
        )
        self._key_heads = next((size for side in self._sides if (size := _cache_heads(side[1]))[0]), (0, 0))

    def part_changes(self, match: NameMatch) -> Changes | str:
        """Return what takes the parts of a match out, or why that cannot be."""
        changes: list[tuple[LayoutChange, ...]] = []
        for side, name, part in (
            (0, match.reference, match.reference_part),
            (1, match.candidate, match.candidate_part),
        ):
            if not part:
                changes.append(())
                continue
            split = self.layout(side, name)
            if isinstance(split, str):
                return split
            changes.append((split.part_change(part),))
        return changes[0], changes[1]

    def layout(self, side: int, name: str) -> FusedLayout | str:
        """Return how one rank's share of a fused tensor is divided."""
        reading, names, others = self._sides[side]
        named = names.tensors[name]
        above, _, fused = names.meanings[name].role.rpartition(".")
        parts = next(parts for key, parts in FUSED_PARTS.items() if key.endswith(f".{fused}"))
        total = _column_count(named)
        widths = self._part_widths(above, parts, others, total)
        if isinstance(widths, str):
            return widths
        module = names.meanings[name].scope.rpartition(".")[2]
        layout = declared_layout(
            module, reading.architecture or _parent_class(names, named), widths, self._key_heads[1]
        )
        if layout is None:
            return f"{module} holds queries, keys and values by heads, and the size of a head is not known"
        share = layout.shard_layout(len(named.records)) if named.records[0].layout.shape[-1] != total else layout
        if share is None:
            return f"{module} cannot be divided evenly among {len(named.records)} ranks"
        return share

    def joined_shards(self, side: int, name: str, count: int) -> FusedLayout | None:
        """Return the layout of fused shards side by side; None if they are not fused, or need no regrouping."""
        _, names, _ = self._sides[side]
        meaning = names.meanings[name]
        if meaning.port != "out" or not any(meaning.role.endswith(f".{key}") for key in FUSED_PARTS):
            return None
        split = self.layout(side, name)
        return None if isinstance(split, str) or split.groups > 1 else split._replace(groups=count)

    def has_same_order(self, reference_name: str, candidate_name: str) -> bool:
        """Whether two fused tensors hold their parts in the same order."""
        one, other = self.layout(0, reference_name), self.layout(1, candidate_name)
        if isinstance(one, str) or isinstance(other, str):
            return False
        return list(dict(one.parts)) == list(dict(other.parts)) and (one.groups > 1) == (other.groups > 1)

    def _part_widths(self, above: str, parts: tuple[str, ...], others: SideNames, total: int) -> dict[str, int] | str:
        """Return the columns of each part: those of the other side's own tensors, or what the cache and the sum tell."""
        widths: dict[str, int] = {}
        for part in parts:
            apart = others.by_role.get((f"{above}.{part}", "out"))
            if apart:
                widths[part] = _column_count(apart[0])
        if "k" in parts and "k" not in widths and self._key_heads[0]:
            widths["k"] = widths["v"] = self._key_heads[0] * self._key_heads[1]
        for part, twin in (("k", "v"), ("v", "k")):
            if part in widths:
                widths.setdefault(twin, widths[part])
        missing = [part for part in parts if part not in widths]
        left = total - sum(widths.values())
        if missing and (left <= 0 or left % len(missing)):
            return f"how wide {' and '.join(missing)} are is not known"
        widths.update({part: left // len(missing) for part in missing})
        if sum(widths.values()) != total:
            return f"columns of {' and '.join(parts)} are {sum(widths.values())} on one side and {total} on the other"
        return widths


def _column_count(tensor: NamedTensor) -> int:
    """Return the columns of a tensor over all ranks."""
    widths = [record.layout.shape[-1] for record in tensor.records]
    copies = len({record.statistics.hash for record in tensor.records}) == 1
    return widths[0] if copies else sum(widths)


def _cache_heads(names: SideNames) -> tuple[int, int]:
    """Return how many heads of keys there are and how large they are, as the cache tells."""
    for (role, _), group in names.by_role.items():
        shape, is_new = group[0].shape, group[0].name.endswith(":new")
        if role.startswith("cache ") and role.endswith("key") and len(shape) == 4 and is_new:
            return shape[1] * len(group[0].records), shape[3]
    return 0, 0


def _parent_class(names: SideNames, fused: NamedTensor) -> str:
    """Return the class of the module around a fused one: "GPTNeoXAttention"."""
    above = fused.place.path.rpartition(".")[0]
    places = (tensor.place for tensor in names.tensors.values())
    return next((place.op for place in places if place.path == above and place.op), "")
