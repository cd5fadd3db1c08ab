"""A layer's kernel, made once, and the values that never change, computed once."""

from __future__ import annotations

import importlib
import inspect
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from trtdx.engines.errors import LayerError, MissingPluginError, UnsupportedLayerError
from trtdx.engines.tensorrt.layers.table import MAKERS, SHORTCUTS, TORCH, Kernel, on_arrays, read
from trtdx.engines.tensorrt.network.values import value_from_given

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtdx.engines.tensorrt.network.graph import Graph, Layer

FAMILIES = (
    "activations", "arithmetic", "attention", "casts", "convolutions", "gathers", "making", "products",
    "quantization", "reductions", "sampling", "shapes", "slices",
)  # fmt: skip
PLUGINS = ("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
NEVER_FOLDED = (*PLUGINS, "ASSERTION", "DIST_COLLECTIVE")
MOST_GROWTH = 8  # times its inputs' elements that a folded value may have
SMALL = 1 << 16  # elements that are always folded


class Kernels:
    """The kernels of one network's layers and its constants by slot."""

    def __init__(self, graph: Graph, plugins: Mapping[str | tuple[str, str], Callable[..., Any]]) -> None:
        for family in FAMILIES:
            importlib.import_module(f"trtdx.engines.tensorrt.layers.{family}")
        self.graph = graph
        self.plugins = plugins
        self.constants: dict[int, Any] = {}
        self.made: dict[int, Kernel] = {}
        self.unfoldable: set[int] = set()

    def of(self, layer: Layer) -> Kernel:
        """Return a layer's kernel; that of a layer nobody can compute raises when it is run."""
        if layer.index not in self.made:
            self.made[layer.index] = self._make(layer)
        return self.made[layer.index]

    def _make(self, layer: Layer) -> Kernel:
        if layer.kind in PLUGINS:
            return self._plugin(layer)
        if layer.kind not in MAKERS:
            return _raising(UnsupportedLayerError(layer.kind, layer.name))
        with layer.typed() as trt:
            try:
                kernel = MAKERS[layer.kind](layer, trt)
            except LayerError as err:  # it is told when, and if, the layer is run
                return _raising(err)
            if layer.kind not in TORCH:
                return kernel
            slots = enumerate(layer.input_slots())
            fixed = {number: self.constants[slot] for number, slot in slots if slot in self.constants}
            kernel = on_arrays(kernel, layer, fixed)
            return SHORTCUTS[layer.kind](layer, trt, kernel) if layer.kind in SHORTCUTS else kernel

    def is_missing(self, layer: Layer) -> bool:
        """Return whether nobody can compute a layer."""
        if layer.kind in PLUGINS:
            return self._reference(layer) is None
        return layer.kind not in MAKERS and layer.kind != "DIST_COLLECTIVE"

    def folded(self, layer: Layer) -> bool:
        """Return whether all of a layer's outputs never change, having computed them."""
        if layer.outputs and all(tensor.slot in self.constants for tensor in layer.outputs):
            return True
        if layer.index in self.unfoldable:
            return False
        if not self._can_fold(layer) or not self._fold(layer):
            self.unfoldable.add(layer.index)
            return False
        return True

    def _can_fold(self, layer: Layer) -> bool:
        if layer.kind in NEVER_FOLDED or not layer.outputs or self.is_missing(layer):
            return False
        return not layer.is_random() and all(
            tensor is None or tensor.slot in self.constants for tensor in layer.inputs
        )

    def _fold(self, layer: Layer) -> bool:
        inputs = [self.constants.get(slot) for slot in layer.input_slots()]
        try:
            result = self.of(layer)(*inputs)
        except Exception:  # it is told when, and if, the layer is run
            return False
        results = result if isinstance(result, tuple) else (result,)
        input_size = sum(value.size for value in inputs if value is not None)
        size = sum(value.size for value in results)
        if layer.kind != "CONSTANT" and size > max(SMALL, MOST_GROWTH * input_size):
            return False
        self.constants.update(
            (tensor.slot, value) for tensor, value in zip(layer.outputs, results, strict=True)
        )
        return True

    def _reference(self, layer: Layer) -> Callable[..., Any] | None:
        name, version = plugin_name(layer)
        return self.plugins.get((name, version)) or self.plugins.get(name)

    def _plugin(self, layer: Layer) -> Kernel:
        reference = self._reference(layer)
        if reference is None:
            return _raising(MissingPluginError(*plugin_name(layer), layer.name))
        options = {"layer": layer} if "layer" in _parameters(reference) else {}

        def compute(*inputs: Any) -> Any:
            result = reference(*inputs, **options)
            results = result if isinstance(result, tuple | list) else (result,)
            if len(results) != len(layer.outputs):
                raise LayerError(
                    f"the reference of plugin {plugin_name(layer)[0]} returned {len(results)} arrays for "
                    f"{len(layer.outputs)} outputs of layer {layer.name!r}",
                    layer=layer.name,
                )
            values = [
                value_from_given(value, tensor.dtype, tensor.name)
                for value, tensor in zip(results, layer.outputs, strict=True)
            ]
            return values[0] if len(values) == 1 else tuple(values)

        return compute


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins do not tell
        return {}


def plugin_name(layer: Layer) -> tuple[str, str]:
    """Return a plugin layer's plugin and its version; the layer's name where the bindings do not tell."""
    with layer.typed() as trt:
        plugin = read(lambda: trt.plugin)
        core = read(lambda: plugin.get_capability_interface(layer.bindings.PluginCapabilityType.CORE))
        for source, attribute in product((core, plugin), ("plugin_name", "plugin_type")):
            name = read(partial(getattr, source, attribute))
            if isinstance(name, str) and name:
                return name, str(read(partial(getattr, source, "plugin_version")) or "")
    return layer.name, ""


def _raising(error: Exception) -> Kernel:
    def refuse(*_: Any) -> Any:
        raise error

    return refuse
