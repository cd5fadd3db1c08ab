"""Fused nodes that belong to several modules, seen as the pieces that they are: a bias, a residual sum, a norm, an activation.

The file's own node is what is computed. What it has inside is made visible beside it: a norm's sum is one of its own
outputs, and a product with its bias, which only the fused node has, is computed once more where somebody looks at it.
Where nodes belong, and what enters and leaves modules, is told by the pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

MICROSOFT = "com.microsoft"
# What a fused norm is without its sum, which of its inputs belong to the norm, and which is a bias.
FUSED_NORMS = {
    "SkipLayerNormalization": ("LayerNormalization", (2, 3), 4),
    "SkipSimplifiedLayerNormalization": ("SimplifiedLayerNormalization", (2,), 3),
}
FUSED_BIAS_INPUTS = {"BiasGelu": 1, "FastGelu": 1}  # which input is the bias of the product before
FUSED_ACTIVATION = "FusedGemm"
BEFORE_ACTIVATION_SUFFIX = "_before"  # what a product is called without the activation that is fused into it
SUM_OUTPUT = 3  # the output of a fused norm that is its sum
_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")


class NodePiece(NamedTuple):
    """A part of a node, with what a node has."""

    op_type: str
    name: str
    inputs: Sequence[ir.Value | None]
    outputs: Sequence[ir.Value]
    attributes: Mapping[str, Any]
    metadata_props: Mapping[str, str]
    whole: ir.Node
    domain: str = ""


def expose_fused_values(model: ir.Model) -> None:
    """Make what fused nodes have inside visible, beside them."""
    for node in list(model.graph):
        if node.op_type in FUSED_NORMS:
            _expose_norm_sum(node)
            _expose_biased_product(model, node, FUSED_NORMS[node.op_type][2])
        elif node.op_type in FUSED_BIAS_INPUTS:
            _expose_biased_product(model, node, FUSED_BIAS_INPUTS[node.op_type])
        elif node.op_type == FUSED_ACTIVATION:
            _expose_product_before_activation(model, node)


def _expose_norm_sum(node: ir.Node) -> None:
    if len(node.outputs) <= SUM_OUTPUT:
        node.resize_outputs(SUM_OUTPUT + 1)
    for output in node.outputs:
        output.name = output.name or ""
    total, result = node.outputs[SUM_OUTPUT], node.outputs[0]
    if not total.name:
        _set_name_and_type(total, f"{result.name}_sum", result)


def _expose_biased_product(model: ir.Model, node: ir.Node, which: int) -> None:
    """Add a bias to the product before a node, in a node that belongs to the product."""
    bias = node.inputs[which] if which < len(node.inputs) else None
    before = [value for value in node.inputs[:2] if value is not None and _is_product(value)]
    if bias is None or not before:
        return
    product = before[0]
    maker = product.producer()
    assert maker is not None
    beside = _insert_before(model, node, "Add", [product, bias], f"{product.name}_biased", maker)
    node.meta["biased"] = (product, beside.outputs[0])


def _expose_product_before_activation(model: ir.Model, node: ir.Node) -> None:
    """Compute a product without the activation that is fused into it."""
    result = node.outputs[0]
    settings = [attribute for name, attribute in node.attributes.items() if not name.startswith("activation")]
    beside = _insert_before(
        model, node, "Gemm", list(node.inputs), f"{result.name}{BEFORE_ACTIVATION_SUFFIX}", node, settings
    )
    node.meta["before"] = beside.outputs[0]


def _insert_before(
    model: ir.Model,
    node: ir.Node,
    op: str,
    inputs: Sequence[Any],
    name: str,
    owner: ir.Node,
    settings: Any = (),
) -> ir.Node:
    """Put a node before another, where its owner belongs."""
    graphs = import_optional("onnx_ir", extra="onnx", purpose="read ONNX graphs")
    inserted: ir.Node = graphs.Node("", op, inputs, attributes=settings, num_outputs=1, name=f"{node.name}_{name}")
    _set_name_and_type(inserted.outputs[0], name, inputs[0] if op == "Add" else node.outputs[0])
    inserted.metadata_props.update(owner.metadata_props)
    model.graph.insert_before(node, inserted)
    return inserted


def _set_name_and_type(value: ir.Value, name: str, like: ir.Value) -> None:
    value.name, value.shape = name, like.shape
    if like.dtype is not None:
        value.dtype = like.dtype


def _is_product(value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and maker.op_type in _PRODUCTS


def split_fused_node(node: ir.Node) -> list[Any]:
    """Return the pieces of a node; itself where it is one."""
    inputs = list(node.inputs)
    if "biased" in node.meta:
        product, biased = node.meta["biased"]
        inputs = [biased if operand is product else operand for operand in inputs]
    if node.op_type in FUSED_NORMS and len(node.outputs) > SUM_OUTPUT:
        return _sum_and_norm(node, inputs)
    if node.op_type in FUSED_BIAS_INPUTS and "biased" in node.meta:
        inputs = [operand for at, operand in enumerate(inputs) if at != FUSED_BIAS_INPUTS[node.op_type]]
        return [_piece_of_node(node, "Gelu" if node.op_type == "BiasGelu" else node.op_type, inputs, domain=MICROSOFT)]
    if node.op_type == FUSED_ACTIVATION and "before" in node.meta:
        kind = node.attributes["activation"].as_string() if "activation" in node.attributes else "Relu"
        return [_piece_of_node(node, kind, [node.meta["before"]])._replace(metadata_props={})]
    return [node]


def _piece_of_node(node: ir.Node, op: str, inputs: Sequence[Any], domain: str = "") -> NodePiece:
    return NodePiece(op, str(node.name), inputs, list(node.outputs), node.attributes, node.metadata_props, node, domain)


def _sum_and_norm(node: ir.Node, inputs: list[Any]) -> list[Any]:
    kind, weight_inputs, bias = FUSED_NORMS[node.op_type]
    inputs += [None] * (bias + 1 - len(inputs))
    total = node.outputs[SUM_OUTPUT]
    terms = inputs[:2] + ([inputs[bias]] if inputs[bias] is not None and "biased" not in node.meta else [])
    return [
        NodePiece("Add" if len(terms) == 2 else "Sum", str(node.name), terms, [total], {}, {}, node),
        _piece_of_node(node, kind, [total, *(inputs[at] for at in weight_inputs)])._replace(outputs=[node.outputs[0]]),
    ]
