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

from trtdx.formats.onnx.fused_nodes import BEFORE_ACTIVATION_SUFFIX
from trtdx.formats.onnx.proto import SCOPES, parse_scopes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx_ir as ir

    Modules = Mapping[str, str]

MODULE_BY_WEIGHT_KEY = "trtdx.module"  # of a node whose module its file does not tell
# Where the weight of a node is among its inputs.
WEIGHT_INPUTS = {
    "MatMul": 1, "Gemm": 1, "FusedMatMul": 1, "FusedGemm": 1, "MatMulNBits": 1, "MatMulInteger": 1, "QLinearMatMul": 3,
    "QGemm": 3, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1, "Conv": 1, "FusedConv": 1, "QLinearConv": 3,
    "LayerNormalization": 1, "RMSNormalization": 1, "SimplifiedLayerNormalization": 1, "Gather": 0, "GatherBlockQuantized": 0,
    "Attention": 1,
}  # fmt: skip
# What belongs to a product: it adds the bias, and of integers it makes floats of its sums.
_EPILOGUE = {"Identity", "DequantizeLinear", "Add"}
_INTEGER_EPILOGUE = {*_EPILOGUE, "Cast", "Mul"}
MAX_NORM_NODES = 16  # nodes that a norm is written out in

_modules_by_file: ContextVar[Mapping[str, Modules]] = ContextVar("known_modules", default=MappingProxyType({}))


@contextmanager
def known_modules(path: str | Path, modules: Modules) -> Iterator[None]:
    """Let a file be opened with more names than it has, inside the block.

    Args:
        path: the file.
        modules: for a value that a node makes, the module that the node is in.
    """
    before = _modules_by_file.get()
    token = _modules_by_file.set({**before, str(Path(path).resolve()): modules} if modules else before)
    try:
        yield
    finally:
        _modules_by_file.reset(token)


def assign_known_modules(model: ir.Model, path: str | Path) -> None:
    """Tell the nodes of a model what is known of its file."""
    modules = _modules_by_file.get().get(str(Path(path).resolve()))
    if not modules:
        return
    known_scopes = {scope for node in model.graph for scope in _node_scopes(node)}
    for node in model.graph:
        output_name = str(node.outputs[0].name) if node.outputs else ""
        module = modules.get(output_name) or modules.get(f"{output_name}{BEFORE_ACTIVATION_SUFFIX}")
        if module is not None and not _node_scopes(node):
            scopes = _scope_chain(module, known_scopes)
            around = find_norm_nodes(node) if node.op_type == "Mul" else _product_epilogue(node)
            for member in (node, *around):
                if not _node_scopes(member):
                    member.metadata_props[SCOPES] = repr(["", *scopes, str(member.name)])
                    member.metadata_props[MODULE_BY_WEIGHT_KEY] = module


def _node_scopes(node: ir.Node) -> list[str]:
    return [scope for scope in parse_scopes(node.metadata_props.get(SCOPES, "")) if scope]


def _scope_chain(module: str, known_scopes: set[str]) -> list[str]:
    """Return the modules around one and itself, as the file calls them: lists of layers are none."""
    parent = module.rpartition(".")[0]
    root = next(
        (scope.removesuffix(parent) for scope in sorted(known_scopes) if parent and scope.endswith(f".{parent}")),
        "",
    )
    path = module if parent in known_scopes else f"{root}{module}"
    parts = path.split(".")
    above = [".".join(parts[:count]) for count in range(1, len(parts))]
    lists = {path_above for path_above, after in zip(above, parts[1:], strict=True) if after.isdigit()}
    return [
        *(path_above for path_above in above if path_above in known_scopes or path_above not in lists),
        path,
    ]


def _product_epilogue(node: ir.Node) -> Iterator[ir.Node]:
    """Yield what scales a product's sums and adds its bias: nodes that tell nothing and are used for it alone."""
    now, kinds = node, _INTEGER_EPILOGUE if node.op_type == "MatMulInteger" else _EPILOGUE
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
    constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    return len(constants) == 1 and len(constants[0].shape) == 1


def find_norm_nodes(node: ir.Node) -> list[ir.Node]:
    """Return the nodes of a norm that is written out, from the product with its weight back to the one value it is of.

    None where it is no norm: there are a mean and a root in one, and a single value enters.
    """
    inside: dict[ir.Node, None] = {}
    waiting = _computed_inputs(node)
    while waiting and len(inside) < MAX_NORM_NODES:
        kinds = {norm_node.op_type for norm_node in inside}
        if len(waiting) == 1 and "ReduceMean" in kinds and kinds & {"Sqrt", "Pow", "Reciprocal"}:
            inside |= dict.fromkeys(_find_mean_subtraction(next(iter(waiting))))
            break
        latest = _last_producer(waiting)
        if latest is None:
            return []
        inside[latest] = None
        waiting = {
            value for inner in (node, *inside) for value in _computed_inputs(inner) if value.producer() not in inside
        }
    return list(inside) if "ReduceMean" in {inner.op_type for inner in inside} and len(waiting) == 1 else []


def _find_mean_subtraction(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that take the mean of a value away from it, as norms written out do first; empty if these do not."""
    node = value.producer()
    if node is None or node.op_type != "Sub" or len(node.inputs) != 2 or node.inputs[1] is None:
        return []
    mean = node.inputs[1].producer()
    is_mean = mean is not None and mean.op_type == "ReduceMean" and mean.inputs[0] is node.inputs[0]
    return [node, mean] if is_mean and mean is not None else []


def _computed_inputs(node: ir.Node) -> set[ir.Value]:
    """Return what a node reads that is computed or fed."""
    return {
        value
        for value in node.inputs
        if value is not None and value.const_value is None and not _is_constant_value(value)
    }


def _is_constant_value(value: ir.Value) -> bool:
    maker = value.producer()
    return value.is_initializer() or (maker is not None and maker.op_type == "Constant")


def _last_producer(values: Iterable[ir.Value]) -> ir.Node | None:
    """Return the node among the makers of values that none of the others needs."""
    makers = [maker for value in values if (maker := value.producer()) is not None]
    if not makers or makers[0].graph is None:
        return None
    needed = {maker for other in makers for value in _upstream_values(other) if (maker := value.producer()) is not None}
    return next((maker for maker in makers if maker not in needed), None)


def _upstream_values(node: ir.Node) -> set[ir.Value]:
    """Return the values that a node is made of, a few nodes back."""
    upstream: set[ir.Value] = set()
    waiting = _computed_inputs(node)
    for _ in range(MAX_NORM_NODES):
        upstream |= waiting
        makers = (value.producer() for value in waiting)
        waiting = {operand for maker in makers if maker is not None for operand in _computed_inputs(maker)} - upstream
    return upstream


__all__ = [
    "MODULE_BY_WEIGHT_KEY",
    "WEIGHT_INPUTS",
    "assign_known_modules",
    "find_norm_nodes",
    "known_modules",
]
