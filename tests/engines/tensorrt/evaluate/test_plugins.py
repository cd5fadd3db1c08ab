"""Plugins are computed by the user's reference functions.

TensorRT-RTX cannot create plugin layers: `plugin_networks.py` puts a stand-in in the place of a real layer.
"""

from __future__ import annotations

import numpy as np
import pytest

from trtdx.engines.errors import LayerError, MissingPluginError, UnsupportedLayerError
from trtdx.engines.tensorrt import evaluate, prepare_network

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")
from support.plugin_networks import IPluginV3Layer, Kind, network_with_plugin  # noqa: E402


@pytest.fixture
def with_plugin(net):
    return network_with_plugin(net)


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
        seen.extend(layer.name for layer, _ in prepare_network(with_plugin).iterate_layers({"x": X}))
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
