"""Any `torch.nn.Module`, tapped without an edit: hooks in plain runs, an operator in the graph when compiled.

TensorRT-LLM's PyTorch backend builds such modules too. torch is imported by whoever hands a module in.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trtdx.capture.taps import Place
from trtdx.engines.engine import Seen, Tapped
from trtdx.optional import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.capture.taps import Selector
    from trtdx.engines.engine import Sink

MOST_DEPTH = 4  # how deep tuples and dicts of outputs are looked into


def places(model: Any) -> list[Place]:
    """Return the inputs and outputs of every module; types and numbers show themselves in a run."""
    found = []
    for path, module in _plain(model).named_modules():
        op = type(module).__name__
        found += [Place(path, "in", op=op), Place(path, "out", op=op)]
    return found


def _plain(model: Any) -> Any:
    """Return the module inside what `torch.compile` returned."""
    return getattr(model, "_orig_mod", model)


def _is_compiled(model: Any) -> bool:
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


@contextmanager
def tapped(model: Any, selector: Selector, sink: Sink) -> Iterator[Tapped]:
    """Hand every selected tensor of every run inside the block to `sink`; afterwards nothing is left behind."""
    known = places(model)
    if not selector.candidates(known):
        raise selector.nothing_among(known)
    watch = _Watch(model, selector, known, sink)
    compiled = _is_compiled(model)
    hooks = watch.register(compiled)
    try:
        yield Tapped(compiled, len(hooks), COMPILED_NOTE if compiled else "")
    finally:
        for hook in hooks:
            hook.remove()
        if compiled:
            _forget_graphs()


COMPILED_NOTE = (
    "the compiled graphs were compiled anew with the taps as operators in them: each tapped tensor is written "
    "to memory, so fusions across a tap are lost"
)


def _forget_graphs() -> None:
    need("torch", extra="torch", to="watch a compiled module")._dynamo.reset()


class _Watch:
    """The hooks on one model."""

    def __init__(self, model: Any, selector: Selector, known: list[Place], sink: Sink) -> None:
        self._model, self._sink = _plain(model), sink
        self._chooses = selector.chooser(known)
        self._candidates = {(place.path, place.port) for place in selector.candidates(known)}
        self._decided: dict[Place, bool] = {}
        self._step = -1
        self._calls: dict[tuple[str, str], int] = {}

    def register(self, compiled: bool) -> list[Any]:
        """Return the hooks, now in force."""
        if compiled:
            return self._register_operators()
        hooks = [self._model.register_forward_pre_hook(self._next_step, prepend=True)]
        for path, module in self._model.named_modules():
            op = type(module).__name__
            if (path, "in") in self._candidates:
                hooks.append(module.register_forward_pre_hook(self._before(path, op), with_kwargs=True))
            if (path, "out") in self._candidates:
                hooks.append(module.register_forward_hook(self._after(path, op)))
        return hooks

    def _next_step(self, *_: Any) -> None:
        self._step += 1
        self._calls.clear()

    def _before(self, path: str, op: str) -> Callable[..., None]:
        def hook(_: Any, args: Any, kwargs: Any) -> None:
            self._pass(path, "in", op, args, kwargs)

        return hook

    def _after(self, path: str, op: str) -> Callable[..., None]:
        def hook(_: Any, __: Any, output: Any) -> None:
            self._pass(path, "out", op, (output,) if not isinstance(output, (tuple, list)) else output, {})

        return hook

    def _pass(self, path: str, port: str, op: str, args: Any, kwargs: Any) -> None:
        call = self._calls[path, port] = self._calls.get((path, port), -1) + 1
        for number, argument, tensor in tensors_in(args, kwargs):
            place = Place(path, port, number, argument, op, dtype=str(tensor.dtype).removeprefix("torch."))
            if self._chosen(place):
                self._sink(Seen(place, tensor, self._step, call))

    def _chosen(self, place: Place) -> bool:
        known = self._decided.get(place)
        if known is None:
            known = self._decided[place] = self._chooses(place)
        return known

    def _register_operators(self) -> list[Any]:
        """Put the tap operator into the graphs: hooks that exist at compile time are traced into them."""
        operator, numbers = _tap_operator(), len(_PLACES)
        hooks = []
        for path, module in self._model.named_modules():
            if (path, "out") not in self._candidates:
                continue
            _PLACES.append((self, path, type(module).__name__))
            hooks.append(module.register_forward_hook(_operator_hook(operator, numbers)))
            numbers += 1
        _forget_graphs()
        return hooks

    def passed_operator(self, path: str, op: str, number: int, tensor: Any) -> None:
        """Take a tensor from inside a compiled graph; a step begins when a place is passed again."""
        place = Place(path, "out", number, "", op, dtype=str(tensor.dtype).removeprefix("torch."))
        if not self._chosen(place):
            return
        if self._step < 0 or (path, str(number)) in self._calls:
            self._next_step()
        self._calls[path, str(number)] = 0
        self._sink(Seen(place, tensor, self._step, 0))


# Operators take numbers, not objects: the place of each tap, by its number in the graph.
_PLACES: list[tuple[_Watch, str, str]] = []
_OPERATOR: list[Any] = []


def _operator_hook(operator: Any, place: int) -> Callable[..., Any]:
    def hook(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return tuple(
                operator(each, place, n) if _is_tensor(each) else each for n, each in enumerate(output)
            )
        return operator(output, place, 0) if _is_tensor(output) else None

    return hook


def _tap_operator() -> Any:
    """Return the operator `trtdx::tap`, registered once: a copy of its input that a compiler may not drop."""
    if not _OPERATOR:
        torch = need("torch", extra="torch", to="watch a compiled module")

        def tap(tensor, place, number):  # type: ignore[no-untyped-def]
            watch, path, op = _PLACES[place]
            watch.passed_operator(path, op, number, tensor)
            return tensor.clone()

        tap.__annotations__ = {"tensor": torch.Tensor, "place": int, "number": int, "return": torch.Tensor}
        operator = torch.library.custom_op("trtdx::tap", tap, mutates_args=())
        operator.register_fake(lambda tensor, place, number: torch.empty_like(tensor))
        operator.register_autograd(lambda context, gradient: (gradient, None, None))
        _OPERATOR.append(operator)
    return _OPERATOR[0]


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "data_ptr")


def tensors_in(args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """Yield (number, name, tensor) of positional and named values, looking into tuples, lists and dicts."""
    number = 0
    for value in args:
        if isinstance(value, Mapping):  # also the ModelOutput of transformers
            yield from ((0, name, tensor) for name, tensor in _named(value))
            continue
        for tensor in _flat(value, MOST_DEPTH):
            yield number, "", tensor
            number += 1
    yield from ((0, name, tensor) for name, tensor in _named(kwargs))


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        found = list(_flat(value, MOST_DEPTH))
        for number, tensor in enumerate(found):
            yield (str(name) if len(found) == 1 else f"{name}.{number}"), tensor


def _flat(value: Any, depth: int) -> Iterator[Any]:
    if _is_tensor(value):
        yield value
    elif depth and isinstance(value, (tuple, list)):
        for each in value:
            yield from _flat(each, depth - 1)
    elif depth and isinstance(value, Mapping):
        for each in value.values():
            yield from _flat(each, depth - 1)
