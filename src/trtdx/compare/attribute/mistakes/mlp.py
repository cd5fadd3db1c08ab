"""The part between attentions: its activation, and which half is the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import override_attributes, transform_output
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Tensor

GATE_PAIRS = (
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("gate", "up"),
    ("wi_0", "wi_1"),
    ("linear", "linear_v"),
)
INTERLEAVED = "interleaved, where one should follow the other"
NOT_INTERLEAVED = "one after the other, where they should be interleaved"
FUSED_NAMES = ("gate_up_proj", "fc1", "wi", "linear_1", "dense_h_to_4h")
ACTIVATION_PARAMETERS = {
    "alpha": (1.0, 1.702),
    "limit": (float("inf"), 7.0),
    "swiglu_limit": (float("inf"), 7.0),
}
ACTIVATION_ATTRIBUTES = ("act_fn", "act", "activation", "activation_fn", "activation_func")


def known_activations() -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the activations that are commonly mistaken for one another."""
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


def identify_activation(function: Any) -> str:
    """Return the name of an activation, found by computing it; "" if it is none of those known."""
    x = torch.linspace(-4, 4, 65, dtype=torch.float64)
    try:
        with torch.no_grad():
            y = function(x)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return ""
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return ""
    return next(
        (name for name, activation in known_activations().items() if torch.allclose(activation(x), y, atol=1e-9)),
        "",
    )


def mlp_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield another activation, and gate and up exchanged."""
    yield from _activation_mistakes(bench)
    yield from _inner_activation_mistakes(bench)
    yield from _activation_parameter_mistakes(bench)
    yield from _gate_exchange_mistakes(bench)


def _activation_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    if next(bench.module.parameters(), None) is not None or not bench.inputs:
        return
    own_name = identify_activation(bench.module)
    x = next(iter(bench.inputs.values()))
    if not own_name or x.shape != bench.truth[bench.main_target].shape:
        return
    for name, function in known_activations().items():
        if name != own_name:
            got = bench.with_main(function(x))
            yield Mistake("DX980", got, {"found": name, "expected": own_name}, f"{name} instead of {own_name}")


def _inner_activation_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    places = [
        (owner, attribute)
        for owner in bench.module.modules()
        for attribute in ACTIVATION_ATTRIBUTES
        if callable(getattr(owner, attribute, None))
    ]
    if len(places) > 4:
        return
    for owner, attribute in places:
        activation = getattr(owner, attribute)
        own_name = identify_activation(activation)
        if not own_name:
            continue
        for name, function in known_activations().items():
            if name == own_name:
                continue
            is_module = isinstance(activation, torch.nn.Module)
            with (
                override_attributes(activation, forward=function)
                if is_module
                else override_attributes(owner, **{attribute: function})
            ):
                got = bench.run()
            yield Mistake("DX980", got, {"found": name, "expected": own_name}, f"{name} instead of {own_name}")


def _activation_parameter_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield another slope or limit of an activation that has such (gpt-oss)."""
    for owner in bench.module.modules():
        for name, others in ACTIVATION_PARAMETERS.items():
            own_value = getattr(owner, name, None)
            if not isinstance(own_value, (int, float)) or isinstance(own_value, bool):
                continue
            for other in others:
                if other != own_value:
                    with override_attributes(owner, **{name: other}):
                        got = bench.run()
                    values = {
                        "found": f"its activation with {name} {other:g}",
                        "expected": f"{name} {own_value:g}",
                    }
                    yield Mistake("DX980", got, values, f"{name} {other:g} instead of {own_value:g}")


def _output_of(module: Any) -> Callable[[Tensor, Tensor], Tensor]:
    own_forward: Callable[[Tensor], Tensor] = module.forward
    return lambda x, _: own_forward(x)


def _gate_exchange_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    for owner in bench.module.modules():
        names = dict(owner.named_children())
        for gate, up in GATE_PAIRS:
            if gate not in names or up not in names or not _have_same_shape(names[gate], names[up]):
                continue
            one, other = names[gate], names[up]
            gate_weights, up_weights = _parameters_of(one), _parameters_of(other)
            with override_attributes(one, **up_weights), override_attributes(other, **gate_weights):
                yield Mistake("DX981", bench.run(), {"how": "exchanged"}, f"{gate} and {up} exchanged")
            with transform_output(one, _output_of(other)), transform_output(other, _output_of(one)):
                how = f"what {gate} and {up} give exchanged"
                yield Mistake("DX981", bench.run(), {"how": "exchanged"}, how, rank=1)
        for name in FUSED_NAMES:
            fused = getattr(owner, name, None)
            weight = fused if isinstance(fused, torch.nn.Parameter) else getattr(fused, "weight", None)
            if not isinstance(weight, torch.Tensor):
                continue
            yield from _fused_half_mistakes(bench, owner, name, weight)


def _have_same_shape(one: Any, other: Any) -> bool:
    weight, other_weight = getattr(one, "weight", None), getattr(other, "weight", None)
    return weight is not None and other_weight is not None and bool(weight.shape == other_weight.shape)


def _parameters_of(module: Any) -> dict[str, Any]:
    return dict(module._parameters)


def _fused_half_mistakes(bench: ModuleBench, owner: Any, name: str, weight: Tensor) -> Iterator[Mistake]:
    """Yield the halves of a weight that holds gate and up exchanged, or interleaved."""
    axis = weight.ndim - 2
    size = weight.shape[axis]
    if size % 2:
        return
    halves = torch.cat((torch.arange(size // 2, size), torch.arange(size // 2)))
    woven = torch.stack((torch.arange(size // 2), torch.arange(size // 2, size)), 1).reshape(-1)
    for order, description in (
        (halves, "exchanged"),
        (woven, INTERLEAVED),
        (torch.argsort(woven), NOT_INTERLEAVED),
    ):
        changed = weight.index_select(axis, order)
        target = owner if isinstance(getattr(owner, name), torch.nn.Parameter) else getattr(owner, name)
        with override_attributes(target, **{name if target is owner else "weight": changed}):
            yield Mistake("DX981", bench.run(), {"how": description}, f"the halves of {name} {description}")
