"""The cache of a Hugging Face decoder as plain arrays, so that it can go round, be kept and be taken up again.

What transformers holds in an object is `past.<layer>.key` and `.value` here. Layers that keep everything and layers
that keep a window are known; a model with any other kind of layer is computed without a cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.torch.lazy import _Lazy
from trtdx.errors import InputError
from trtdx.tensors.dtypes import dtype_of
from trtdx.tensors.feeds import Input
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

utils: Any = _Lazy("transformers.cache_utils", extra="torch", to="compute with a KV cache")
PARTS = ("key", "value")
LENGTH_AXIS = -2  # of keys and values: [batch, heads, length, width]
PLAIN, SLIDING = "DynamicLayer", "DynamicSlidingWindowLayer"


class Layer(NamedTuple):
    """One layer's part of the cache: whether it keeps a window, and the shapes of one token's key and value."""

    number: int
    kind: str
    shapes: tuple[Sequence[int], Sequence[int]]
    dtypes: tuple[Any, Any]


class KeyValues:
    """The cache of one model."""

    def __init__(self, config: Any, layers: Sequence[Layer]) -> None:
        self._config, self._layers = config, layers

    def __str__(self) -> str:
        windows = sum(layer.kind == SLIDING for layer in self._layers)
        text = f"keys and values of {counted(len(self._layers), 'layer')}"
        return f"{text}, {windows} of them with a window" if windows else text

    @staticmethod
    def written(cache: Any) -> set[int]:
        """Return the layers of a cache that something was written to."""
        return {number for number, layer in enumerate(cache.layers) if layer.is_initialized}

    @property
    def inputs(self) -> dict[str, Input]:
        """What goes in, by name."""
        inputs = {}
        for layer in self._layers:
            length = "past_window" if layer.kind == SLIDING else "past"
            for part, (_, heads, _, width), dtype in zip(PARTS, layer.shapes, layer.dtypes, strict=True):
                name = f"past.{layer.number}.{part}"
                inputs[name] = Input(name, dtype_of(dtype).name, ("batch", heads, length, width))
        return inputs

    @property
    def outputs(self) -> list[str]:
        """What comes out, by name, in the order of the inputs."""
        return [f"present.{layer.number}.{part}" for layer in self._layers for part in PARTS]

    def filled(self, past: Mapping[str, Any], length: int | None = None) -> Any:
        """Return transformers' cache with these tensors in it, by the names of the inputs; some layers may be left out.

        Args:
            past: keys and values.
            length: how many tokens there were; a window forgets it. Where it is not told, as many as are kept.
        """
        cache = utils.DynamicCache(config=self._config)
        for layer in self._layers:
            key, value = (past.get(f"past.{layer.number}.{part}") for part in PARTS)
            if key is None or value is None or not key.shape[LENGTH_AXIS]:
                continue
            cache_layer = cache.layers[layer.number]
            cache_layer.lazy_initialization(key, value)
            cache_layer.keys, cache_layer.values = key, value
            if layer.kind == SLIDING:
                cache_layer.cumulative_length = key.shape[LENGTH_AXIS] if length is None else length
        return cache

    def contents(self, cache: Any) -> dict[str, Any]:
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
            if cached > total - new or (layer.kind == PLAIN and cached != total - new):
                raise InputError(
                    f"the mask is {total} tokens wide, but there are {new} new ones and {cached} in the cache of "
                    f"layer {layer.number}"
                )
        return total - new


def cache_from(model: Any, made: Any) -> KeyValues | str:
    """Return the cache of a model, as one that it made itself shows it, or why there can be none."""
    config = getattr(model, "config", None)
    if made is None:
        return "the model gives none back"
    layers = getattr(made, "layers", None)
    if type(made).__name__ != "DynamicCache" or layers is None:
        return f"it is a {type(made).__name__}, which is not known here"
    strange = [type(layer).__name__ for layer in layers if type(layer).__name__ not in (PLAIN, SLIDING)]
    if strange:
        return f"it has a {strange[0]}, which is not known here"
    configured = utils.DynamicCache(config=config).layers
    if [type(layer) for layer in configured] != [type(layer) for layer in layers]:
        return "its layers are others than its config tells"
    used = [(number, layer) for number, layer in enumerate(layers) if layer.is_initialized]
    return KeyValues(
        config,
        [
            Layer(
                number,
                type(layer).__name__,
                (layer.keys.shape, layer.values.shape),
                (layer.keys.dtype, layer.values.dtype),
            )
            for number, layer in used
        ],
    )
