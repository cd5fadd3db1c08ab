"""One module of a torch model computed alone, with inputs that were captured or made up.

A capture has the tensors that entered a module, not how they were handed over: which stood in a tuple, what was None,
where the cache was. A decoder shows that when it computes one token; of any other module the names alone tell it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.engine import Array, find_module_path
from trtdx.engines.torch.call_forms import DecoderForm
from trtdx.engines.torch.hooks import MOST_DEPTH, iterate_tensors, module_places, replace_tensors
from trtdx.engines.torch.kv_cache import KEY_AND_VALUE, DecoderCache
from trtdx.engines.torch.values import array_from_tensor, forward_parameters, model_device, tensor_from_array
from trtdx.errors import InputError
from trtdx.tensors.dtypes import find_dtype
from trtdx.tensors.feeds import ModelInput, check_feeds
from trtdx.tensors.taps import Place, path_matches
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.engines.torch.engine import TorchEngine

_INPUT_PORT = re.compile(r"(?:([^:]*?)(?:#\d+)?:)?(in(?:\[(\d+)\]|\.([\w.]+))?)")
_PAST_NAME = re.compile(r"past\.\d+\.(?:key|value)")
_TUPLE_ITEM = re.compile(r"(.+)\.(\d+)")


class CallArguments(NamedTuple):
    """What a module is called with."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    layers: Sequence[int] = ()  # of the cache, that it writes to

    def tensors_by_name(self) -> dict[str, Any]:
        """Return the tensors in it, by the names a capture gives them: "in", "in[1]", "in.mask"."""
        tensors = iterate_tensors(self.args, self.kwargs)
        return {Place("", "in", number, name).name[1:]: tensor for number, name, tensor in tensors}


def replay_torch_module(
    engine: TorchEngine | Any, scope: str, inputs: Mapping[str, Any], *, call: int = 0, step: int = 0
) -> dict[str, Array]:
    """Return what leaves a module, by the names of a capture; selected tensors inside it go to the engine's sink.

    Args:
        engine: the model, as an engine or as a module.
        scope: the module's path, or its end: "layers.3", "layers.3.mlp".
        inputs: an array for each tensor that enters, called as a capture calls it ("model.layers.3:in",
            "model.layers.3:in.attention_mask") or without the path ("in", "in[1]", "in.position_embeddings.0").
            After the first step also what was in the cache before: "past.3.key", "past.3.value".
        call: which call of a module that is called several times.
        step: the number of the step that the sink is told.

    Returns:
        "model.layers.3:out", ...; and what is in the cache then: "present.3.key", ...

    Raises:
        InputError: there is no such module, or something that enters it is missing or of another type.
        EvaluationError: torch cannot compute it.
    """
    from trtdx.engines.torch.engine import TorchEngine

    if not isinstance(engine, TorchEngine):
        with TorchEngine(engine) as opened:
            return replay_torch_module(opened, scope, inputs, call=call, step=step)
    ready = prepare_call(engine, scope, inputs, call=call, step=step)
    arguments, filled_cache = ready.create_arguments()
    path, module, cache, past = ready.path, ready.module, ready.cache, ready.past
    with engine.watch_computation(step, {path: call}):
        result = module(*arguments.args, **arguments.kwargs)
    outputs = named_outputs(path, result)
    if cache is not None and filled_cache is not None:
        outputs |= _present_contents(cache, filled_cache, past)
    return {name: array_from_tensor(tensor) for name, tensor in outputs.items()}


class PreparedCall(NamedTuple):
    """A module and what it is called with, found once for many calls."""

    path: str
    module: Any
    template: CallArguments  # of a call, to be filled
    tensors: Mapping[str, Any]  # "in", "in.attention_mask", ...
    cache: DecoderCache | None
    past: Mapping[str, Any]

    def create_arguments(self) -> tuple[CallArguments, Any]:
        """Return the arguments of one call, and the cache among them, new each time: a call writes to it."""
        return _fill_arguments(self.module, self.template, self.tensors, self.cache, self.past)


def prepare_call(
    engine: TorchEngine, scope: str, inputs: Mapping[str, Any], *, call: int = 0, step: int = 0
) -> PreparedCall:
    """Return a module ready to be called; the arguments and errors are those of `replay_torch_module`."""
    path = _module_path(engine.model, scope)
    device = model_device(engine.model)
    past = {name: tensor_from_array(inputs[name], device) for name in inputs if _PAST_NAME.fullmatch(name)}
    arrays = {_input_name(name, path): _array_from_value(inputs[name]) for name in inputs if name not in past}
    shapes = _call_template(engine, path, call, arrays)
    tensors = {name: tensor_from_array(array, device) for name, array in _check_inputs(shapes, arrays).items()}
    cache = engine.form.cache
    _check_past(cache, shapes, past, tensors, step)
    return PreparedCall(path, engine.model.get_submodule(path), shapes, tensors, cache, past)


def _module_path(model: Any, scope: str) -> str:
    all_places = module_places(model)
    paths = list(dict.fromkeys(place.path for place in all_places))
    return find_module_path(scope, paths, all_places, "module") if scope else ""


def _input_name(name: str, path: str) -> str:
    """Return a name without the path: "in.mask" of "model.layers.3:in.mask"."""
    port = _INPUT_PORT.fullmatch(name)
    prefix = port[1] if port else None
    if port is None or (prefix is not None and prefix != path and not (prefix and path_matches(prefix, path, {}))):
        raise InputError(f"nothing that enters {path or 'the model'} is called {name!r}", fix="name inputs as :in, ...")
    return "in" if port[2] == "in[0]" else port[2]


def _array_from_value(value: Any) -> Any:
    return array_from_tensor(value) if hasattr(value, "data_ptr") else value


def _call_template(engine: TorchEngine, path: str, call: int, inputs: Mapping[str, Any]) -> CallArguments:
    """Return how a module is called: from a run on a token, or on padded ones where that has what is given."""
    form = engine.form
    if not isinstance(form, DecoderForm):
        return _arguments_from_names(inputs)
    best: CallArguments | None = None
    for padded in (False, True):  # attention that needs no mask gets none, but gets one with padding
        observed = _observe_call(engine, form, path, call, padded=padded)
        if observed is None:
            return _arguments_from_names(inputs)
        if observed.tensors_by_name().keys() == inputs.keys():
            return observed
        best = best or observed
    assert best is not None
    return best


def torch_module_inputs(engine: TorchEngine, scope: str, call: int = 0) -> dict[str, ModelInput]:
    """Return what a module has to be given to be replayed; what not every call has, such as a mask, is optional."""
    path, form = _module_path(engine.model, scope), engine.form
    plain = _observe_call(engine, form, path, call, padded=False) if isinstance(form, DecoderForm) else None
    padded = _observe_call(engine, form, path, call, padded=True) if isinstance(form, DecoderForm) else None
    if plain is None or padded is None:
        return _declared_inputs(engine.model.get_submodule(path))
    once, twice = plain.tensors_by_name(), padded.tensors_by_name()
    inputs = {name: _input_from_tensors(name, once.get(name), twice.get(name)) for name in {**once, **twice}}
    past = form.cache.inputs if form.cache else {}
    past_names = {f"past.{layer}.{part}" for layer in plain.layers for part in KEY_AND_VALUE}
    return inputs | {name: declared._replace(optional=True) for name, declared in past.items() if name in past_names}


def _input_from_tensors(name: str, once: Any, twice: Any) -> ModelInput:
    """Return what a tensor is like: sizes that differ between a token and two rows of two may vary."""
    either = twice if once is None else once
    if once is None or twice is None or once.ndim != twice.ndim:
        return ModelInput(name, find_dtype(either.dtype).name, ("any",) * either.ndim, optional=True)
    sizes = zip(once.shape, twice.shape, strict=True)
    shape = tuple(int(one) if one == two else "any" for one, two in sizes)
    return ModelInput(name, find_dtype(either.dtype).name, shape)


def _declared_inputs(module: Any) -> dict[str, ModelInput]:
    """Return what a module's forward declares: what it must have by number, the rest by name."""
    inputs = {}
    for number, (argument, parameter) in enumerate(forward_parameters(module).items()):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        must = parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY
        name = Place("", "in", number if must else 0, "" if must else argument).name[1:]
        inputs[name] = ModelInput(name, "", None, parameter.default is not parameter.empty)
    return inputs


def _observe_call(
    engine: TorchEngine, form: DecoderForm, path: str, call: int, *, padded: bool
) -> CallArguments | None:
    """Return the arguments of one call of a module in a run on a token; None if it is never called."""
    observed: list[CallArguments] = []
    written: list[set[int]] = []

    def before(_: Any, args: Any, kwargs: Any) -> None:
        observed.append(CallArguments(args, dict(kwargs)))
        written.append(_written_cache_layers(observed[-1], form.cache))

    def after(_: Any, __: Any, ___: Any) -> None:
        more = _written_cache_layers(observed[-1], form.cache) - written[-1]
        observed[-1] = observed[-1]._replace(layers=sorted(more))

    module = engine.model.get_submodule(path)
    hooks = (module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after))
    try:
        form.run_probe(padded=padded)
    finally:
        for hook in hooks:
            hook.remove()
    if observed and call >= len(observed):
        raise InputError(f"{path} is called {format_count(len(observed), 'time')}; there is no call {call}")
    return observed[call] if observed else None


def _written_cache_layers(arguments: CallArguments, cache: DecoderCache | None) -> set[int]:
    """Return the layers of the cache among some arguments that something was written to."""
    caches = [value for value in (*arguments.args, *arguments.kwargs.values()) if _is_cache(value)]
    return cache.written_layers(caches[0]) if caches and cache else set()


def _arguments_from_names(inputs: Mapping[str, Any]) -> CallArguments:
    """Return arguments as the names alone tell them: numbers are positions, and mask.0 and mask.1 are a tuple."""
    numbered, named = [], {}  # type: tuple[list[Any], dict[str, Any]]
    for number in range(len(inputs)):
        name = f"in[{number}]" if number else "in"
        if name in inputs:
            numbered.append(tensor_from_array(inputs[name]))
    for name in inputs:
        _, _, argument = name.partition("in.")
        item = _TUPLE_ITEM.fullmatch(argument)
        if item is not None:
            named.setdefault(item[1], []).append(tensor_from_array(inputs[name]))
        elif argument:
            named[argument] = tensor_from_array(inputs[name])
    return CallArguments(
        numbered, {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}
    )


def _check_inputs(template: CallArguments, inputs: Mapping[str, Any]) -> dict[str, Array]:
    declared = {
        name: ModelInput(name, find_dtype(tensor.dtype).name, None)
        for name, tensor in template.tensors_by_name().items()
    }
    return check_feeds(declared, inputs)


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") and hasattr(value, "update")


def _check_past(
    cache: DecoderCache | None,
    template: CallArguments,
    past: Mapping[str, Any],
    tensors: Mapping[str, Any],
    step: int,
) -> None:
    """Raise if a module would silently compute without what was in its cache."""
    has = cache is not None and any(map(_is_cache, (*template.args, *template.kwargs.values())))
    positions = tensors.get("in.position_ids")
    later = step > 0 or (positions is not None and positions.numel() and int(positions.min()) > 0)
    if has and later and not past:
        raise InputError(
            "these are the inputs of a later step, which needs what was in the cache",
            fix="give past.<layer>.key and past.<layer>.value too, as they were before that step",
        )


def _fill_arguments(
    module: Any,
    template: CallArguments,
    tensors: Mapping[str, Any],
    cache: DecoderCache | None,
    past: Mapping[str, Any],
) -> tuple[CallArguments, Any]:
    """Return the arguments with the given tensors in their places, and the cache among them."""
    names = iter(template.tensors_by_name())
    filled_cache = cache.create_filled(past) if cache is not None else None

    def put(_: Any) -> Any:
        return tensors[next(names)]

    def fill_value(value: Any) -> Any:
        return filled_cache if _is_cache(value) else replace_tensors(value, MOST_DEPTH, put)

    args, kwargs = (
        [fill_value(value) for value in template.args],
        {name: fill_value(value) for name, value in template.kwargs.items()},
    )
    if not any(value is filled_cache for value in (*args, *kwargs.values())):
        if past and "past_key_values" not in forward_parameters(module):
            raise InputError(f"{type(module).__name__} takes no cache", fix="leave past.* out")
        if not past:
            return CallArguments(args, kwargs), None
        kwargs["past_key_values"] = filled_cache
    return CallArguments(args, kwargs), filled_cache


def named_outputs(path: str, result: Any) -> dict[str, Any]:
    values = result if isinstance(result, (tuple, list)) else (result,)
    return {Place(path, "out", number, name).name: tensor for number, name, tensor in iterate_tensors(values, {})}


def _present_contents(cache: DecoderCache, filled_cache: Any, past: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is in the cache now, or raise if a layer had to do without its past."""
    contents = cache.read_contents(filled_cache)
    lacking = [name for name in contents if past and name.replace("present", "past") not in past]
    if lacking:
        raise InputError(f"the cache's contents are missing: {lacking[0].replace('present', 'past')}")
    return contents
