"""Tensors that one side keeps together and the other apart: queries, keys and values; gate and up.

The order inside is the one that the module's name declares, on its architecture. Numbers never choose it: were the
order the mistake, choosing the one that fits would hide it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.nouns import Change
from trtdx.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PARTS = {"attention.qkv": ("q", "k", "v"), "mlp.gate_up": ("gate", "up")}
_UP_FIRST = {
    "fused_fc"
}  # TensorRT-LLM: [gate | fc], where its gate is up and its fc what the activation is of
_BY_GROUP = {"linear_qkv", "wqkv"}
_BLOCKS_OF_QKV = re.compile(r"glm", re.IGNORECASE)  # architectures whose query_key_value is q | k | v
_TEXT = re.compile(r"(?:part (\w+) of|(regroup)) (?:(\d+) x )?((?:\w+:\d+ ?)+)")


class Split(NamedTuple):
    """How the columns of a fused tensor are divided: groups that follow each other, each with all parts."""

    groups: int
    parts: tuple[tuple[str, int], ...]  # names in their order, and columns

    @property
    def columns(self) -> int:
        return self.groups * sum(width for _, width in self.parts)

    def text(self, part: str) -> str:
        groups = f"{self.groups} x " if self.groups > 1 else ""
        return f"part {part} of {groups}" + " ".join(f"{name}:{width}" for name, width in self.parts)

    def change(self, part: str) -> Change:
        """Return the change that takes one part out."""
        names = [name for name, _ in self.parts]
        begin = sum(width for _, width in self.parts[: names.index(part)])
        end = begin + self.parts[names.index(part)][1]

        def apply(array: Array) -> Array:
            if self.groups == 1:
                return array[..., begin:end]
            return array.reshape(*array.shape[:-1], self.groups, -1)[..., begin:end]

        return Change(self.text(part), apply)

    def regrouped(self) -> Change:
        """Return the change that puts the parts of all groups side by side; groups are shards here."""
        groups = f"{self.groups} x " if self.groups > 1 else ""
        widths = " ".join(f"{name}:{width}" for name, width in self.parts)

        def apply(array: Array) -> Array:
            import numpy as np

            shards = array.reshape(*array.shape[:-1], self.groups, -1)
            ends = np.cumsum([width for _, width in self.parts])[:-1]
            parts = np.split(shards, ends, -1)
            return np.concatenate([part.reshape(*array.shape[:-1], -1) for part in parts], -1)

        return Change(f"regroup {groups}{widths}", apply)

    def divided(self, ranks: int) -> Split | None:
        """Return how one of several shards is divided; none where it cannot be."""
        if self.groups > 1:
            return Split(self.groups // ranks, self.parts) if self.groups % ranks == 0 else None
        if any(width % ranks for _, width in self.parts):
            return None
        return Split(1, tuple((name, width // ranks) for name, width in self.parts))

    def orders(self) -> list[Split]:
        """Return the same parts in other orders, to say so where the values fit one of them."""
        import itertools

        return [
            Split(self.groups, order) for order in itertools.permutations(self.parts) if order != self.parts
        ]


def parse_part(text: str) -> Change:
    """Return the change that a text such as "part k of 2 x q:16 k:8 v:8" states."""
    match = _TEXT.fullmatch(text)
    pairs = (width_text.split(":") for width_text in match[4].split()) if match else ()
    parts = tuple((name, int(width)) for name, width in pairs)
    if match is None or not (match[2] or match[1] in dict(parts)):
        raise InputError(f"{text!r} is not a part of a fused tensor", fix="write part k of q:32 k:16 v:16")
    split = Split(int(match[3] or 1), parts)
    return split.regrouped() if match[2] else split.change(match[1])


def declared(module: str, architecture: str, widths: dict[str, int], head: int) -> Split | None:
    """Return how a fused module's output is divided, as its name declares.

    Args:
        module: the last part of its path.
        architecture: the class of the model or of the module around it.
        widths: columns of each part.
        head: columns of one head; 0 where nobody knows.

    Returns:
        None where the order needs the size of a head, and that is not known.
    """
    if "gate" in widths:
        names = ("up", "gate") if module in _UP_FIRST else ("gate", "up")
        return Split(1, tuple((name, widths[name]) for name in names))
    by_group = module in _BY_GROUP or (
        module == "query_key_value" and not _BLOCKS_OF_QKV.search(architecture)
    )
    if not by_group:
        return Split(1, tuple((name, widths[name]) for name in ("q", "k", "v")))
    if not head or widths["k"] % head:
        return None
    groups = widths["k"] // head
    if widths["q"] % groups:
        return None
    return Split(groups, (("q", widths["q"] // groups), ("k", head), ("v", head)))
