"""Tensor-parallel networks computed rank by rank, in step."""

from __future__ import annotations

import numpy as np
import pytest

from trtdx.engines.errors import LayerError
from trtdx.engines.tensorrt import Collective, evaluate_ranks

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")
NONE = trt.MatrixOperation.NONE


def rank(net, operation, shape, *, ranks=2, reduce="SUM", root=-1, groups=None, dtype=trt.float32):
    """A network that is nothing but one collective."""
    x = net.input("x", shape, dtype)
    layer = net.add_dist_collective(
        x, getattr(trt.CollectiveOperation, operation), getattr(trt.ReduceOperation, reduce), root, groups
    )
    layer.num_ranks = ranks
    layer.name = "exchange"
    net.out(layer)
    return net.trt


def exchange(make_net, values, how, **options):
    nets = [rank(make_net(), how.operation, values[0].shape, ranks=len(values), **options) for _ in values]
    found = evaluate_ranks(nets, [{"x": value} for value in values], collectives={"exchange": how})
    return [each["y"] for each in found]


VALUES = [np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)]


@pytest.mark.parametrize(
    ("how", "options", "expected"),
    [
        (Collective("ALL_REDUCE", "SUM"), {}, [[11, 22, 33, 44]] * 2),
        (Collective("ALL_REDUCE", "MAX"), {"reduce": "MAX"}, [[10, 20, 30, 40]] * 2),
        (Collective("ALL_REDUCE", "AVG"), {"reduce": "AVG"}, [[5.5, 11, 16.5, 22]] * 2),
        (Collective("ALL_GATHER"), {"reduce": "NONE"}, [[1, 2, 3, 4, 10, 20, 30, 40]] * 2),
        (Collective("REDUCE_SCATTER", "SUM"), {}, [[11, 22], [33, 44]]),
        (Collective("BROADCAST", root=1), {"reduce": "NONE", "root": 1}, [[10, 20, 30, 40]] * 2),
        (Collective("ALL_TO_ALL"), {"reduce": "NONE"}, [[1, 2, 10, 20], [3, 4, 30, 40]]),
        (Collective("SCATTER", root=0), {"reduce": "NONE", "root": 0}, [[1, 2], [3, 4]]),
    ],
)
def test_collectives(make_net, how, options, expected):
    found = exchange(make_net, VALUES, how, **options)
    assert [each.tolist() for each in found] == expected


@pytest.mark.parametrize("operation", ["REDUCE", "GATHER"])
def test_only_the_root_gets_the_result(make_net, operation):
    reduce = "SUM" if operation == "REDUCE" else "NONE"
    found = exchange(make_net, VALUES, Collective(operation, root=1), reduce=reduce, root=1)
    expected = [11, 22, 33, 44] if operation == "REDUCE" else [1, 2, 3, 4, 10, 20, 30, 40]
    assert found[1].tolist() == expected


def test_halves_are_reduced_in_float32_and_rounded_once(make_net):
    values = [np.full(1, number, np.float16) for number in (2048, 1, 1, 1)]
    found = exchange(make_net, values, Collective("ALL_REDUCE"), dtype=trt.float16)
    assert found[0].tolist() == [2052]  # one after the other would stay at 2048


def test_a_split_product_equals_the_whole(make_net, rng):
    """Columns of the first matrix and rows of the second on two ranks, and a sum at the end."""
    x = rng.standard_normal((3, 8)).astype(np.float32)
    up, down = (
        rng.standard_normal((8, 12)).astype(np.float32),
        rng.standard_normal((12, 8)).astype(np.float32),
    )
    nets = []
    for part in range(2):
        net = make_net()
        own = slice(6 * part, 6 * part + 6)
        inner = net.add_matrix_multiply(net.input("x", x.shape), NONE, net.constant(up[:, own]), NONE).get_output(0)
        active = net.add_activation(inner, trt.ActivationType.RELU).get_output(0)
        active.name = "active"
        partial = net.add_matrix_multiply(active, NONE, net.constant(down[own]), NONE).get_output(0)
        layer = net.add_dist_collective(partial, trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, None)
        layer.num_ranks = 2
        net.out(layer)
        nets.append(net)
    inputs = [{"x": x}] * 2
    found = evaluate_ranks([net.trt for net in nets], inputs, ["active"], collectives={"*": Collective("ALL_REDUCE")})
    expected = np.maximum(x @ up, 0) @ down
    for each in found:
        np.testing.assert_allclose(each["y"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([each["active"] for each in found], 1), np.maximum(x @ up, 0), rtol=1e-5)


def test_groups_exchange_among_themselves(make_net):
    """Ranks 0 and 2, and ranks 1 and 3."""
    nets, collectives = [], {}
    for number in range(4):
        net = make_net()
        group = [number % 2, number % 2 + 2]
        rank(net, "ALL_REDUCE", (1,), groups=group)
        net.trt.get_layer(0).name = f"group{number % 2}"
        collectives[f"group{number % 2}"] = Collective("ALL_REDUCE", ranks=tuple(group))
        nets.append(net.trt)
    inputs = [{"x": np.array([10**number], np.float32)} for number in range(4)]
    found = evaluate_ranks(nets, inputs, collectives=collectives)
    assert [each["y"].item() for each in found] == [101, 1010, 101, 1010]


def test_a_rank_that_never_comes_is_named(make_net):
    there = rank(make_net(), "ALL_REDUCE", (4,))
    other = make_net()
    other.out(other.add_identity(other.input("x", (4,))))
    with pytest.raises(LayerError, match="'exchange' waits for rank 1"):
        evaluate_ranks([there, other.trt], [{"x": VALUES[0]}] * 2, collectives={"*": Collective("ALL_REDUCE")})


def test_what_a_collective_does_must_be_told_unless_its_shape_tells(make_net):
    nets = [rank(make_net(), "ALL_REDUCE", (4,)) for _ in VALUES]
    with pytest.raises(LayerError, match="does not say what the collective layer 'exchange' does"):
        evaluate_ranks(nets, [{"x": value} for value in VALUES])
    nets = [rank(make_net(), "ALL_GATHER", (4,), reduce="NONE") for _ in VALUES]
    found = evaluate_ranks(nets, [{"x": value} for value in VALUES])
    assert found[0]["y"].tolist() == [1, 2, 3, 4, 10, 20, 30, 40]


def test_one_rank_of_several_cannot_be_computed_alone(net):
    rank(net, "ALL_REDUCE", (4,))
    with pytest.raises(LayerError, match="exchanges with 2 ranks, and only one is computed") as caught:
        net.run(x=VALUES[0])
    assert "evaluate_ranks" in caught.value.fix


def test_a_collective_of_one_rank_gives_back_what_it_got(net):
    rank(net, "ALL_REDUCE", (4,), ranks=1)
    assert net.run(x=VALUES[0])["y"].tolist() == VALUES[0].tolist()
