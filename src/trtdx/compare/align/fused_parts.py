"""What takes the parts out of fused tensors, of one side or of both: the order is declared, the widths are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.align.fused import PARTS, Split, declared

if TYPE_CHECKING:
    from trtdx.compare.align.matching import Match, Names
    from trtdx.compare.align.side_tensors import Named, Reading
    from trtdx.compare.nouns import Change

    Changes = tuple[tuple[Change, ...], tuple[Change, ...]]


class Parting:
    """Knows how the fused tensors of two sides are divided."""

    def __init__(self, ours: Reading, theirs: Reading, our_names: Names, their_names: Names) -> None:
        self._sides = ((ours, our_names, their_names), (theirs, their_names, our_names))
        self._head = next((size for side in self._sides if (size := _head_size(side[1]))[0]), (0, 0))

    def changes(self, match: Match) -> Changes | str:
        """Return what takes the parts of a match out, or why that cannot be."""
        changes: list[tuple[Change, ...]] = []
        for side, name, part in ((0, match.ours, match.our_part), (1, match.theirs, match.their_part)):
            if not part:
                changes.append(())
                continue
            split = self.split(side, name)
            if isinstance(split, str):
                return split
            changes.append((split.change(part),))
        return changes[0], changes[1]

    def split(self, side: int, name: str) -> Split | str:
        """Return how one rank's share of a fused tensor is divided."""
        reading, names, others = self._sides[side]
        named = names.named[name]
        above, _, fused = names.meant[name].role.rpartition(".")
        parts = next(parts for key, parts in PARTS.items() if key.endswith(f".{fused}"))
        total = _columns(named)
        widths = self._widths(above, parts, others, total)
        if isinstance(widths, str):
            return widths
        module = names.meant[name].scope.rpartition(".")[2]
        layout = declared(module, reading.architecture or _kind_above(names, named), widths, self._head[1])
        if layout is None:
            return f"{module} holds queries, keys and values by heads, and the size of a head is not known"
        share = layout.divided(len(named.records)) if named.records[0].layout.shape[-1] != total else layout
        if share is None:
            return f"{module} cannot be divided evenly among {len(named.records)} ranks"
        return share

    def shards_of(self, side: int, name: str, count: int) -> Split | None:
        """Return how fused shards side by side are divided; none where they are no such, or lie right as they are."""
        _, names, _ = self._sides[side]
        meaning = names.meant[name]
        if meaning.port != "out" or not any(meaning.role.endswith(f".{key}") for key in PARTS):
            return None
        split = self.split(side, name)
        return None if isinstance(split, str) or split.groups > 1 else split._replace(groups=count)

    def same_order(self, ours: str, theirs: str) -> bool:
        """Whether two fused tensors hold their parts in the same order."""
        both = self.split(0, ours), self.split(1, theirs)
        orders = [[name for name, _ in layout.parts] if isinstance(layout, Split) else [] for layout in both]
        grouped = [layout.groups > 1 for layout in both if isinstance(layout, Split)]
        return bool(orders[0]) and orders[0] == orders[1] and grouped[0] == grouped[1]

    def _widths(self, above: str, parts: tuple[str, ...], others: Names, total: int) -> dict[str, int] | str:
        """Return the columns of each part: those of the other side's own tensors, or what the cache and the sum tell."""
        widths: dict[str, int] = {}
        for part in parts:
            apart = others.by_role.get((f"{above}.{part}", "out"))
            if apart:
                widths[part] = _columns(apart[0])
        if "k" in parts and "k" not in widths and self._head[0]:
            widths["k"] = widths["v"] = self._head[0] * self._head[1]
        if "k" in widths and "v" not in widths:
            widths["v"] = widths["k"]
        if "v" in widths and "k" not in widths:
            widths["k"] = widths["v"]
        missing = [part for part in parts if part not in widths]
        left = total - sum(widths.values())
        if missing and (left <= 0 or left % len(missing)):
            return f"how wide {' and '.join(missing)} are is not known"
        widths.update({part: left // len(missing) for part in missing})
        if sum(widths.values()) != total:
            return f"columns of {' and '.join(parts)} are {sum(widths.values())} on one side and {total} on the other"
        return widths


def _columns(named: Named) -> int:
    """Return the columns of a tensor over all ranks."""
    widths = [record.layout.shape[-1] for record in named.records]
    copies = len({record.statistics.hash for record in named.records}) == 1
    return widths[0] if copies else sum(widths)


def _head_size(names: Names) -> tuple[int, int]:
    """Return how many heads of keys there are and how large they are, as the cache tells."""
    for (role, _), group in names.by_role.items():
        shape = group[0].shape
        if (
            role.startswith("cache ")
            and role.endswith("key")
            and len(shape) == 4
            and group[0].name.endswith(":new")
        ):
            return shape[1] * len(group[0].records), shape[3]
    return 0, 0


def _kind_above(names: Names, named: Named) -> str:
    """Return the class of the module around a fused one: "GPTNeoXAttention"."""
    above = named.place.path.rpartition(".")[0]
    return next(
        (
            tensor.place.op
            for tensor in names.named.values()
            if tensor.place.path == above and tensor.place.op
        ),
        "",
    )
