"""Modules of nodes that a file does not tell, known from elsewhere: by whose weight is in them.

    with known_modules("int8.onnx", {"linear_3": "model.layers.0.self_attn.q_proj"}):
        ...  # whoever opens this file sees the node that makes this value, and what belongs to it, in that module

Quantisers and optimisers write new nodes and keep no names; what they wrote is looked at by several parts of a comparison,
each of which opens the file itself.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trtdx.formats.onnx.fused_nodes import BEFORE
from trtdx.formats.onnx.proto import SCOPES, parse_scopes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx_ir as ir

    Modules = Mapping[str, str]

BY_WEIGHT = "trtdx.module"  # of a node whose module its file does not tell
# Where the weight of a node is among its inputs.
WEIGHT = {
    "MatMul": 1, "Gemm": 1, "FusedMatMul": 1, "FusedGemm": 1, "MatMulNBits": 1, "MatMulInteger": 1, "QLinearMatMul": 3,
    "QGemm": 3, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1, "Conv": 1, "FusedConv": 1, "QLinearConv": 3,
    "LayerNormalization": 1, "RMSNormalization": 1, "SimplifiedLayerNormalization": 1, "Gather": 0, "GatherBlockQuantized": 0,
    "Attention": 1,
}  # fmt: skip
# What belongs to a product: it adds the bias, and of integers it makes floats of its sums.
_AFTER = {"Identity", "DequantizeLinear", "Add"}
_AFTER_INTEGERS = {*_AFTER, "Cast", "Mul"}
MOST_IN_A_NORM = 16  # nodes that a norm is written out in

_known: ContextVar[Mapping[str, Modules]] = ContextVar("known_modules", default=MappingProxyType({}))


@contextmanager
def known_modules(path: str | Path, modules: Modules) -> Iterator[None]:
    """Let a file be opened with more names than it has, inside the block.

    Args:
        path: the file.
        modules: for a value that a node makes, the module that the node is in.
    """
    before = _known.get()
    token = _known.set({**before, str(Path(path).resolve()): modules} if modules else before)
    try:
        yield
    finally:
        _known.reset(token)


def name_products(model: ir.Model, path: str | Path) -> None:
    """Tell the nodes of a model what is known of its file."""
    modules = _known.get().get(str(Path(path).resolve()))
    if not modules:
        return
    known_scopes = {scope for node in model.graph for scope in _told(node)}
    for node in model.graph:
        output_name = str(node.outputs[0].name) if node.outputs else ""
        module = modules.get(output_name) or modules.get(f"{output_name}{BEFORE}")
        if module is not None and not _told(node):
            scopes = _chain(module, known_scopes)
            around = norm_behind(node) if node.op_type == "Mul" else _behind(node)
            for member in (node, *around):
                if not _told(member):
                    member.metadata_props[SCOPES] = repr(["", *scopes, str(member.name)])
                    member.metadata_props[BY_WEIGHT] = module


def _told(node: ir.Node) -> list[str]:
    return [scope for scope in parse_scopes(node.metadata_props.get(SCOPES, "")) if scope]


def _chain(module: str, told: set[str]) -> list[str]:
    """Return the modules around one and itself, as the file calls them: lists of layers are none."""
    parent = module.rpartition(".")[0]
    root = next(
        (scope.removesuffix(parent) for scope in sorted(told) if parent and scope.endswith(f".{parent}")), ""
    )
    path = module if parent in told else f"{root}{module}"
    parts = path.split(".")
    above = [".".join(parts[:count]) for count in range(1, len(parts))]
    lists = {path_above for path_above, after in zip(above, parts[1:], strict=True) if after.isdigit()}
    return [*(path_above for path_above in above if path_above in told or path_above not in lists), path]


def _behind(node: ir.Node) -> Iterator[ir.Node]:
    """Yield what scales a product's sums and adds its bias: nodes that tell nothing and are used for it alone."""
    now, kinds = node, _AFTER_INTEGERS if node.op_type == "MatMulInteger" else _AFTER
    while len(uses := [use.node for use in now.outputs[0].uses()]) == 1:
        (now,) = uses
        if now.op_type not in kinds or now.metadata_props.get(SCOPES):
            return
        if now.op_type == "Add" and not _is_bias(now):
            return
        yield now
        if now.op_type in ("DequantizeLinear", "Add"):
            return


def _is_bias(node: ir.Node) -> bool:
    constants = [
        value.const_value for value in node.inputs if value is not None and value.const_value is not None
    ]
    return len(constants) == 1 and len(constants[0].shape) == 1


def norm_behind(node: ir.Node) -> list[ir.Node]:
    """Return the nodes of a norm that is written out, from the product with its weight back to the one value it is of.

    None where it is no norm: there are a mean and a root in one, and a single value enters.
    """
    inside: dict[ir.Node, None] = {}
    waiting = _made_of(node)
    while waiting and len(inside) < MOST_IN_A_NORM:
        kinds = {norm_node.op_type for norm_node in inside}
        if len(waiting) == 1 and "ReduceMean" in kinds and kinds & {"Sqrt", "Pow", "Reciprocal"}:
            inside |= dict.fromkeys(_taking_mean_away(next(iter(waiting))))
            break
        latest = _latest(waiting)
        if latest is None:
            return []
        inside[latest] = None
        waiting = {
            value for inner in (node, *inside) for value in _made_of(inner) if value.producer() not in inside
        }
    return list(inside) if "ReduceMean" in {inner.op_type for inner in inside} and len(waiting) == 1 else []


def _taking_mean_away(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that take the mean of a value away from it, as norms written out do first; none where these do not."""
    node = value.producer()
    if node is None or node.op_type != "Sub" or len(node.inputs) != 2 or node.inputs[1] is None:
        return []
    mean = node.inputs[1].producer()
    is_mean = mean is not None and mean.op_type == "ReduceMean" and mean.inputs[0] is node.inputs[0]
    return [node, mean] if is_mean and mean is not None else []


def _made_of(node: ir.Node) -> set[ir.Value]:
    """Return what a node reads that is computed or fed."""
    return {
        value
        for value in node.inputs
        if value is not None and value.const_value is None and not _is_held(value)
    }


def _is_held(value: ir.Value) -> bool:
    maker = value.producer()
    return value.is_initializer() or (maker is not None and maker.op_type == "Constant")


def _latest(values: Iterable[ir.Value]) -> ir.Node | None:
    """Return the node among the makers of values that none of the others needs."""
    makers = [maker for value in values if (maker := value.producer()) is not None]
    if not makers or makers[0].graph is None:
        return None
    needed = {
        maker for other in makers for value in _upstream(other) if (maker := value.producer()) is not None
    }
    return next((maker for maker in makers if maker not in needed), None)


def _upstream(node: ir.Node) -> set[ir.Value]:
    """Return the values that a node is made of, a few nodes back."""
    upstream: set[ir.Value] = set()
    waiting = _made_of(node)
    for _ in range(MOST_IN_A_NORM):
        upstream |= waiting
        makers = (value.producer() for value in waiting)
        waiting = {operand for maker in makers if maker is not None for operand in _made_of(maker)} - upstream
    return upstream


__all__ = ["BY_WEIGHT", "WEIGHT", "known_modules", "name_products", "norm_behind"]
