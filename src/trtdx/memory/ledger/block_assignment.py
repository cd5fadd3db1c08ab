"""How TensorRT puts tensors into memory: in blocks that tensors share which are never alive together.

The largest tensor first, each into the smallest block where it fits and nothing lives at the same time, else into a
new block; activation memory is the sum of the blocks. That is not the most that is alive at once: where nothing small
enough is free, a logits tensor and the tensors of a layer stand beside each other. Seven engines whose build logs are
public come out to within 20 KB (see tests/memory/test_activation_engine.py).

Which tensors share depends on the order of their sizes, so by itself a slightly larger shape can need less. A plan must
not say so: the ways of sharing are found at a few fixed shapes, and of these the best counts, which grows with every
tensor. Sizes are sums over the numbers of a shape, so a network is worked out once (`Network`) and then only added up.
"""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    ShapeNumbers = tuple[int, ...]

PROBE_SIZE = 1 << 20  # for finding out what each number of a shape adds; halves and sixteenths stay whole


class NetworkOp(NamedTuple):
    """One step of a network: what it makes, what it reads, and its scratch memory."""

    name: str
    size: int  # of its output, in bytes
    reads: tuple[str, ...] = ()
    scratch: int = 0


class MemoryBlock(NamedTuple):
    """A piece of memory, named after the largest tensor in it."""

    name: str
    size: int


BlockSharing = tuple[
    tuple[int, ...], ...
]  # blocks, by the numbers of their tensors: 2n is what step n makes, 2n+1 its scratch


def assign_blocks(ops: list[NetworkOp]) -> BlockSharing:
    """Return which tensors share a block where they have these sizes."""
    sizes, alive = _tensor_sizes(ops), _live_steps(ops)
    blocks: list[tuple[int, list[int]]] = []
    steps: list[int] = []  # at which something lives in the block, a bit each
    for number in sorted(range(len(sizes)), key=lambda tensor: -sizes[tensor]):
        free = [at for at, occupied in enumerate(steps) if not occupied & alive[number]]
        if free:
            at = min(free, key=lambda block: blocks[block][0])
            blocks[at][1].append(number)
            steps[at] |= alive[number]
        else:
            blocks.append((sizes[number], [number]))
            steps.append(alive[number])
    return tuple(tuple(members) for _, members in blocks)


BlockKinds = tuple[tuple[int, ...], tuple[str, ...]]  # kinds of size in a block, and a tensor of each


class SharingNetwork:
    """A network whose tensors' sizes are sums over the numbers of a shape, and the ways in which they may share memory."""

    def __init__(
        self, steps: Callable[[ShapeNumbers], list[NetworkOp]], typical_shapes: Iterable[ShapeNumbers]
    ) -> None:
        """Work out a network.

        Args:
            steps: returns its steps at a shape.
            typical_shapes: the shapes at which the ways of sharing are found.
        """
        typical_shapes = tuple(typical_shapes)
        self._kinds: list[tuple[float, ...]] = []  # of sizes: what the numbers of a shape are multiplied with
        kinds = self._assign_kinds(steps, len(typical_shapes[0]))
        ops = steps(typical_shapes[0])
        names = [name for op in ops for name in (op.name, f"{op.name}.scratch")]
        sharings = dict.fromkeys(assign_blocks(steps(shape)) for shape in typical_shapes)
        self._sharings = [
            [self._maximal_kinds([(kinds[number], names[number]) for number in members]) for members in way]
            for way in sharings
        ]

    def blocks(self, shape: ShapeNumbers) -> list[MemoryBlock]:
        """Return the blocks at a shape, shared in the way that needs the least, the largest first."""
        numbers = (*shape, 1)
        sizes = [sum(map(mul, kind, numbers)) for kind in self._kinds]
        size_of = sizes.__getitem__
        best, fewest = self._sharings[0], -1.0
        blocks: list[float] = []
        for way in self._sharings:
            block_sizes = [size_of(kinds[0]) if len(kinds) == 1 else max(map(size_of, kinds)) for kinds, _ in way]
            total = sum(block_sizes)
            if fewest < 0 or total < fewest:
                fewest, best, blocks = total, way, block_sizes
        used_blocks = []
        for size, (kinds, names) in zip(blocks, best, strict=True):
            if size:
                name = names[0] if len(names) == 1 else names[[sizes[kind] for kind in kinds].index(size)]
                used_blocks.append(MemoryBlock(name, int(size)))
        used_blocks.sort(key=_block_size, reverse=True)
        return used_blocks

    def _assign_kinds(self, steps: Callable[[ShapeNumbers], list[NetworkOp]], numbers: int) -> list[int]:
        """Return which kind of size each tensor has."""
        constants = _tensor_sizes(steps((0,) * numbers))
        grown = [
            _tensor_sizes(steps(tuple(PROBE_SIZE if index == number else 0 for index in range(numbers))))
            for number in range(numbers)
        ]
        kinds: dict[tuple[float, ...], int] = {}
        kind_numbers = []
        for at, constant in enumerate(constants):
            kind = (*((sizes[at] - constant) / PROBE_SIZE for sizes in grown), constant)
            kind_numbers.append(kinds.setdefault(kind, len(kinds)))
        self._kinds = list(kinds)
        return kind_numbers

    def _maximal_kinds(self, members: list[tuple[int, str]]) -> BlockKinds:
        """Return the tensors of a block that can be its largest, one of each kind."""
        first: dict[int, str] = {}
        for kind, name in members:
            first.setdefault(kind, name)
        maximal = [
            (kind, name)
            for kind, name in first.items()
            if not any(other != kind and _is_dominating(self._kinds[other], self._kinds[kind]) for other in first)
        ]
        return tuple(kind for kind, _ in maximal), tuple(name for _, name in maximal)


def _block_size(block: MemoryBlock) -> int:
    return block.size


def _is_dominating(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(mine >= its for mine, its in zip(one, other, strict=True))


def _tensor_sizes(ops: list[NetworkOp]) -> list[int]:
    return [size for op in ops for size in (op.size, op.scratch)]


def _live_steps(ops: list[NetworkOp]) -> list[int]:
    """Return the steps at which each tensor is alive, a bit each."""
    last: dict[str, int] = {}
    for step, op in enumerate(ops):
        last[op.name] = step
        for tensor in op.reads:
            last[tensor] = step
    alive: list[int] = []
    for step, op in enumerate(ops):
        alive += ((2 << last[op.name]) - (1 << step), 1 << step)
    return alive
