"""How a module is called with named arrays: as a decoder with its cache, or as any module with its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.engines.torch.hooks import ModuleWatch, iterate_tensors, module_places, uncompiled_module
from trtdx.engines.torch.kv_cache import DecoderCache, cache_from_model
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.values import (
    array_from_tensor,
    forward_parameters,
    model_device,
    tensor_from_array,
    tensors_from_arrays,
)
from trtdx.tensors.feeds import ModelInput, check_feeds
from trtdx.tensors.taps import Place, parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.engines.engine import Array

# What a decoder is fed besides its cache, where it takes it.
STEP_INPUTS = {"input_ids": "seq", "attention_mask": "total", "position_ids": "seq"}


def is_causal_decoder(model: Any) -> bool:
    """Whether a module is a Hugging Face causal language model."""
    can = getattr(model, "can_generate", None)
    if not callable(can) or not can() or getattr(model.config, "is_encoder_decoder", False):
        return False
    return "input_ids" in forward_parameters(model)


class PlainModuleForm:
    """A module whose arguments are what its forward is declared with."""

    cache: DecoderCache | None = None
    cache_note = "none: not a causal language model"

    def __init__(self, model: Any) -> None:
        self._model, self._device = model, model_device(model)
        parameters = forward_parameters(model)
        self._takes_keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self.inputs = {
            name: ModelInput(name, "", None, parameter.default is not parameter.empty)
            for name, parameter in parameters.items()
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }
        self.outputs: list[str] = []  # known after the first run

    def places(self) -> list[Place]:
        return module_places(self._model)

    def run(self, call: Callable[..., Any], feeds: Mapping[str, Any]) -> dict[str, Array]:
        more = {name: ModelInput(name, "", None) for name in feeds} if self._takes_keywords else {}
        check_feeds(self.inputs | more, dict.fromkeys(feeds))  # their names only: they may be tuples
        result = call(**{name: tensors_from_arrays(value, self._device) for name, value in feeds.items()})
        arrays = named_output_arrays(result)
        self.outputs = list(arrays)
        return arrays


def named_output_arrays(result: Any) -> dict[str, Array]:
    """Return what a module gave back: by its names if it has any, else as "out", "out[1]", ..."""
    values = result if isinstance(result, (tuple, list)) else (result,)
    return {
        argument or (f"out[{number}]" if number else "out"): array_from_tensor(tensor)
        for number, argument, tensor in iterate_tensors(values, {})
    }


class DecoderForm:
    """A causal language model: tokens and the cache go in, scores and the cache come out."""

    def __init__(self, model: Any) -> None:
        self._model, self._device = model, model_device(model)
        parameters = forward_parameters(model)
        self._step_inputs = [name for name in STEP_INPUTS if name in parameters]
        self._takes_use_cache = "use_cache" in parameters or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        order: dict[Place, None] = {}
        watch = ModuleWatch(
            model,
            parse_selector("**:*"),
            lambda tapped_tensor: order.setdefault(tapped_tensor.place),
            start=None,
        )
        result = self.run_probe(watch)
        self._places = merge_place_order(list(order), module_places(model))
        cache = (
            cache_from_model(model, getattr(result, "past_key_values", None)) if "past_key_values" in parameters else ""
        )
        self.cache = cache if isinstance(cache, DecoderCache) else None
        why = cache or "the model takes none"
        self.cache_note = str(why) if self.cache else f"none: {why}; each step computes the whole sequence"

    def run_probe(self, watch: ModuleWatch | None = None, *, padded: bool = False) -> Any:
        """Run the model on a token (padded: on two rows, one of them filled up), which shows how modules are called."""
        ids = torch.zeros((2, 2) if padded else (1, 1), dtype=torch.int64, device=self._device)
        mask = torch.ones_like(ids)
        if padded:
            mask[0, 0] = 0
        step_inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": torch.clamp(mask.cumsum(1) - 1, min=0),
        }
        more = {"use_cache": True} if self._takes_use_cache else {}
        if watch is not None:
            watch.compiled = False
            watch.attach()
        try:
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                return uncompiled_module(self._model)(**{name: step_inputs[name] for name in self._step_inputs}, **more)
        finally:
            if watch is not None:
                watch.detach()

    @property
    def inputs(self) -> dict[str, ModelInput]:
        inputs = {name: ModelInput(name, "int64", ("batch", STEP_INPUTS[name])) for name in self._step_inputs}
        return inputs | self.cache.inputs if self.cache else inputs

    @property
    def outputs(self) -> list[str]:
        return ["logits", *(self.cache.outputs if self.cache else ())]

    def places(self) -> list[Place]:
        return list(self._places)

    def run(self, call: Callable[..., Any], feeds: Mapping[str, Any]) -> dict[str, Array]:
        arrays = check_feeds(self.inputs, feeds)
        tensors = {name: tensor_from_array(array, self._device) for name, array in arrays.items()}
        arguments = {name: tensors.pop(name) for name in self._step_inputs}
        if self._takes_use_cache:
            arguments["use_cache"] = self.cache is not None
        if self.cache is None:
            return {"logits": array_from_tensor(_logits_of_result(call(**arguments)))}
        length = None
        if "attention_mask" in arguments:
            total, new = arguments["attention_mask"].shape[1], arguments["input_ids"].shape[1]
            length = self.cache.past_length(tensors, total, new)
        cache = self.cache.create_filled(tensors, length)
        results = {"logits": _logits_of_result(call(**arguments, past_key_values=cache))} | self.cache.read_contents(
            cache
        )
        return {name: array_from_tensor(tensor) for name, tensor in results.items()}


def _logits_of_result(result: Any) -> Any:
    return result["logits"] if hasattr(result, "logits") else result[0]


def merge_place_order(passed_places: list[Place], all_places: Sequence[Place]) -> list[Place]:
    """Return the places that a run passed, in its order, and each other one after what precedes it in the model."""
    last = {place.path: place for place in passed_places}
    after: dict[Place | None, list[Place]] = {}
    before: Place | None = None
    for place in all_places:
        if place.path in last:
            before = last[place.path]
        elif place.op:
            after.setdefault(before, []).append(place)
    return [
        listed
        for place in (None, *passed_places)
        for listed in ((place,) if place else ()) + tuple(after.get(place, ()))
    ]
