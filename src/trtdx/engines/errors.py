"""What can go wrong while an engine computes.

TrtdxError
└── EvaluationError            a network cannot be computed to its end; carries what was computed before
    ├── MissingPluginError     a plugin has no reference function
    ├── UnsupportedLayerError  a kind of layer nobody taught us
    └── LayerError             a layer refuses its inputs, as TensorRT would or because we cannot

BuildError, of compiling with TensorRT, is in engines/tensorrt/build/errors.py; NoDriverError, of executing without a
GPU, in engines/tensorrt/execute/device.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Mapping


class EvaluationError(TrtdxError):
    """A network that could not be computed to its end.

    Attributes:
        layer: the name of the layer where it stopped.
        partial: the tensors there were when it stopped, by name.
    """

    def __init__(self, message: str, *, layer: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.layer = layer
        self.partial: Mapping[str, Any] = {}


class MissingPluginError(EvaluationError):
    def __init__(self, plugin: str, version: str, layer: str) -> None:
        plugin_text = f"{plugin} version {version}" if version else plugin
        super().__init__(
            f"the plugin {plugin_text} of layer {layer!r} has no reference to compute it with",
            layer=layer,
            fix=f"pass plugins={{{plugin!r}: function}}; the function gets the input arrays and returns the outputs",
        )
        self.plugin = plugin
        self.version = version


class UnsupportedLayerError(EvaluationError):
    def __init__(self, kind: str, layer: str) -> None:
        super().__init__(f"layer {layer!r} is a {kind}, which cannot be computed here", layer=layer)
        self.kind = kind


class LayerError(EvaluationError):
    pass
