"""The cache of a Hugging Face decoder as plain arrays, so that it can go round, be kept and be taken up again.

What transformers holds in an object is `past.<layer>.key` and `.value` here. Layers that keep everything and layers
that keep a window are known; a model with any other kind of layer is computed without a cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.torch.lazy_import import LazyModule
from trtdx.errors import InputError
from trtdx.tensors.dtypes import find_dtype
from trtdx.tensors.feeds import ModelInput
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

cache_utils: Any = LazyModule("transformers.cache_utils", extra="torch", to="compute with a KV cache")
KEY_AND_VALUE = ("key", "value")
LENGTH_AXIS = -2  # of keys and values: [batch, heads, length, width]
DYNAMIC_LAYER, SLIDING_LAYER = "DynamicLayer", "DynamicSlidingWindowLayer"


class CacheLayer(NamedTuple):
    """One layer's part of the cache: whether it keeps a window, and the shapes of one token's key and value."""

    number: int
    kind: str
    shapes: tuple[Sequence[int], Sequence[int]]
    dtypes: tuple[Any, Any]


class DecoderCache:
    """The cache of one model."""

    def __init__(self, config: Any, layers: Sequence[CacheLayer]) -> None:
        self._config, self._layers = config, layers

    def __str__(self) -> str:
        windows = sum(layer.kind == SLIDING_LAYER for layer in self._layers)
        text = f"keys and values of {format_count(len(self._layers), 'layer')}"
        return f"{text}, {windows} of them with a window" if windows else text

    @staticmethod
    def written_layers(cache: Any) -> set[int]:
        """Return the layers of a cache that something was written to."""
        return {number for number, layer in enumerate(cache.layers) if layer.is_initialized}

    @property
    def inputs(self) -> dict[str, ModelInput]:
        """What goes in, by name."""
        inputs = {}
        for layer in self._layers:
            length = "past_window" if layer.kind == SLIDING_LAYER else "past"
            for part, (_, heads, _, width), dtype in zip(KEY_AND_VALUE, layer.shapes, layer.dtypes, strict=True):
                name = f"past.{layer.number}.{part}"
                inputs[name] = ModelInput(name, find_dtype(dtype).name, ("batch", heads, length, width))
        return inputs

    @property
    def outputs(self) -> list[str]:
        """What comes out, by name, in the order of the inputs."""
        return [f"present.{layer.number}.{part}" for layer in self._layers for part in KEY_AND_VALUE]

    def create_filled(self, past: Mapping[str, Any], length: int | None = None) -> Any:
        """Return transformers' cache with these tensors in it, by the names of the inputs; some layers may be left out.

        Args:
            past: keys and values.
            length: how many tokens there were; a window forgets it. Where it is not told, as many as are kept.
        """
        cache = cache_utils.DynamicCache(config=self._config)
        for layer in self._layers:
            key, value = (past.get(f"past.{layer.number}.{part}") for part in KEY_AND_VALUE)
            if key is None or value is None or not key.shape[LENGTH_AXIS]:
                continue
            cache_layer = cache.layers[layer.number]
            cache_layer.lazy_initialization(key, value)
            cache_layer.keys, cache_layer.values = key, value
            if layer.kind == SLIDING_LAYER:
                cache_layer.cumulative_length = key.shape[LENGTH_AXIS] if length is None else length
        return cache

    def read_contents(self, cache: Any) -> dict[str, Any]:
        """Return what is in a cache, by the names of the outputs; layers that nothing was written to are left out."""
        contents: dict[str, Any] = {}
        for layer in self._layers:
            cache_layer = cache.layers[layer.number]
            if cache_layer.is_initialized:
                contents |= {
                    f"present.{layer.number}.key": cache_layer.keys,
                    f"present.{layer.number}.value": cache_layer.values,
                }
        return contents

    def past_length(self, past: Mapping[str, Any], total: int, new: int) -> int:
        """Return how many tokens are in the cache, from the width of the mask, or raise if that cannot be."""
        for layer in self._layers:
            cached = past[f"past.{layer.number}.key"].shape[LENGTH_AXIS]
            if cached > total - new or (layer.kind == DYNAMIC_LAYER and cached != total - new):
                raise InputError(
                    f"the mask is {total} tokens wide, but there are {new} new ones and {cached} in the cache of "
                    f"layer {layer.number}"
                )
        return total - new


def cache_from_model(model: Any, model_cache: Any) -> DecoderCache | str:
    """Return the cache of a model, as one that it made itself shows it, or why there can be none."""
    config = getattr(model, "config", None)
    if model_cache is None:
        return "the model gives none back"
    layers = getattr(model_cache, "layers", None)
    if type(model_cache).__name__ != "DynamicCache" or layers is None:
        return f"it is a {type(model_cache).__name__}, which is not known here"
    strange = [type(layer).__name__ for layer in layers if type(layer).__name__ not in (DYNAMIC_LAYER, SLIDING_LAYER)]
    if strange:
        return f"it has a {strange[0]}, which is not known here"
    configured = cache_utils.DynamicCache(config=config).layers
    if [type(layer) for layer in configured] != [type(layer) for layer in layers]:
        return "its layers are others than its config tells"
    used = [(number, layer) for number, layer in enumerate(layers) if layer.is_initialized]
    return DecoderCache(
        config,
        [
            CacheLayer(
                number,
                type(layer).__name__,
                (layer.keys.shape, layer.values.shape),
                (layer.keys.dtype, layer.values.dtype),
            )
            for number, layer in used
        ],
    )
