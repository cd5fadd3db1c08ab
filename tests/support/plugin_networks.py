"""A real network shown with one of its layers as a plugin's.

TensorRT-RTX cannot create plugin layers, so a stand-in for one is put in the place of a real identity layer.
"""

from __future__ import annotations

import enum
import sys

import pytest

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
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


def network_with_plugin(net):
    """Return x -> doubled -> plugin -> y, and a negation that has nothing to do with the plugin."""
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
