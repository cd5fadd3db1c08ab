"""Which modules of a candidate are quantised, and the same done to the reference: the step of a quantiser is precision."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.tensors.taps import path_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir

    from trtdx.compare.sides.side import Side
    from trtdx.engines.torch.engine import TorchEngine

# Operators that compute with quantised weights; those that quantise what enters as well; bits of the weights.
WEIGHT_ONLY_BITS = {"MatMulNBits": 4, "DequantizeLinear": 8, "GatherBlockQuantized": 4}
ACTIVATION_BITS = {
    "MatMulInteger": 8, "MatMulIntegerToFloat": 8, "DynamicQuantizeMatMul": 8, "QLinearMatMul": 8, "QGemm": 8,
    "ConvInteger": 8, "QLinearConv": 8, "DynamicQuantizeLinear": 8, "QuantizeLinear": 8,
}  # fmt: skip
WEIGHT_BLOCK = 32  # weights that share a scale where they have four bits


class QuantisationScheme(NamedTuple):
    """How a module is quantised."""

    bits: int
    activations: bool
    by_channel: bool = False  # whether each channel of the weights has its own scale


class QuantisedModules(NamedTuple):
    """The modules of a candidate that are quantised; under "" what belongs to none."""

    modules: Mapping[str, QuantisationScheme] = MappingProxyType({})
    quantises_inputs: bool = (
        False  # whether its engine may quantise what enters a product too, if the weights are quantised
    )

    @property
    def by_channel(self) -> bool:
        """Whether most modules have a scale for each channel: then one that has not is no honest exception."""
        ways = [how.by_channel for how in self.modules.values()]
        return 2 * sum(ways) > len(ways)

    def scheme_of(self, path: str) -> QuantisationScheme | None:
        """Return how a module of the reference is quantised in the candidate."""
        for candidate_path, how in self.modules.items():
            if candidate_path and (path_matches(candidate_path, path, {}) or path_matches(path, candidate_path, {})):
                return how
        above = path.rpartition(".")[0]  # a quantiser may not tell which part of a module a product is
        return self.scheme_of(above) if above else self.modules.get("")

    def scheme_inside(self, path: str) -> QuantisationScheme | None:
        """Return how something in a module is quantised, or the module itself."""
        prefix = f"{path}." if path else ""
        return self.scheme_of(path) or next(
            (how for candidate_path, how in self.modules.items() if f"{candidate_path}.".startswith(prefix)),
            None,
        )


def find_quantised_modules(side: Side) -> QuantisedModules:
    """Return which modules of a side are quantised, as far as its graph or its config tells."""
    if side.spec.kind == "hf":
        return _quantisation_in_config(Path(side.spec.path) / "config.json")
    if side.spec.kind not in ("onnx", "trt"):
        return QuantisedModules()
    from trtdx.formats.onnx.model import open_model
    from trtdx.formats.onnx.module_graph import OnnxGraph

    graph = OnnxGraph(open_model(side.spec.path))
    modules: dict[str, QuantisationScheme] = {}
    for node_index, node in enumerate(graph.nodes):
        bits = WEIGHT_ONLY_BITS.get(node.op_type) or ACTIVATION_BITS.get(node.op_type)
        if bits is None:
            continue
        path = graph.scopes[node_index][-1] if graph.scopes[node_index] else ""
        before = modules.get(path, QuantisationScheme(bits, False))
        modules[path] = QuantisationScheme(
            min(bits, before.bits),
            before.activations or node.op_type in ACTIVATION_BITS,
            before.by_channel or _has_channel_scales(node),
        )
    optimised = side.spec.options.get("level", "all") != "none"
    return QuantisedModules(modules, quantises_inputs=side.spec.kind == "onnx" and optimised)


def _has_channel_scales(node: ir.Node) -> bool:
    """Whether a node's weights have a scale, or at least a zero point, for each channel."""
    scale_index = {"DequantizeLinear": 1, "MatMulInteger": 3, "QLinearMatMul": 4, "QGemm": 4}.get(node.op_type)
    value = node.inputs[scale_index] if scale_index is not None and scale_index < len(node.inputs) else None
    return value is not None and value.const_value is not None and value.const_value.size > 1


def _quantisation_in_config(path: Path) -> QuantisedModules:
    """Return what a Hugging Face config says: one way for all linear modules."""
    try:
        config = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return QuantisedModules()
    quantization = config.get("quantization_config") if isinstance(config, dict) else None
    if not isinstance(quantization, dict):
        return QuantisedModules()
    bits = 4 if quantization.get("load_in_4bit") or quantization.get("bits") == 4 else 8
    return QuantisedModules({"": QuantisationScheme(bits, activations=False)})


@contextmanager
def quantise_linear_modules(engine: TorchEngine, quantised: QuantisedModules) -> Iterator[None]:
    """Let linear modules compute as quantised ones inside the block, with the coarsest step of the candidate's way."""
    hooks, weights = [], []
    for path, module in engine.model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2:
            continue
        how = quantised.scheme_of(path)
        if how is None:
            continue
        weights.append((weight, weight.data))  # a tied one twice: the later is put back first
        table = "Embedding" in type(module).__name__
        across = 0 if type(module).__name__ == "Conv1D" else 1
        channels = None if table or not quantised.by_channel else across
        group = WEIGHT_BLOCK if how.bits < 8 and weight.shape[1] % WEIGHT_BLOCK == 0 else 0
        weight.data = fake_quantise(weight.data, bits=how.bits, axis=channels, group=group)
        if (how.activations or quantised.quantises_inputs) and not table:
            hooks.append(module.register_forward_pre_hook(_quantise_input))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for weight, data in reversed(weights):
            weight.data = data


def quantise_to_int(tensor: Any, scale: Any, bits: int = 8) -> Any:
    """Return the integers that a symmetrical quantiser makes, as floating numbers."""
    most = 2 ** (bits - 1) - 1
    return (tensor / scale).round().clamp(-most - 1, most)


def fake_quantise(tensor: Any, *, bits: int = 8, axis: int | None = None, group: int = 0) -> Any:
    """Return a tensor after it went through integers: one scale for all, for what is along an axis, or for groups in a row."""
    parts = tensor.reshape(tensor.shape[0], -1, group) if group else tensor
    axis = -1 if group else axis
    peak = parts.abs().max() if axis is None else parts.abs().amax(axis, keepdim=True)
    scale = peak.clamp(min=1e-30) / (2 ** (bits - 1) - 1)
    return (quantise_to_int(parts, scale, bits) * scale).reshape(tensor.shape)


def _quantise_input(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Put what enters on a grid of 256 steps between its least and largest value, as dynamic quantisation does."""
    first = args[0]
    if not hasattr(first, "is_floating_point") or not first.is_floating_point():
        return args
    low, high = first.min().clamp_max(0), first.max().clamp_min(0)
    step = ((high - low) / 255).clamp_min(1e-30)
    return (((first / step).round() * step).to(first.dtype), *args[1:])
