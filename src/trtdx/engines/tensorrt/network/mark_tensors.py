"""Which tensors of a network are looked at, and marking them; runs in the compiling process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt.build.nouns import REASON_CHARS, MarkedTensor, UnmarkedTensor, Variant
from trtdx.engines.tensorrt.network.places import places_of_network
from trtdx.errors import InputError
from trtdx.tensors.taps import Place, parse_selector

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trtdx.engines.tensorrt.build.frames import BuildJob
    from trtdx.engines.tensorrt.network.registration import TensorRegistry

_NO_RUNNER = re.compile(r"debug output for (?P<name>.+?) has no runners that implement it")


def select_tensors(network: Any, job: BuildJob, registry: TensorRegistry) -> dict[str, str]:
    """Return the tensors asked for, by the name they were asked for with: registered ones, and selected ones."""
    named = {name: tensor.name for name, tensor in registry.tensors.items()}
    if not job.selector:
        return named
    network_places = places_of_network(network, job.path if job.kind == "onnx" else None)
    pairs = [(Place(name, op="Registered"), tensor) for name, tensor in named.items()]
    pairs += [(spot.place, spot.tensor) for spot in network_places.tensor_places]
    selected = set(parse_selector(job.selector).select_or_raise([place for place, _ in pairs]))
    return named | {place.name: tensor for place, tensor in pairs if place in selected}


class TensorMarks:
    """The tensors of one network that are marked, and those that cannot be."""

    def __init__(self, network: Any, variant: Variant, tensors_by_name: Mapping[str, str]) -> None:
        self.network, self.variant = network, variant
        self.names: dict[str, list[str]] = {}  # by tensor: the names it was asked for with
        for name, tensor in tensors_by_name.items():
            self.names.setdefault(tensor, []).append(name)
        self.unmarked: list[UnmarkedTensor] = []
        self.tensors: dict[str, Any] = {}
        self.model_outputs: set[str] = set()  # outputs that the model has anyway

    def mark_all(self) -> None:
        """Mark every tensor that is wanted; what cannot be is left out with its reason."""
        if self.variant == "none":
            return
        if self.variant == "debug-tensors" and not hasattr(self.network, "mark_debug"):
            raise InputError(
                "this TensorRT has no debug tensors (they came with 10.0)", fix="use the variant 'outputs'"
            )
        inputs, tensors = network_tensors(self.network)
        self.model_outputs = {output.name for output in network_outputs(self.network)}
        for name in self.names:
            reason = "it is an input: what it holds is what is fed" if name in inputs else ""
            reason = reason or self._mark_tensor(tensors.get(name))
            if reason:
                self._record_unmarked(name, reason)
            else:
                self.tensors[name] = tensors[name]

    def _mark_tensor(self, tensor: Any) -> str:
        """Mark one tensor; returns why it cannot be."""
        if tensor is None:
            return "no layer of the network makes it: the parser folded it away"
        if tensor.is_shape_tensor:
            return "it is a shape tensor, which stays on the host"
        if self.variant == "outputs":
            if tensor.name not in self.model_outputs:
                self.network.mark_output(tensor)
            return "" if tensor.is_network_output else "TensorRT did not take it as an output"
        return "" if self.network.mark_debug(tensor) else "TensorRT did not take it as a debug tensor"

    def _record_unmarked(self, tensor: str, reason: str) -> None:
        self.unmarked += [UnmarkedTensor(name, reason) for name in self.names[tensor]]

    def unmark_offenders(self, errors: Sequence[str]) -> list[str]:
        """Unmark the tensors that errors name; returns them."""
        offenders = list(self._find_offenders(errors))
        for name in offenders:
            tensor = self.tensors.pop(name)
            if self.variant == "debug-tensors":
                self.network.unmark_debug(tensor)
            else:
                self.network.unmark_output(tensor)
            reason = next(text for text in errors if name in text)
            self._record_unmarked(name, f"the compiler has no way to give it out: {reason.strip()[:REASON_CHARS]}")
        return offenders

    def _find_offenders(self, errors: Iterable[str]) -> Iterator[str]:
        may_go = [name for name in self.tensors if self.variant == "debug-tensors" or name not in self.model_outputs]
        reported: set[str] = set()
        for text in errors:
            match = _NO_RUNNER.search(text)
            names = [match["name"]] if match else [name for name in may_go if _mentions_tensor(text, name)]
            fresh = [name for name in names if name in may_go and name not in reported]
            reported |= set(fresh)
            yield from fresh

    def marked_tensors(self) -> tuple[MarkedTensor, ...]:
        return tuple(MarkedTensor(name, tensor) for tensor in self.tensors for name in self.names[tensor])


def _mentions_tensor(text: str, name: str) -> bool:
    """Whether a text speaks of this very name and not of a longer one."""
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text))


def network_tensors(network: Any) -> tuple[set[str], dict[str, Any]]:
    """Return the names of the inputs, and all that layers make, by name."""
    inputs = {network.get_input(number).name for number in range(network.num_inputs)}
    return inputs, {tensor.name: tensor for _, _, tensor in _layer_outputs(network)}


def layers_of_tensors(network: Any, tensors: Collection[str]) -> dict[str, tuple[str, int]]:
    """Return the layer that makes each tensor, and which of its outputs it is."""
    return {tensor.name: (layer, port) for layer, port, tensor in _layer_outputs(network) if tensor.name in tensors}


def _layer_outputs(network: Any) -> Iterator[tuple[str, int, Any]]:
    for number in range(network.num_layers):
        layer = network.get_layer(number)
        for port in range(layer.num_outputs):
            tensor = layer.get_output(port)
            if tensor is not None:
                yield layer.name, port, tensor


def network_outputs(network: Any) -> list[Any]:
    return [network.get_output(number) for number in range(network.num_outputs)]
