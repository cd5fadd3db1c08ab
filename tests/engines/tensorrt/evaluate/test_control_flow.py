"""Loops and conditionals built with TensorRT's API."""

from __future__ import annotations

import numpy as np
import pytest

from trtdx.engines.errors import LayerError

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")
SUM, PROD, LESS = (getattr(trt.ElementWiseOperation, name) for name in ("SUM", "PROD", "LESS"))
LAST, ALL, BACKWARD = trt.LoopOutput.LAST_VALUE, trt.LoopOutput.CONCATENATE, trt.LoopOutput.REVERSE
COUNT, WHILE = trt.TripLimit.COUNT, trt.TripLimit.WHILE


def scalar(net, number, dtype=np.int32):
    return net.constant(np.array(number, dtype))


def recurrence(net, loop, start, step):
    """Add a value that `step` makes of itself in each iteration; return it as it is at the start of one."""
    layer = loop.add_recurrence(start)
    layer.set_input(1, step(layer.get_output(0)))
    return layer.get_output(0)


@pytest.fixture
def doubling(net):
    """x, doubled `count` times; the last value, all of them, and all of them backward."""
    x = net.input("x", (2,))
    count = net.input("count", (), trt.int32)
    loop = net.add_loop()
    loop.add_trip_limit(count, COUNT)
    doubled = []

    def double(value):
        doubled.append(net.add_elementwise(value, value, SUM).get_output(0))
        doubled[0].name = "doubled"
        return doubled[0]

    value = recurrence(net, loop, x, double)
    value.name = "value"
    net.out(loop.add_loop_output(value, LAST, 0), "last")
    for name, kind, axis in (("all", ALL, 0), ("backward", BACKWARD, 1)):
        layer = loop.add_loop_output(doubled[0], kind, axis)
        layer.set_input(1, count)
        net.out(layer, name)
    return net


def test_a_loop_hands_out_its_last_value_and_all_of_them(doubling):
    found = doubling.run(x=np.array([1, 3], np.float32), count=np.array(3, np.int32))
    np.testing.assert_array_equal(found["last"], [8, 24])
    np.testing.assert_array_equal(found["all"], [[2, 6], [4, 12], [8, 24]])
    np.testing.assert_array_equal(found["backward"], [[8, 4, 2], [24, 12, 6]])


def test_a_loop_without_iterations_hands_out_what_it_started_with(doubling):
    found = doubling.run(x=np.array([1, 3], np.float32), count=np.array(0, np.int32))
    np.testing.assert_array_equal(found["last"], [1, 3])
    assert found["all"].shape == (0, 2)
    assert found["backward"].shape == (2, 0)


def test_taps_inside_a_loop_come_from_its_last_iteration_and_steps_show_all(doubling):
    inputs = {"x": np.array([1, 3], np.float32), "count": np.array(3, np.int32)}
    found = doubling.run(taps=["doubled", "value"], **inputs)
    np.testing.assert_array_equal(found["doubled"], [8, 24])
    np.testing.assert_array_equal(found["value"], [4, 12])
    seen = [outputs["doubled"][0] for _, outputs in doubling.prepare().iterate_layers(inputs) if "doubled" in outputs]
    assert seen == [2, 4, 8]


def test_a_tap_that_only_the_loop_leads_to(net):
    """Nothing outside needs the tapped layer, but the loop runs it for whoever looks."""
    loop = net.add_loop()
    loop.add_trip_limit(scalar(net, 3), COUNT)
    value = recurrence(net, loop, net.input("x", (1,)), lambda v: net.add_elementwise(v, v, SUM).get_output(0))
    aside = net.add_unary(value, trt.UnaryOperation.NEG)
    aside.name = "aside"
    net.out(loop.add_loop_output(value, LAST, 0))
    found = net.run(taps=["aside"], x=np.ones(1, np.float32))
    assert found["y"].tolist() == [8]
    assert found[aside.get_output(0).name].tolist() == [-4]


def test_a_loop_ends_when_its_condition_is_false(net):
    """Doubles while below a limit, at most ten times."""
    x, limit = net.input("x", (1,)), net.input("limit", (1,))
    loop = net.add_loop()
    loop.add_trip_limit(scalar(net, 10), COUNT)
    value = recurrence(net, loop, x, lambda v: net.add_elementwise(v, v, SUM).get_output(0))
    below = net.add_shuffle(net.add_elementwise(value, limit, LESS).get_output(0))
    below.reshape_dims = ()
    loop.add_trip_limit(below.get_output(0), WHILE)
    net.out(loop.add_loop_output(value, LAST, 0))
    one = np.ones(1, np.float32)
    for limit_value, expected in ((20, 32), (1, 1), (0, 1), (1e9, 1024)):
        assert net.run(x=one, limit=one * limit_value)["y"].tolist() == [expected]


@pytest.mark.parametrize("backward", [False, True])
def test_an_iterator_goes_through_a_tensor(net, rng, backward):
    value = rng.random((3, 4, 2), np.float32)
    loop = net.add_loop()
    loop.add_trip_limit(scalar(net, 4), COUNT)
    item = loop.add_iterator(net.input("x", value.shape), 1, backward).get_output(0)
    total = recurrence(
        net,
        loop,
        net.constant(np.zeros((3, 2), np.float32)),
        lambda v: net.add_elementwise(
            net.add_elementwise(v, net.constant(np.full((1, 1), 2, np.float32)), PROD).get_output(0),
            item,
            SUM,
        ).get_output(0),
    )
    net.out(loop.add_loop_output(total, LAST, 0))
    expected = np.zeros((3, 2), np.float32)
    for place in range(4)[:: -1 if backward else 1]:
        expected = expected * 2 + value[:, place]
    np.testing.assert_allclose(net.run(x=value)["y"], expected, rtol=1e-6)


def test_a_loop_in_a_loop(net):
    """For i in 1, 2, 3: add i three times; what the inner loop needs of the outer one changes with it."""
    outer, inner = net.add_loop(), net.add_loop()
    outer.add_trip_limit(scalar(net, 3), COUNT)
    inner.add_trip_limit(scalar(net, 3), COUNT)
    one = net.constant(np.ones(1, np.float32))
    number = recurrence(net, outer, one, lambda v: net.add_elementwise(v, one, SUM).get_output(0))
    tripled = net.add_elementwise(number, net.input("factor", (1,)), PROD).get_output(0)
    tripled.name = "scaled"
    total = outer.add_recurrence(net.constant(np.zeros(1, np.float32)))
    part = recurrence(net, inner, total.get_output(0), lambda v: net.add_elementwise(v, tripled, SUM).get_output(0))
    done = inner.add_loop_output(part, LAST, 0).get_output(0)
    total.set_input(1, done)
    net.out(outer.add_loop_output(total.get_output(0), LAST, 0))
    factor = np.full(1, 10, np.float32)
    assert net.run(factor=factor)["y"].tolist() == [180]
    seen = [out["scaled"].item() for _, out in net.prepare().iterate_layers({"factor": factor}) if "scaled" in out]
    assert seen == [10, 20, 30]  # once for each outer iteration


@pytest.fixture
def choosing(net):
    """y = -x if c else reshape(x, shape); the second fails for a shape that does not fit."""
    x = net.input("x", (2, 3))
    shape = net.input("shape", (2,), trt.int64)
    conditional = net.add_if_conditional()
    conditional.set_condition(net.input("c", (), trt.bool))
    inner = conditional.add_input(x).get_output(0)
    negated = net.add_unary(inner, trt.UnaryOperation.NEG).get_output(0)
    negated.name = "negated"
    reshaped = net.add_shuffle(inner)
    reshaped.set_input(1, shape)
    reshaped.get_output(0).name = "reshaped"
    net.out(conditional.add_output(negated, reshaped.get_output(0)))
    return net


def test_only_the_branch_that_is_taken_is_computed(choosing):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    wrong, right = np.array([4, 4]), np.array([3, 2])
    np.testing.assert_array_equal(choosing.run(x=x, shape=wrong, c=np.array(True))["y"], -x)
    np.testing.assert_array_equal(choosing.run(x=x, shape=right, c=np.array(False))["y"], x.reshape(3, 2))
    with pytest.raises(LayerError):
        choosing.run(x=x, shape=wrong, c=np.array(False))


def test_taps_in_the_other_branch_do_not_come_back(choosing):
    x = np.ones((2, 3), np.float32)
    for taps in (["negated", "reshaped"], "all"):
        taken = choosing.run(taps=taps, x=x, shape=np.array([4, 4]), c=np.array(True))
        assert "negated" in taken
        assert "reshaped" not in taken
    other = choosing.run(taps="all", x=x, shape=np.array([3, 2]), c=np.array(False))
    assert "reshaped" in other
    assert "negated" not in other


def test_a_conditional_in_a_loop(net):
    """Collatz, ten steps of it: halve what is even, else triple and add one."""
    loop = net.add_loop()
    loop.add_trip_limit(scalar(net, 10), COUNT)
    one, two, three = (net.constant(np.array([number], np.int64)) for number in (1, 2, 3))

    def follow(value):
        half = net.add_elementwise(value, two, trt.ElementWiseOperation.FLOOR_DIV).get_output(0)
        back = net.add_elementwise(half, two, PROD).get_output(0)
        even = net.add_shuffle(net.add_elementwise(back, value, trt.ElementWiseOperation.EQUAL).get_output(0))
        even.reshape_dims = ()
        conditional = net.add_if_conditional()
        conditional.set_condition(even.get_output(0))
        odd = net.add_elementwise(net.add_elementwise(value, three, PROD).get_output(0), one, SUM).get_output(0)
        return conditional.add_output(half, odd).get_output(0)

    value = recurrence(net, loop, net.input("x", (1,), trt.int64), follow)
    every = loop.add_loop_output(value, ALL, 0)
    every.set_input(1, scalar(net, 10))
    net.out(every)
    found = net.run(x=np.array([7]))["y"].reshape(-1).tolist()
    assert found == [7, 22, 11, 34, 17, 52, 26, 13, 40, 20]


def test_what_a_branch_shares_with_the_rest_is_computed_once(net):
    x = net.input("x", (2,))
    shared = net.add_elementwise(x, x, SUM).get_output(0)
    shared.name = "shared"
    conditional = net.add_if_conditional()
    conditional.set_condition(net.input("c", (), trt.bool))
    branch = net.add_unary(shared, trt.UnaryOperation.NEG).get_output(0)
    chosen = conditional.add_output(branch, shared).get_output(0)
    net.out(net.add_elementwise(chosen, shared, PROD))
    inputs = {"x": np.ones(2, np.float32), "c": np.array(True)}
    assert net.run(**inputs)["y"].tolist() == [-4, -4]
    seen = [layer.name for layer, outputs in net.prepare().iterate_layers(inputs) if "shared" in outputs]
    assert len(seen) == 1


def test_values_before_a_conditional_are_let_go(net):
    """What led to a branch is not kept until the branch is taken, only what the branch looks at."""
    tensor = net.input("x", (1000,))
    for _ in range(30):
        tensor = net.add_elementwise(tensor, tensor, SUM).get_output(0)
    conditional = net.add_if_conditional()
    conditional.set_condition(net.input("c", (), trt.bool))
    branch = net.add_unary(tensor, trt.UnaryOperation.NEG).get_output(0)
    net.out(conditional.add_output(branch, tensor))
    ready = net.prepare()
    inputs = {"x": np.ones(1000, np.float32), "c": np.array(True)}
    run, events = ready.start_run(inputs, frozenset(), watched=True)
    most = max(sum(value is not None for value in run.values) for _ in events)
    assert most <= 6
    np.testing.assert_array_equal(ready(inputs)["y"], np.full(1000, -(2.0**30), np.float32))


def random_network(net, rng):
    """A network of thirty layers over each other, some of them arithmetic on shapes, with a conditional and a loop."""
    tensors = [net.input("x", (-1, 4)), net.input("z", (1, 4))]

    def pick():
        return tensors[rng.integers(max(0, len(tensors) - 6), len(tensors))]

    def layer():
        kind = rng.integers(5)
        if kind == 0:
            return net.add_unary(pick(), trt.UnaryOperation.SIN).get_output(0)
        if kind == 1:
            turned = net.add_shuffle(pick())
            turned.first_transpose, turned.second_transpose = (1, 0), (1, 0)
            return turned.get_output(0)
        if kind == 2:
            source = pick()
            view = net.add_shuffle(net.add_unary(source, trt.UnaryOperation.NEG).get_output(0))
            view.set_input(1, net.add_shape(source).get_output(0))
            return view.get_output(0)
        return net.add_elementwise(pick(), pick(), SUM if kind == 3 else PROD).get_output(0)

    for number in range(30):
        tensors.append(layer())
        if number == 10:
            conditional = net.add_if_conditional()
            conditional.set_condition(net.input("c", (), trt.bool))
            inner = conditional.add_input(pick()).get_output(0)
            left = net.add_elementwise(inner, pick(), SUM).get_output(0)
            right = net.add_elementwise(inner, tensors[0], PROD).get_output(0)
            tensors.append(conditional.add_output(left, right).get_output(0))
        if number == 20:
            loop = net.add_loop()
            loop.add_trip_limit(scalar(net, 3), COUNT)
            start = net.add_elementwise(pick(), tensors[0], SUM).get_output(0)
            fixed = pick()

            def step(value, fixed=fixed):
                product = net.add_elementwise(value, fixed, PROD).get_output(0)
                return net.add_unary(product, trt.UnaryOperation.COS).get_output(0)

            tensors.append(loop.add_loop_output(recurrence(net, loop, start, step), LAST, 0).get_output(0))
    net.out(net.add_elementwise(tensors[-1], tensors[-2], SUM))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_looked_at_the_answer_is_the_same(net, seed):
    """Letting go of values, skipping what is foreseen, taps and steps do not change what comes out."""
    rng = np.random.default_rng(seed)
    random_network(net, rng)
    ready = net.prepare()
    for rows, condition in ((3, True), (3, False), (1, True), (3, True)):
        inputs = {
            "x": rng.standard_normal((rows, 4)).astype(np.float32),
            "z": rng.standard_normal((1, 4)).astype(np.float32),
            "c": np.array(condition),
        }
        inputs = {name: value for name, value in inputs.items() if name in {each.name for each in ready.graph.inputs}}
        every = ready(inputs, "all")
        plain = ready(inputs)
        np.testing.assert_array_equal(plain["y"], every["y"])
        shown = {}
        for _, outputs in ready.iterate_layers(inputs, "all"):
            shown |= {name: value.copy() for name, value in outputs.items()}
        for name, value in shown.items():
            if name in every:
                np.testing.assert_array_equal(value, every[name], err_msg=name)
        some = rng.choice(sorted(shown), 3)
        tapped = ready(inputs, list(some))
        for name in set(some) & tapped.keys():
            np.testing.assert_array_equal(tapped[name], every[name], err_msg=name)
