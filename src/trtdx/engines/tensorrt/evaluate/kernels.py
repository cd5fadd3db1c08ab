"""A layer's kernel, made once, and the values that never change, computed once."""

from __future__ import annotations

import importlib
import inspect
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from trtdx.engines.errors import LayerError, MissingPluginError, UnsupportedLayerError
from trtdx.engines.tensorrt.layers.kernel_registry import (
    KERNEL_MAKERS,
    SHORTCUTS,
    TORCH_KINDS,
    Kernel,
    kernel_on_arrays,
    read_attribute,
)
from trtdx.engines.tensorrt.network.values import value_from_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtdx.engines.tensorrt.network.graph import TrtGraph, TrtLayer

LAYER_MODULES = (
    "activations", "arithmetic", "attention", "casts", "convolutions", "gathers", "fill_and_nms", "products",
    "quantization", "reductions", "sampling", "shapes", "slices",
)  # fmt: skip
PLUGIN_KINDS = ("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
NEVER_FOLDED = (*PLUGIN_KINDS, "ASSERTION", "DIST_COLLECTIVE")
MOST_GROWTH = 8  # times its inputs' elements that a folded value may have
ALWAYS_FOLDED_ELEMENTS = 1 << 16  # elements that are always folded


class LayerKernels:
    """The kernels of one network's layers and its constants by slot."""

    def __init__(self, graph: TrtGraph, plugins: Mapping[str | tuple[str, str], Callable[..., Any]]) -> None:
        for family in LAYER_MODULES:
            importlib.import_module(f"trtdx.engines.tensorrt.layers.{family}")
        self.graph = graph
        self.plugins = plugins
        self.constants: dict[int, Any] = {}
        self.kernels: dict[int, Kernel] = {}
        self.unfoldable: set[int] = set()

    def kernel_of(self, layer: TrtLayer) -> Kernel:
        """Return a layer's kernel; that of a layer nobody can compute raises when it is run."""
        if layer.index not in self.kernels:
            self.kernels[layer.index] = self._create_kernel(layer)
        return self.kernels[layer.index]

    def _create_kernel(self, layer: TrtLayer) -> Kernel:
        if layer.kind in PLUGIN_KINDS:
            return self._plugin_kernel(layer)
        if layer.kind not in KERNEL_MAKERS:
            return _raising_kernel(UnsupportedLayerError(layer.kind, layer.name))
        with layer.with_layer_class() as trt:
            try:
                kernel = KERNEL_MAKERS[layer.kind](layer, trt)
            except LayerError as err:  # it is told when, and if, the layer is run
                return _raising_kernel(err)
            if layer.kind not in TORCH_KINDS:
                return kernel
            slots = enumerate(layer.input_slots())
            fixed = {number: self.constants[slot] for number, slot in slots if slot in self.constants}
            kernel = kernel_on_arrays(kernel, layer, fixed)
            return SHORTCUTS[layer.kind](layer, trt, kernel) if layer.kind in SHORTCUTS else kernel

    def is_uncomputable(self, layer: TrtLayer) -> bool:
        """Return whether nobody can compute a layer."""
        if layer.kind in PLUGIN_KINDS:
            return self._plugin_reference(layer) is None
        return layer.kind not in KERNEL_MAKERS and layer.kind != "DIST_COLLECTIVE"

    def fold_layer(self, layer: TrtLayer) -> bool:
        """Return whether all of a layer's outputs never change, having computed them."""
        if layer.outputs and all(tensor.slot in self.constants for tensor in layer.outputs):
            return True
        if layer.index in self.unfoldable:
            return False
        if not self._can_fold(layer) or not self._compute_constants(layer):
            self.unfoldable.add(layer.index)
            return False
        return True

    def _can_fold(self, layer: TrtLayer) -> bool:
        if layer.kind in NEVER_FOLDED or not layer.outputs or self.is_uncomputable(layer):
            return False
        return not layer.is_random() and all(tensor is None or tensor.slot in self.constants for tensor in layer.inputs)

    def _compute_constants(self, layer: TrtLayer) -> bool:
        inputs = [self.constants.get(slot) for slot in layer.input_slots()]
        try:
            result = self.kernel_of(layer)(*inputs)
        except Exception:  # it is told when, and if, the layer is run
            return False
        results = result if isinstance(result, tuple) else (result,)
        input_size = sum(value.size for value in inputs if value is not None)
        size = sum(value.size for value in results)
        if layer.kind != "CONSTANT" and size > max(ALWAYS_FOLDED_ELEMENTS, MOST_GROWTH * input_size):
            return False
        self.constants.update((tensor.slot, value) for tensor, value in zip(layer.outputs, results, strict=True))
        return True

    def _plugin_reference(self, layer: TrtLayer) -> Callable[..., Any] | None:
        name, version = plugin_name(layer)
        return self.plugins.get((name, version)) or self.plugins.get(name)

    def _plugin_kernel(self, layer: TrtLayer) -> Kernel:
        reference = self._plugin_reference(layer)
        if reference is None:
            return _raising_kernel(MissingPluginError(*plugin_name(layer), layer.name))
        options = {"layer": layer} if "layer" in _function_parameters(reference) else {}

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
                value_from_argument(value, tensor.dtype, tensor.name)
                for value, tensor in zip(results, layer.outputs, strict=True)
            ]
            return values[0] if len(values) == 1 else tuple(values)

        return compute


def _function_parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins do not tell
        return {}


def plugin_name(layer: TrtLayer) -> tuple[str, str]:
    """Return a plugin layer's plugin and its version; the layer's name where the bindings do not tell."""
    with layer.with_layer_class() as trt:
        plugin = read_attribute(lambda: trt.plugin)
        core = read_attribute(lambda: plugin.get_capability_interface(layer.bindings.PluginCapabilityType.CORE))
        for source, attribute in product((core, plugin), ("plugin_name", "plugin_type")):
            name = read_attribute(partial(getattr, source, attribute))
            if isinstance(name, str) and name:
                return name, str(read_attribute(partial(getattr, source, "plugin_version")) or "")
    return layer.name, ""


def _raising_kernel(error: Exception) -> Kernel:
    def refuse(*_: Any) -> Any:
        raise error

    return refuse
