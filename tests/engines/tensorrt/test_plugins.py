"""Plugins are computed by the user's reference functions.

TensorRT-RTX cannot create plugin layers, so the plugin of these networks is put in place of a real identity
layer: a wrapper shows the network with that one layer exchanged.
"""

from __future__ import annotations

import enum
import sys

import numpy as np
import pytest

from trtdx.engines.errors import LayerError, MissingPluginError, UnsupportedLayerError
from trtdx.engines.tensorrt import evaluate, prepare

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")
BINDINGS = sys.modules[trt.INetworkDefinition.__module__]


class Kind(enum.Enum):
    PLUGIN_V3 = 1
    TELEPATHY = 2


class Core:
    plugin_name, plugin_version, plugin_namespace = "GPTAttention", "1", "tensorrt_llm"


class Plugin:
    def get_capability_interface(self, kind):
        return Core()


class IPluginV3Layer:
    """What the bindings of a TensorRT with plugins show of a plugin layer."""

    shown_kind = Kind.PLUGIN_V3

    def __init__(self, real):
        self._real = real
        self.plugin = Plugin()

    def __getattr__(self, name):
        return getattr(self._real, name)


class ILayer:
    """Tells a layer's kind, as the property of the real base class does."""

    @property
    def type(self):
        return self.shown_kind if isinstance(self, IPluginV3Layer) else BINDINGS.ILayer.type.fget(self)


def __getattr__(name):  # the rest of what this module shows in the place of the bindings
    return getattr(BINDINGS, name)


class Network:
    """A real network with one layer shown as a plugin's."""

    def __init__(self, real, exchanged):
        self._real, self._exchanged = real, exchanged
        self._layers = {}

    def get_layer(self, number):
        found = self._real.get_layer(number)
        if found.name != self._exchanged:
            return found
        return self._layers.setdefault(number, IPluginV3Layer(found))

    def __getattr__(self, name):
        return getattr(self._real, name)


@pytest.fixture
def with_plugin(net):
    """x -> doubled -> plugin -> y, and a negation that has nothing to do with the plugin."""
    x = net.input("x", (2,))
    doubled = net.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    doubled.name = "doubled"
    plugin = net.add_identity(doubled)
    plugin.name = "layers.0.attention"
    after = net.add_unary(plugin.get_output(0), trt.UnaryOperation.SQRT)
    net.out(after, "y")
    aside = net.add_unary(x, trt.UnaryOperation.NEG)
    net.out(aside, "aside")
    return Network(net.trt, "layers.0.attention")


X = np.array([2, 8], np.float32)


@pytest.mark.parametrize("key", ["GPTAttention", ("GPTAttention", "1")])
def test_a_reference_computes_the_plugin(with_plugin, key):
    found = evaluate(with_plugin, {"x": X}, plugins={key: lambda value: value * 4})
    np.testing.assert_allclose(found["y"], np.sqrt(8 * X))


def test_a_reference_is_told_its_layer_if_it_asks(with_plugin):
    told = []

    def reference(value, *, layer):
        told.append((layer.name, layer.kind))
        return [value]

    evaluate(with_plugin, {"x": X}, plugins={"GPTAttention": reference})
    assert told == [("layers.0.attention", "PLUGIN_V3")]


@pytest.mark.parametrize("plugins", [{}, {("GPTAttention", "2"): None}])
def test_a_plugin_without_reference_stops_and_everything_before_is_there(with_plugin, plugins):
    with pytest.raises(MissingPluginError) as caught:
        evaluate(with_plugin, {"x": X}, plugins=plugins)
    error = caught.value
    assert "GPTAttention version 1" in error.message
    assert "layers.0.attention" in error.message
    assert "plugins={'GPTAttention': function}" in error.fix
    assert set(error.partial) == {"doubled", "aside"}  # also what comes after it and does not need it
    np.testing.assert_array_equal(error.partial["doubled"], 2 * X)


def test_steps_go_on_until_the_plugin(with_plugin):
    seen = []
    with pytest.raises(MissingPluginError):
        seen.extend(layer.name for layer, _ in prepare(with_plugin).steps({"x": X}))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (lambda value: (value, value), "returned 2 arrays for 1 outputs"),
        (lambda value: value.astype(np.float64), "float64, but the network wants float32"),
        (lambda value: 1 / 0, "division by zero"),
    ],
)
def test_a_reference_that_is_wrong_is_told(with_plugin, reference, told):
    with pytest.raises(LayerError, match=told):
        evaluate(with_plugin, {"x": X}, plugins={"GPTAttention": reference})


def test_a_layer_of_a_kind_from_the_future_is_named(with_plugin, monkeypatch):
    monkeypatch.setattr(IPluginV3Layer, "shown_kind", Kind.TELEPATHY)
    with pytest.raises(UnsupportedLayerError, match=r"'layers\.0\.attention' is a TELEPATHY") as caught:
        evaluate(with_plugin, {"x": X})
    assert set(caught.value.partial) == {"doubled", "aside"}
