"""Modules of products that a file does not tell, known from elsewhere: by whose weight is in them.

    with known_modules("int8.onnx", {"val_87_quantized": "model.layers.0.self_attn.q_proj"}):
        ...  # whoever opens this file sees the product of that weight, and what scales it, in that module

A quantiser writes new nodes and keeps no names; what it wrote is looked at by several parts of a comparison, each of which
opens the file itself.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir

    Modules = Mapping[str, str]

SCOPES = "pkg.torch.onnx.name_scopes"
# Where the weight of a product of integers is among its inputs.
WEIGHT = {"MatMulInteger": 1, "QLinearMatMul": 3, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1}
# What belongs to such a product and makes floats of its sums.
_AFTER = {"Cast", "Mul", "Identity", "DequantizeLinear"}

_known: ContextVar[Mapping[str, Modules]] = ContextVar("known_modules", default=MappingProxyType({}))


@contextmanager
def known_modules(path: str | Path, modules: Modules) -> Iterator[None]:
    """Let a file be opened with more names than it has, inside the block.

    Args:
        path: the file.
        modules: for the weight of a product, the module it is in.
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
    told = {scope for node in model.graph for scope in _told(node)}
    for node in model.graph:
        at = WEIGHT.get(node.op_type)
        weight = node.inputs[at] if at is not None and at < len(node.inputs) else None
        module = modules.get(str(weight.name)) if weight is not None else None
        if module is not None and not _told(node):
            scopes = _chain(module, told)
            for each in (node, *_behind(node)):
                each.metadata_props[SCOPES] = repr(["", *scopes, str(each.name)])


def _told(node: ir.Node) -> list[str]:
    import ast

    try:
        found = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    except (ValueError, SyntaxError):
        return []
    return [str(each) for each in found[:-1] if each] if isinstance(found, list) else []


def _chain(module: str, told: set[str]) -> list[str]:
    """Return the modules around one and itself, as the file calls them: lists of layers are none."""
    parent = module.rpartition(".")[0]
    root = next(
        (each.removesuffix(parent) for each in sorted(told) if parent and each.endswith(f".{parent}")), ""
    )
    path = module if parent in told else f"{root}{module}"
    parts = path.split(".")
    above = [".".join(parts[:count]) for count in range(1, len(parts))]
    lists = {each for each, after in zip(above, parts[1:], strict=True) if after.isdigit()}
    return [*(each for each in above if each in told or not (told or each in lists)), path]


def _behind(node: ir.Node) -> Iterator[ir.Node]:
    """Yield what scales a product's sums: nodes that tell nothing and are used for it alone."""
    now = node
    while len(uses := [use.node for use in now.outputs[0].uses()]) == 1:
        (now,) = uses
        if now.op_type not in _AFTER or now.metadata_props.get(SCOPES):
            return
        yield now
        if now.op_type == "DequantizeLinear":
            return


__all__ = ["WEIGHT", "known_modules", "name_products"]
