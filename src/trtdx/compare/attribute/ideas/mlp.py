"""The part between attentions: its activation, and which half is the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.module_copies import giving, put
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.experiment import Bench, Tensor

GATES = (("gate_proj", "up_proj"), ("w1", "w3"), ("gate", "up"), ("wi_0", "wi_1"), ("linear", "linear_v"))
INTERLEAVED = "interleaved, where one should follow the other"
APART = "one after the other, where they should be interleaved"
FUSED = ("gate_up_proj", "fc1", "wi", "linear_1", "dense_h_to_4h")
NUMBERS = {"alpha": (1.0, 1.702), "limit": (float("inf"), 7.0), "swiglu_limit": (float("inf"), 7.0)}
ATTRIBUTES = ("act_fn", "act", "activation", "activation_fn", "activation_func")


def activations() -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the activations that are taken for one another."""
    functional = torch.nn.functional
    return {
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "silu": functional.silu,
        "relu": torch.relu,
        "relu2": lambda x: torch.relu(x) ** 2,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "mish": functional.mish,
        "leaky_relu": functional.leaky_relu,
        "identity": lambda x: x,
    }


def activation_named(function: Any) -> str:
    """Return the name of an activation, found by computing it; "" if it is none of those known."""
    x = torch.linspace(-4, 4, 65, dtype=torch.float64)
    try:
        with torch.no_grad():
            y = function(x)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return ""
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return ""
    return next((name for name, each in activations().items() if torch.allclose(each(x), y, atol=1e-9)), "")


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield another activation, and gate and up exchanged."""
    yield from _of_activation(bench)
    yield from _activation_inside(bench)
    yield from _numbers_of_activation(bench)
    yield from _exchanged(bench)


def _of_activation(bench: Bench) -> Iterator[Idea]:
    if next(bench.module.parameters(), None) is not None or not bench.inputs:
        return
    own = activation_named(bench.module)
    x = next(iter(bench.inputs.values()))
    if not own or x.shape != bench.truth[bench.main].shape:
        return
    for name, function in activations().items():
        if name != own:
            got = bench.changed({bench.main: function(x)})
            yield Idea("DX980", got, {"found": name, "expected": own}, f"{name} instead of {own}")


def _activation_inside(bench: Bench) -> Iterator[Idea]:
    places = [
        (owner, attribute)
        for owner in bench.module.modules()
        for attribute in ATTRIBUTES
        if callable(getattr(owner, attribute, None))
    ]
    if len(places) > 4:
        return
    for owner, attribute in places:
        held = getattr(owner, attribute)
        own = activation_named(held)
        if not own:
            continue
        for name, function in activations().items():
            if name == own:
                continue
            whole = isinstance(held, torch.nn.Module)
            with put(held, forward=function) if whole else put(owner, **{attribute: function}):
                got = bench.run()
            yield Idea("DX980", got, {"found": name, "expected": own}, f"{name} instead of {own}")


def _numbers_of_activation(bench: Bench) -> Iterator[Idea]:
    """Yield another slope or limit of an activation that has such (gpt-oss)."""
    for owner in bench.module.modules():
        for name, others in NUMBERS.items():
            own = getattr(owner, name, None)
            if not isinstance(own, (int, float)) or isinstance(own, bool):
                continue
            for other in others:
                if other != own:
                    with put(owner, **{name: other}):
                        got = bench.run()
                    values = {"found": f"its activation with {name} {other:g}", "expected": f"{name} {own:g}"}
                    yield Idea("DX980", got, values, f"{name} {other:g} instead of {own:g}")


def _instead(module: Any) -> Callable[[Tensor, Tensor], Tensor]:
    own: Callable[[Tensor], Tensor] = module.forward
    return lambda x, _: own(x)


def _exchanged(bench: Bench) -> Iterator[Idea]:
    for owner in bench.module.modules():
        names = dict(owner.named_children())
        for gate, up in GATES:
            if gate not in names or up not in names or not _alike(names[gate], names[up]):
                continue
            one, other = names[gate], names[up]
            ours, theirs = _weights(one), _weights(other)
            with put(one, **theirs), put(other, **ours):
                yield Idea("DX981", bench.run(), {"how": "exchanged"}, f"{gate} and {up} exchanged")
            with giving(one, _instead(other)), giving(other, _instead(one)):
                how = f"what {gate} and {up} give exchanged"
                yield Idea("DX981", bench.run(), {"how": "exchanged"}, how, rank=1)
        for name in FUSED:
            held = getattr(owner, name, None)
            weight = held if isinstance(held, torch.nn.Parameter) else getattr(held, "weight", None)
            if not isinstance(weight, torch.Tensor):
                continue
            yield from _halves(bench, owner, name, weight)


def _alike(one: Any, other: Any) -> bool:
    mine, theirs = getattr(one, "weight", None), getattr(other, "weight", None)
    return mine is not None and theirs is not None and bool(mine.shape == theirs.shape)


def _weights(module: Any) -> dict[str, Any]:
    return dict(module._parameters)


def _halves(bench: Bench, owner: Any, name: str, weight: Tensor) -> Iterator[Idea]:
    """Yield the halves of a weight that holds gate and up exchanged, or interleaved."""
    axis = weight.ndim - 2
    size = weight.shape[axis]
    if size % 2:
        return
    halves = torch.cat((torch.arange(size // 2, size), torch.arange(size // 2)))
    woven = torch.stack((torch.arange(size // 2), torch.arange(size // 2, size)), 1).reshape(-1)
    for order, told in ((halves, "exchanged"), (woven, INTERLEAVED), (torch.argsort(woven), APART)):
        changed = weight.index_select(axis, order)
        target = owner if isinstance(getattr(owner, name), torch.nn.Parameter) else getattr(owner, name)
        with put(target, **{name if target is owner else "weight": changed}):
            yield Idea("DX981", bench.run(), {"how": told}, f"the halves of {name} {told}")
