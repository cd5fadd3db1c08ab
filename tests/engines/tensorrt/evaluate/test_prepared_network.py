"""What comes back of a network, whatever its layers: outputs, taps, steps, errors."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from trtdx.engines.errors import LayerError
from trtdx.engines.tensorrt import evaluate, iterate_layers, prepare_network
from trtdx.errors import InputError, UnknownNameError

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")

pytestmark = pytest.mark.heavy
SUM, PROD = trt.ElementWiseOperation.SUM, trt.ElementWiseOperation.PROD


@pytest.fixture
def chain(net):
    """x -> double -> square -> y, and a layer that no output needs."""
    x = net.input("x", (-1, 3))
    double = net.add_elementwise(x, x, SUM)
    double.name = "double"
    double.get_output(0).name = "doubled"
    square = net.add_elementwise(double.get_output(0), double.get_output(0), PROD)
    square.name = "square"
    unused = net.add_unary(x, trt.UnaryOperation.NEG)
    unused.name = "unused"
    unused.get_output(0).name = "negated"
    net.out(square, "y")
    return net


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_outputs_come_back_by_name(chain):
    result = evaluate(chain.trt, {"x": X})
    assert list(result) == ["y"]
    np.testing.assert_array_equal(result["y"], 4 * X * X)


def test_taps_name_tensors_and_layers(chain):
    result = evaluate(chain.trt, {"x": X}, taps=["doubled", "unused", "x"])
    assert list(result) == ["y", "x", "doubled", "negated"]
    np.testing.assert_array_equal(result["doubled"], 2 * X)
    np.testing.assert_array_equal(result["negated"], -X)


def test_all_taps_every_tensor(chain):
    assert set(evaluate(chain.trt, {"x": X}, taps="all")) == {"doubled", "y", "negated"}


def test_steps_show_each_layer_as_it_is_computed(chain):
    seen = [(layer.name, layer.kind, list(outputs)) for layer, outputs in iterate_layers(chain.trt, {"x": X})]
    assert seen == [("double", "ELEMENTWISE", ["doubled"]), ("square", "ELEMENTWISE", ["y"])]


def test_steps_leave_the_callers_settings_alone(chain):
    for _ in iterate_layers(chain.trt, {"x": X}):
        assert not torch.is_inference_mode_enabled()
        assert np.geterr()["divide"] == "warn"


def test_a_prepared_network_is_computed_many_times(chain):
    ready = prepare_network(chain.trt)
    for rows in (1, 4, 0, 1):
        x = np.full((rows, 3), 2, np.float32)
        np.testing.assert_array_equal(ready({"x": x})["y"], np.full((rows, 3), 16, np.float32))
    assert evaluate(ready, {"x": X}).keys() == {"y"}


def test_an_unknown_tap_gets_its_nearest_name(chain):
    with pytest.raises(UnknownNameError) as caught:
        evaluate(chain.trt, {"x": X}, taps=["doubledd"])
    assert "doubled" in caught.value.fix


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({}, "'x' is not given"),
        ({"x": X.astype(np.float64)}, "x is float64, but the network wants float32"),
        ({"x": X[:, :2]}, r"x has shape \[2, 2\], but the network wants \[-1, 3\]"),
        ({"x": X, "z": X}, "no input of the network is called 'z'"),
    ],
)
def test_wrong_inputs_are_told(chain, inputs, told):
    with pytest.raises((InputError, UnknownNameError), match=told):
        evaluate(chain.trt, inputs)


def test_something_else_than_a_network_is_refused():
    with pytest.raises(InputError, match="dict is not a network definition"):
        evaluate({}, {})


def test_torch_tensors_are_inputs_as_well(chain):
    np.testing.assert_array_equal(chain.run(x=torch.ones(1, 3))["y"], np.full((1, 3), 4, np.float32))


def test_read_only_and_backward_inputs_are_taken(chain):
    x = X[::-1].copy()
    x.flags.writeable = False
    np.testing.assert_array_equal(chain.run(x=x)["y"], 4 * x * x)
    np.testing.assert_array_equal(chain.run(x=X[::-1])["y"], 4 * X[::-1] ** 2)


def test_a_result_shares_no_memory_with_inputs_weights_or_the_next_run(net):
    x = net.input("x", (3,))
    weights = np.arange(3, dtype=np.float32)
    fixed = net.constant(weights)
    net.out(net.add_identity(x), "same")
    net.out(net.add_shuffle(fixed), "weights")
    net.out(net.add_shape(x), "shape")
    ready = net.prepare()
    given = np.ones(3, np.float32)
    for result in (ready({"x": given}), ready({"x": given}), ready({"x": given})):
        for name in result:
            result[name] += 1
    np.testing.assert_array_equal(given, np.ones(3))
    again = ready({"x": given})
    np.testing.assert_array_equal(again["weights"], np.arange(3))
    np.testing.assert_array_equal(again["shape"], [3])


def test_results_share_no_memory_with_each_other(net):
    x = net.input("x", (2, 3))
    first = net.add_unary(x, trt.UnaryOperation.NEG).get_output(0)
    view = net.add_shuffle(first)
    view.reshape_dims = (6,)
    net.out(view)
    found = net.run(taps=[first.name], x=X)
    assert not np.shares_memory(found["y"], found[first.name])


def test_what_a_prepared_network_cannot_be_told_any_more_is_refused(chain):
    with pytest.raises(InputError, match="when a network is prepared"):
        evaluate(prepare_network(chain.trt), {"x": X}, plugins={"name": len})


def test_a_layer_that_cannot_be_computed_says_which_and_what_there_was(net):
    x = net.input("x", (-1, 3))
    first = net.add_unary(x, trt.UnaryOperation.NEG)
    first.get_output(0).name = "first"
    shape = net.input("shape", (2,), trt.int64)
    wrong = net.add_shuffle(first.get_output(0))
    wrong.set_input(1, shape)
    wrong.name = "attn.view"
    net.out(wrong)
    with pytest.raises(LayerError, match=r"layer 'attn.view' \(SHUFFLE\).*\[2, 3\]") as caught:
        net.run(x=X, shape=np.array([4, 2], np.int64))
    assert caught.value.layer == "attn.view"
    np.testing.assert_array_equal(caught.value.partial["first"], -X)


def test_an_assertion_that_fails_stops(net):
    x = net.input("x", (2,), trt.int64)
    check = net.add_assertion(net.add_elementwise(x, x, trt.ElementWiseOperation.LESS).get_output(0), "must grow")
    check.name = "check"
    net.out(net.add_identity(x))
    with pytest.raises(LayerError, match="must grow"):
        net.run(x=np.array([1, 2]))


def test_values_nobody_needs_are_let_go(net):
    """A long chain holds a few values at a time, whatever its length."""
    tensor = net.input("x", (1000,))
    for _ in range(50):
        tensor = net.add_elementwise(tensor, tensor, SUM).get_output(0)
    net.out(tensor)
    alive, most = [], 0
    for _, outputs in net.prepare().iterate_layers({"x": np.ones(1000, np.float32)}):
        alive += [weakref.ref(array) for array in outputs.values()]
        del outputs
        gc.collect()
        most = max(most, sum(each() is not None for each in alive))
    assert most <= 3


def test_the_users_layers_are_left_as_they_were(chain):
    held = [chain.get_layer(number) for number in range(chain.num_layers)]
    classes, kinds = [type(layer) for layer in held], [layer.type for layer in held]
    evaluate(chain.trt, {"x": X}, taps="all")
    assert [type(layer) for layer in held] == classes
    assert [layer.type for layer in held] == kinds


def test_tensorrt_has_nothing_to_complain_about(net, log):
    """Asking for attributes that an input gives, or that were never set, would be logged."""
    x = net.input("x", (2, 3))
    shape = net.constant(np.array([1, 2], np.int64))
    cut = net.add_slice(x, (0, 0), (1, 1), (1, 1))
    cut.set_input(2, shape)
    turned = net.add_shuffle(cut.get_output(0))
    turned.set_input(1, net.constant(np.array([2], np.int64)))
    query = net.input("q", (1, 2, 3, 4))
    attention = net.add_attention(query, query, query, trt.AttentionNormalizationOp.SOFTMAX, False)
    net.out(attention, "attended")
    net.out(net.add_quantize(turned.get_output(0), net.constant(np.float32(1)), trt.int8))
    log.clear()
    net.run(taps="all", x=X, q=np.ones((1, 2, 3, 4), np.float32))
    assert log == []
