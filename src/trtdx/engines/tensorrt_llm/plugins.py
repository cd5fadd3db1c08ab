"""TensorRT-LLM's plugins where their library cannot be loaded: a reference function computes them.

TensorRT-RTX makes no plugin layers. A plugin's outputs are inputs of the real network instead, and `network_with_plugins` presents
that network to `evaluate` with the plugin's layer in place.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trtdx.engines.errors import LayerError, MissingPluginError
from trtdx.engines.tensorrt.network.values import shape_matches
from trtdx.errors import InputError
from trtdx.optional import import_optional

PluginFields = Mapping[str, Any]
# From a plugin's fields and its inputs (with .dtype and .shape) to a type and a shape for each output.
PluginOutputs = Callable[[PluginFields, Sequence[Any]], Sequence[tuple[Any, Sequence[int]]]]


MOST_NETWORKS = 64  # with plugins, at a time; a layer holds its network, which holds its weights


class Plugin(NamedTuple):
    """How a plugin is computed: a function of its input arrays, and what its outputs look like.

    Attributes:
        compute: from the input arrays to the output array or arrays. One that has a parameter called `fields` is
            told what the plugin was created with.
        outputs: the type and shape of each output, -1 where unknown. Without it there is one, like the first input.
    """

    compute: Callable[..., Any]
    outputs: PluginOutputs | None = None


class CreatedPlugin:
    """What a plugin creator returns: the plugin's name, version and fields."""

    def __init__(self, name: str, version: str, namespace: str, fields: PluginFields) -> None:
        self.plugin_type = self.plugin_name = name
        self.plugin_version, self.plugin_namespace, self.fields = version, namespace, fields


class PluginCreator:
    """Stands in for a plugin creator of TensorRT-LLM's library."""

    def __init__(self, name: str, version: str, namespace: str) -> None:
        self.name, self.plugin_version, self.plugin_namespace = name, version, namespace

    def create_plugin(self, name: str, fields: Any, phase: Any = None) -> CreatedPlugin:
        read = {field.name: np.array(field.data) for field in (fields[at] for at in range(len(fields)))}
        return CreatedPlugin(self.name, self.plugin_version, self.plugin_namespace, read)


class PluginRegistry:
    """Stands in for the plugin registry: there is a creator of every name, and no list of them."""

    plugin_creator_list: tuple[Any, ...] = ()

    def __init__(self, real: Any) -> None:
        self._real = real

    def get_plugin_creator(self, name: str, version: str = "1", namespace: str = "") -> PluginCreator:
        return PluginCreator(name, version, namespace)

    get_creator = get_plugin_creator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class PluginLayerKind(enum.Enum):
    """The kind of layer `evaluate` is shown."""

    PLUGIN_V2 = 1


class PluginLayer:
    """A plugin in a network, as the code that defines the network sees it."""

    def __init__(
        self, network: Any, plugin: CreatedPlugin, inputs: Sequence[Any], placeholder_inputs: Sequence[Any]
    ) -> None:
        self.plugin, self._inputs, self.placeholder_inputs = plugin, inputs, placeholder_inputs
        self.name = self.metadata = f"(Unnamed plugin {plugin.plugin_type})"
        self.type = sys.modules[type(network).__module__].LayerType.PLUGIN_V2
        self.num_inputs, self.num_outputs = len(inputs), len(placeholder_inputs)
        # What callers go on with: TensorRT would not mark an input of the network as its output.
        self._outputs = [network.add_identity(tensor).get_output(0) for tensor in placeholder_inputs]

    def get_input(self, number: int) -> Any:
        return self._inputs[number]

    def get_output(self, number: int) -> Any:
        return self._outputs[number]


class IPluginV2Layer:
    """A plugin's layer as `evaluate` sees it: it gives what the real network takes for inputs.

    Named as the bindings name theirs, because `evaluate` looks classes up by name.
    """

    def __init__(self, layer: PluginLayer) -> None:
        self.plugin, self.name, self.metadata = layer.plugin, layer.name, layer.metadata
        self.num_inputs, self.num_outputs = layer.num_inputs, layer.num_outputs
        self.get_input, self.get_output = layer.get_input, layer.placeholder_inputs.__getitem__


class ILayer:
    """Tells a layer's kind, as the property of the real base class does."""

    @property
    def type(self) -> Any:
        if isinstance(self, IPluginV2Layer):
            return PluginLayerKind.PLUGIN_V2
        return _rtx_module().ILayer.type.fget(self)


def load_rtx_bindings() -> Any:
    """Return TensorRT-RTX, whose builder needs no GPU."""
    return import_optional("tensorrt_rtx", extra="trt", purpose="define TensorRT-LLM's networks without a GPU")


def _rtx_module() -> Any:
    return sys.modules[load_rtx_bindings().ILayer.__module__]


def __getattr__(name: str) -> Any:  # the rest of what this module shows in the place of the bindings
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_rtx_module(), name)


class NetworkWithPlugins:
    """A real network with the plugins' layers among its own, and without the inputs they give."""

    def __init__(self, real: Any, plugins: Sequence[tuple[int, PluginLayer]]) -> None:
        self._real = real
        self._layers = [real.get_layer(number) for number in range(real.num_layers)]
        for shift, (at, layer) in enumerate(plugins):
            self._layers.insert(at + shift, IPluginV2Layer(layer))
        placeholders = [tensor for _, layer in plugins for tensor in layer.placeholder_inputs]
        inputs = [real.get_input(number) for number in range(real.num_inputs)]
        self._inputs = [tensor for tensor in inputs if tensor not in placeholders]
        self.num_layers, self.num_inputs = len(self._layers), len(self._inputs)

    def get_layer(self, number: int) -> Any:
        return self._layers[number]

    def get_input(self, number: int) -> Any:
        return self._inputs[number]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class PluginReferences:
    """The reference functions there are, and the plugin layers of each network."""

    def __init__(self, references: Mapping[str, Callable[..., Any] | Plugin]) -> None:
        from trtdx.engines.tensorrt_llm.references import known_references

        user_references = {
            name: reference if isinstance(reference, Plugin) else Plugin(reference)
            for name, reference in references.items()
        }
        self._references = known_references() | user_references
        self._layers: dict[Any, list[tuple[int, PluginLayer]]] = {}

    def add_layer(self, network: Any, inputs: Sequence[Any], plugin: CreatedPlugin) -> PluginLayer:
        """Add a plugin's layer to a network."""
        name = getattr(plugin, "plugin_type", type(plugin).__name__)
        if not isinstance(plugin, CreatedPlugin) or name not in self._references:
            raise MissingPluginError(name, getattr(plugin, "plugin_version", ""), "(being defined)")
        layer_inputs = list(inputs)
        declare_outputs = self._references[name].outputs or _outputs_like_first_input
        layers = self._layers.setdefault(network, [])
        if len(self._layers) > MOST_NETWORKS:
            del self._layers[next(iter(self._layers))]
        outputs = []
        for number, (dtype, shape) in enumerate(declare_outputs(plugin.fields, layer_inputs)):
            output_name = f"{name}_{len(layers)}_output_{number}"
            placeholder = network.add_input(output_name, dtype, tuple(shape))
            if placeholder is None:
                raise InputError(f"TensorRT refuses output {number} of plugin {name}: {dtype}, {list(shape)}")
            outputs.append(placeholder)
        at = network.num_layers
        layers.append((at, PluginLayer(network, plugin, layer_inputs, outputs)))
        return layers[-1][1]

    def network_with_plugins(self, network: Any) -> Any:
        """Return a network as `evaluate` is to see it."""
        layers = self._layers.get(network)
        return NetworkWithPlugins(network, layers) if layers else network

    def checked_functions(self) -> dict[str | tuple[str, str], Callable[..., Any]]:
        """Return a function for each plugin, as `evaluate` wants them."""
        return {name: _shape_checked_reference(name, plugin) for name, plugin in self._references.items()}


def _outputs_like_first_input(fields: PluginFields, inputs: Sequence[Any]) -> list[tuple[Any, Sequence[int]]]:
    return [(inputs[0].dtype, inputs[0].shape)]


def _shape_checked_reference(name: str, plugin: Plugin) -> Callable[..., Any]:
    """Return a reference that is held to the shapes its network was defined with."""
    takes_fields = "fields" in inspect.signature(plugin.compute).parameters

    def compute(*arrays: Any, layer: Any) -> Any:
        plugin_layer: IPluginV2Layer = layer.trt
        options = {"fields": plugin_layer.plugin.fields} if takes_fields else {}
        result = plugin.compute(*arrays, **options)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for number, output in enumerate(results[: plugin_layer.num_outputs]):
            declared, shape = tuple(plugin_layer.get_output(number).shape), tuple(output.shape)
            if not shape_matches(declared, shape):
                raise LayerError(
                    f"the reference of plugin {name} returned {list(shape)} for output {number}, but the network "
                    f"was defined with {list(declared)}",
                    layer=layer.name,
                    fix=f"pass plugins={{{name!r}: Plugin(function, outputs)}}; `outputs` tells types and shapes",
                )
        return result

    return compute
