"""Tensors share blocks of memory when they are never alive together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtdx.memory.ledger.block_assignment import MemoryBlock, NetworkOp, SharingNetwork, assign_blocks


def blocks(ops: list[NetworkOp]) -> list[MemoryBlock]:
    return SharingNetwork(lambda shape: ops, [(1,)]).blocks((1,))


def total(ops: list[NetworkOp]) -> int:
    return sum(block.size for block in blocks(ops))


def test_what_is_read_and_what_is_made_of_it_stand_beside_each_other() -> None:
    assert total([NetworkOp("one", 10), NetworkOp("two", 20, ("one",))]) == 30


def test_a_tensor_takes_the_place_of_one_that_is_no_longer_read() -> None:
    assert total([NetworkOp("one", 10), NetworkOp("two", 20, ("one",)), NetworkOp("three", 10, ("two",))]) == 30


def test_scratch_memory_lives_for_one_step() -> None:
    ops = [NetworkOp("one", 10, (), 50), NetworkOp("two", 10, ("one",), 40)]
    assert [(block.name, block.size) for block in blocks(ops)] == [
        ("one.scratch", 50),
        ("one", 10),
        ("two", 10),
    ]


def test_the_largest_comes_first_so_blocks_can_be_more_than_what_is_alive_at_once() -> None:
    ops = [
        NetworkOp("a", 2),
        NetworkOp("b", 2, ("a",)),
        NetworkOp("c", 2, ("b",)),
        NetworkOp("big", 9),
        NetworkOp("end", 0, ("big",)),
    ]
    assert total(ops) == 9 + 2  # alive at once: 9


def test_the_ways_to_share_are_those_of_the_usual_shapes_and_the_best_counts() -> None:
    def steps(shape: tuple[int, ...]) -> list[NetworkOp]:
        return [
            NetworkOp("a", shape[0]),
            NetworkOp("b", 10, ("a",)),
            NetworkOp("c", shape[1], ("b",)),
            NetworkOp("d", 4, ("c",)),
        ]

    network = SharingNetwork(steps, [(1, 20), (20, 1)])
    for shape in ((1, 20), (20, 1), (20, 20), (3, 3)):
        found = network.blocks(shape)
        assert sum(block.size for block in found) >= sum(block.size for block in blocks(steps(shape)))
    assert [block.size for block in network.blocks((20, 20))] == [20, 10]


def test_a_size_may_be_a_share_of_what_it_depends_on() -> None:
    network = SharingNetwork(lambda shape: [NetworkOp("a", int(shape[0] * 0.5625) + 7)], [(16,)])
    assert network.blocks((32,)) == [MemoryBlock("a", 25)]


@st.composite
def networks(draw: st.DrawFn) -> list[NetworkOp]:
    ops: list[NetworkOp] = []
    for number in range(draw(st.integers(1, 12))):
        reads = draw(st.sets(st.sampled_from(ops), max_size=3)) if ops else set()
        names = tuple(op.name for op in reads)
        ops.append(NetworkOp(str(number), draw(st.integers(0, 100)), names, draw(st.integers(0, 100))))
    return ops


@given(networks())
def test_no_two_tensors_of_a_block_are_alive_together(ops: list[NetworkOp]) -> None:
    last = {
        op.name: max([at for at, each in enumerate(ops) if op.name in each.reads] + [number])
        for number, op in enumerate(ops)
    }
    for members in assign_blocks(ops):
        taken: set[int] = set()
        for number in members:
            step = number // 2
            alive = {step} if number % 2 else set(range(step, last[ops[step].name] + 1))
            assert not taken & alive
            taken |= alive


@given(networks(), st.lists(st.integers(0, 100), min_size=2, max_size=2), st.integers(1, 50))
def test_a_larger_shape_never_needs_less(ops: list[NetworkOp], shape: list[int], more: int) -> None:
    def steps(numbers: tuple[int, ...]) -> list[NetworkOp]:
        one, other = numbers
        return [op._replace(size=op.size * one, scratch=op.scratch * other) for op in ops]

    network = SharingNetwork(steps, [(1, 1), (1, 50), (50, 1)])
    before = sum(block.size for block in network.blocks(tuple(shape)))
    for grown in ((shape[0] + more, shape[1]), (shape[0], shape[1] + more)):
        assert sum(block.size for block in network.blocks(grown)) >= before
