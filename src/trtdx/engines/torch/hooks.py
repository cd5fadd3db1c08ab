"""Any `torch.nn.Module`, tapped without an edit: hooks in plain runs, an operator in the graph when compiled.

TensorRT-LLM's PyTorch backend builds such modules too. torch is imported by whoever hands a module in.

A sink that raises stops the run: its exception leaves the model's call unchanged, compiled or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from trtdx.engines.engine import Sink, TapEffect, TappedTensor
from trtdx.optional import import_optional
from trtdx.tensors.taps import Place, Selector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


MOST_DEPTH = 4  # how deep tuples and dicts of outputs are looked into
UNDECIDED_PLACE = Place("")  # of which nobody has decided yet whether it is selected


def module_places(model: Any) -> list[Place]:
    """Return the inputs and outputs of every module; types and numbers show themselves in a run."""
    listed = []
    for path, module in uncompiled_module(model).named_modules():
        if has_forward(module):
            op = type(module).__name__
            listed += [Place(path, "in", op=op), Place(path, "out", op=op)]
    return listed


def has_forward(module: Any) -> bool:
    """Whether a module computes something; a ModuleList only holds others."""
    return getattr(type(module).forward, "__name__", "") != "_forward_unimplemented"


def uncompiled_module(model: Any) -> Any:
    """Return the module inside what `torch.compile` returned."""
    return getattr(model, "_orig_mod", model)


def is_compiled(model: Any) -> bool:
    """Whether a module or one inside it runs as a compiled graph."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


@contextmanager
def tapped(model: Any, selector: Selector, sink: Sink, *, start: int = 0) -> Iterator[TapEffect]:
    """Hand every selected tensor of every run inside the block to `sink`; afterwards nothing is left behind.

    Args:
        model: any module; one that `torch.compile` returned is compiled anew.
        selector: what to look at.
        sink: gets each tensor when it passes. What it raises leaves the model's call as it is.
        start: the number of the first run's step.
    """
    watch = ModuleWatch(model, selector, sink, start=start)
    try:
        yield watch.attach()
    finally:
        watch.detach()


COMPILED_NOTE = (
    "the compiled graphs were compiled anew with the taps as operators in them: each tapped tensor is written "
    "to memory, so fusions across a tap are lost"
)


def _reset_compiled_graphs() -> None:
    import_optional("torch", extra="torch", purpose="watch a compiled module")._dynamo.reset()


class ModuleWatch:
    """The hooks on one model: in force from `attach` to `detach`.

    Attributes:
        sink: what gets the tensors; while it is None they pass unseen.
        failure: what the sink raised last, so that it can be told from what the model raised.
    """

    def __init__(self, model: Any, selector: Selector, sink: Sink | None, *, start: int | None = 0) -> None:
        """Choose what to watch.

        Args:
            model: any module.
            selector: what to look at; one that cannot hit anything is an error.
            sink: what gets the tensors.
            start: the first step, if steps are to be counted here; None where somebody calls `begin_step` before each.
        """
        all_places = module_places(model)
        candidates = selector.candidates(all_places)
        if not candidates:
            raise selector.nothing_selected_error(all_places)
        selector.check_terms(all_places)
        self.sink, self.failure = sink, None  # type: tuple[Sink | None, BaseException | None]
        self.compiled = is_compiled(model)
        self._model = uncompiled_module(model)
        self._tensor_class = import_optional("torch", extra="torch", purpose="watch a module").Tensor
        self._is_selected = selector.predicate_among(all_places)
        self._candidates = {(place.path, place.port) for place in candidates}
        self._decisions: dict[Place, bool] = {}
        self._counts_steps = start is not None
        self._step = (start or 0) - 1
        self._calls: dict[Any, int] = {}
        self._hooks: list[Any] = []
        self._tap_numbers: list[int] = []  # of the taps in compiled graphs

    def attach(self) -> TapEffect:
        """Put the hooks in place; returns what that changes."""
        if not self._hooks:
            self._hooks = self._operator_hooks() if self.compiled else self._plain_hooks()
        return TapEffect(self.compiled, len(self._hooks), COMPILED_NOTE if self.compiled else "")

    def detach(self) -> None:
        """Take the hooks away, and with them the graphs they are compiled into."""
        for hook in self._hooks:
            hook.remove()
        for number in self._tap_numbers:
            del _TAPS[number]
        if self._hooks and self.compiled:
            _reset_compiled_graphs()
        self._hooks, self._tap_numbers = [], []

    def begin_step(self, step: int, calls: Mapping[str, int] | None = None) -> None:
        """Say that a run of this number begins, and of which modules it is not the first call."""
        self._step, self.failure = step, None
        self._calls.clear()
        for path, number in (calls or {}).items():
            self._calls[path, "in"] = self._calls[path, "out"] = number - 1

    def _begin_next_step(self, *_: Any) -> None:
        self.begin_step(self._step + 1)

    def _plain_hooks(self) -> list[Any]:
        hooks = []
        if self._counts_steps:
            hooks.append(self._model.register_forward_pre_hook(self._begin_next_step, prepend=True))
        for path, module in self._model.named_modules():
            op = type(module).__name__
            if (path, "in") in self._candidates:
                hooks.append(module.register_forward_pre_hook(self._forward_pre_hook(path, op), with_kwargs=True))
            if (path, "out") in self._candidates:
                hooks.append(module.register_forward_hook(self._forward_hook(path, op), with_kwargs=True))
        return hooks

    def _forward_pre_hook(self, path: str, op: str) -> Callable[..., None]:
        passed = self._port_observer(path, "in", op)

        def hook(_: Any, args: Any, kwargs: Any) -> None:
            passed(args[0] if len(args) == 1 and not kwargs else None, args, kwargs, None)

        return hook

    def _forward_hook(self, path: str, op: str) -> Callable[..., None]:
        passed = self._port_observer(path, "out", op)

        def hook(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            passed(
                output,
                output if isinstance(output, (tuple, list)) else (output,),
                NO_KEYWORDS,
                (args, kwargs),
            )

        return hook

    def _port_observer(self, path: str, port: str, op: str) -> Callable[[Any, Any, Mapping[str, Any], Any], None]:
        """Return what looks at the values of one port; a lone tensor, the usual case, goes the short way."""
        key, tensor_class, calls = (path, port), self._tensor_class, self._calls
        lone: dict[Any, Place | None] = {}  # by the tensor's type; None where it is not selected

        def look(value: Any, args: Any, kwargs: Mapping[str, Any], module_arguments: Any) -> None:
            call = calls[key] = calls.get(key, -1) + 1
            if self.sink is None:
                return
            if not isinstance(value, tensor_class):
                for number, argument, tensor in iterate_tensors(args, kwargs):
                    self._emit_if_chosen(
                        Place(path, port, number, argument, op, dtype=_dtype_name(tensor)),
                        tensor,
                        call,
                        module_arguments,
                    )
                return
            place = lone.get(value.dtype, UNDECIDED_PLACE)
            if place is UNDECIDED_PLACE:
                place = Place(path, port, 0, "", op, dtype=_dtype_name(value))
                lone[value.dtype] = place = place if self._is_chosen(place) else None
            if place is None:
                return
            try:  # as `_emit_tensor`, without its frame: this runs for every module of every step
                self.sink(TappedTensor(place, value, self._step, call, module_arguments))
            except BaseException as error:
                self.failure = error
                raise

        return look

    def _emit_if_chosen(self, place: Place, tensor: Any, call: int, module_arguments: Any = None) -> None:
        if self._is_chosen(place):
            self._emit_tensor(TappedTensor(place, tensor, self._step, call, module_arguments))

    def _emit_tensor(self, tapped_tensor: TappedTensor) -> None:
        try:
            self.sink(tapped_tensor)  # type: ignore[misc]
        except BaseException as error:
            self.failure = error
            raise

    def _is_chosen(self, place: Place) -> bool:
        decision = self._decisions.get(place)
        if decision is None:
            decision = self._decisions[place] = self._is_selected(place)
        return decision

    def _operator_hooks(self) -> list[Any]:
        """Put the tap operator into the graphs: hooks that exist at compile time are traced into them."""
        operator, hooks = _tap_operator(), []
        for path, module in self._model.named_modules():
            for port in ("in", "out"):
                if (path, port) in self._candidates:
                    number = next(_TAP_NUMBERS)
                    _TAPS[number] = (self, path, port, type(module).__name__)
                    self._tap_numbers.append(number)
                    hooks.append(_operator_hook(module, port, operator, number))
        _reset_compiled_graphs()
        return hooks

    def observe_operator(self, path: str, port: str, op: str, number: int, argument: str, tensor: Any) -> None:
        """Take a tensor from inside a compiled graph; where steps are counted here, one begins on the second pass."""
        place = Place(path, port, number, argument, op, dtype=_dtype_name(tensor))
        if self.sink is None or not self._is_chosen(place):
            return
        key = (path, port, number, argument)
        if self._counts_steps and (self._step < 0 or key in self._calls):
            self._begin_next_step()
        call = self._calls[key] = self._calls.get(key, -1) + 1
        self._emit_tensor(TappedTensor(place, tensor, self._step, call))


NO_KEYWORDS: Mapping[str, Any] = {}
# Operators take numbers, not objects: the place of each tap, by its number in the graph.
_TAPS: dict[int, tuple[ModuleWatch, str, str, str]] = {}
_TAP_NUMBERS = count()
_OPERATOR: list[Any] = []


def _operator_hook(module: Any, port: str, operator: Any, tap: int) -> Any:
    """Register a hook that puts each tensor of a port through the operator."""

    def through(args: Any, kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        names = iter([(number, argument) for number, argument, _ in iterate_tensors(args, kwargs)])

        def put(tensor: Any) -> Any:
            number, argument = next(names)
            return operator(tensor, tap, number, argument)

        # As deep as `iterate_tensors` looks, so that names and tensors go in step.
        positional = [replace_tensors(value, MOST_DEPTH + isinstance(value, Mapping), put) for value in args]
        return positional, {name: replace_tensors(value, MOST_DEPTH, put) for name, value in kwargs.items()}

    def before(_: Any, args: Any, kwargs: Any) -> Any:
        positional, named = through(args, kwargs)
        return tuple(positional), named

    def after(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, (tuple, list)):
            return _rebuild_sequence(output, through(output, NO_KEYWORDS)[0])
        return through((output,), NO_KEYWORDS)[0][0]

    if port == "in":
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)


def replace_tensors(value: Any, depth: int, replace: Callable[[Any], Any]) -> Any:
    """Return a value with every tensor that `iterate_tensors` finds in it put through a function, in the same order."""
    if _is_tensor(value):
        return replace(value)
    if depth and isinstance(value, (tuple, list)):
        return _rebuild_sequence(value, [replace_tensors(element, depth - 1, replace) for element in value])
    if depth and isinstance(value, Mapping):
        named = {name: replace_tensors(element, depth - 1, replace) for name, element in value.items()}
        return named if type(value) is dict else type(value)(**named)
    return value


def _rebuild_sequence(value: Any, elements: list[Any]) -> Any:
    """Return a tuple or list of the same kind with other elements."""
    return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)


def _tap_operator() -> Any:
    """Return the operator `trtdx::tap`, registered once: a copy of its input that a compiler may not drop."""
    if not _OPERATOR:
        torch = import_optional("torch", extra="torch", purpose="watch a compiled module")

        def tap(tensor, place, number, argument):  # type: ignore[no-untyped-def]
            watch, path, port, op = _TAPS[place]
            watch.observe_operator(path, port, op, number, argument, tensor)
            return tensor.clone()

        tap.__annotations__ = {
            "tensor": torch.Tensor, "place": int, "number": int, "argument": str, "return": torch.Tensor,
        }  # fmt: skip
        operator = torch.library.custom_op("trtdx::tap", tap, mutates_args=())
        operator.register_fake(lambda tensor, place, number, argument: torch.empty_like(tensor))
        operator.register_autograd(lambda context, gradient: (gradient, None, None, None))
        # Else a tap on what nobody reads, such as positions handed to a layer that ignores them, would be dropped.
        torch.fx.node.has_side_effect(torch.ops.trtdx.tap.default)
        _OPERATOR.append(operator)
    return _OPERATOR[0]


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "data_ptr")


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def iterate_tensors(args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """Yield (number, name, tensor) of positional and named values, looking into tuples, lists and dicts."""
    number = 0
    for value in args:
        if isinstance(value, Mapping):  # also the ModelOutput of transformers
            yield from ((0, name, tensor) for name, tensor in _named_tensors(value))
            continue
        for tensor in _flatten_tensors(value, MOST_DEPTH):
            yield number, "", tensor
            number += 1
    yield from ((0, name, tensor) for name, tensor in _named_tensors(kwargs))


def _named_tensors(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        tensors = list(_flatten_tensors(value, MOST_DEPTH))
        for number, tensor in enumerate(tensors):
            yield (str(name) if len(tensors) == 1 else f"{name}.{number}"), tensor


def _flatten_tensors(value: Any, depth: int) -> Iterator[Any]:
    if _is_tensor(value):
        yield value
    elif depth and isinstance(value, (tuple, list, Mapping)):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from _flatten_tensors(element, depth - 1)
