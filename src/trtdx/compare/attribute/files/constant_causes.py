"""Which mistake a changed constant in a file is: a transposed, permuted, scaled, truncated or foreign weight, a norm's, rotary angles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.files.weight_differences import relate_weights
from trtdx.compare.attribute.twin.graph_reader import NORM_OPERATORS, are_rotary_frequencies
from trtdx.compare.attribute.twin.subgraph_patterns import ELEMENTWISE_OPERATORS
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx_ir as ir

    from trtdx.compare.attribute.files.graph_diff import GraphChange, GraphModule

    Tensor = Any


class FileCause(NamedTuple):
    """A cause that follows from the files, and the evidence in words."""

    code: str
    description: str
    values: Mapping[str, str] = {}


def cause_of_weight(change: GraphChange, reference: GraphModule) -> FileCause | None:
    before, after = change.before, change.after
    if not before.is_floating_point() or not after.is_floating_point():
        return None
    weight_relation = relate_weights(before, after)
    description = f"{change.node.op_type}: a constant is {weight_relation.description}"
    makes_angles = are_rotary_frequencies(before) and any(
        node.op_type in ("Cos", "Sin") for node in reference.nodes_after(change.node)
    )
    rules: list[Callable[[], tuple[str, dict[str, str]] | None]] = [
        lambda: _rotary_cause(before, after) if makes_angles else None,
        lambda: _vector_cause(change, before, after, weight_relation.description, reference),
        lambda: _matrix_cause(change, before, after, weight_relation.kind, reference),
        lambda: _swapped_weight_cause(change, after, reference),
        lambda: _untied_cause(change, before, reference),
    ]
    for rule in rules:
        cause = rule()
        if cause is not None:
            return FileCause(cause[0], cause[1].pop("told", description), cause[1])
    plain = before.ndim == 2 and _scale_count(change.candidate_node) is None  # else it may be honestly quantised
    return FileCause("DX977", description, {"what": description}) if plain else None


def _scale_count(node: ir.Node) -> int | None:
    """Return how many scales the quantised weight of a node has; None if it is not quantised."""
    for value in node.inputs:
        maker = None if value is None else value.producer()
        while maker is not None and maker.op_type in ("Transpose", "Cast", "Identity") and maker.inputs[0] is not None:
            maker = maker.inputs[0].producer()
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.inputs[1] is not None:
            scale = maker.inputs[1].const_value
            return None if scale is None else int(scale.size)
    return None


def _untied_cause(change: GraphChange, before: Tensor, reference: GraphModule) -> tuple[str, dict[str, str]] | None:
    """Return the cause if an output head no longer has the weights of the embedding it is tied to."""
    swapped = _swapped_weight_cause(change, before, reference)
    if swapped is None or swapped[0] != "DX992":
        return None
    description = f"{change.node.op_type}: the weight is no longer that of {swapped[1]['other']}"
    return "DX992", {"other": "another one", "told": description}


def _rotary_cause(before: Tensor, after: Tensor) -> tuple[str, dict[str, str]] | None:
    """Return the cause of changed rotary frequencies: another base, or another scaling."""
    one, other = before.double().reshape(-1), after.double().reshape(-1)
    if one.shape != other.shape or one.numel() < 2 or float(other.min()) <= 0 or float(one.min()) <= 0:
        return None
    steps = torch.arange(one.numel(), dtype=torch.float64) / one.numel()
    bases = [math.exp(-float(frequencies[1].log()) * one.numel()) for frequencies in (one, other)]
    if float((bases[1] ** -steps / other - 1).abs().max()) < 1e-3 and float(other[0]) > 0.999:
        description = f"rotary frequencies of base {bases[1]:.6g}, not {bases[0]:.6g}"
        return "DX962", {"expected": f"{bases[0]:.6g}", "found": f"{bases[1]:.6g}", "told": description}
    return "DX963", {"told": "the rotary frequencies are scaled otherwise"}


def _vector_cause(
    change: GraphChange, before: Tensor, after: Tensor, description: str, reference: GraphModule
) -> tuple[str, dict[str, str]] | None:
    """Return the cause of a changed vector: a norm's weight, a norm's bias, or a bias."""
    if before.numel() != max(before.shape, default=0) or before.shape != after.shape:
        return None
    of_norm = bool(reference.ops & NORM_OPERATORS or "ReduceMean" in reference.ops)
    weight = of_norm and change.node.op_type in ("Mul", *NORM_OPERATORS) and not _is_norm_bias(change)
    if weight and bool((after == 1).all()):
        return "DX976", {"told": f"{change.node.op_type}: the weight is one everywhere"}
    if weight and description in ("with one added", "with one taken away"):
        return "DX979", {"found": "added" if description == "with one added" else "not added"}
    if weight:
        return None
    if not bool(after.any()):
        return "DX987", {"told": f"{change.node.op_type}: the bias is zero"}
    factor = float((after * before).sum() / (before * before).sum()) if bool(before.any()) else 0.0
    if factor > 1.5 and abs(factor - round(factor)) < 1e-3 and description.startswith("multiplied"):
        return "DX988", {
            "ranks": str(round(factor)),
            "told": f"{change.node.op_type}: the bias is {description}",
        }
    return None


def _is_norm_bias(change: GraphChange) -> bool:
    """Whether the vector is the bias that a single-operator norm adds last."""
    last = change.node.inputs[2] if len(change.node.inputs) > 2 else None
    constant = None if last is None or last.const_value is None else last.const_value.numpy().reshape(-1)
    return constant is not None and bool(
        (torch.from_numpy(constant.astype("float64")) == change.before.reshape(-1).double()).all()
    )


def _matrix_cause(
    change: GraphChange, before: Tensor, after: Tensor, kind: str, reference: GraphModule
) -> tuple[str, dict[str, str]] | None:
    if before.ndim != 2:
        return None
    if kind == "in another order":
        return _order_cause(change, before, after)
    if kind == "partly zero" and _is_zero_in_blocks(after):
        return "DX984", {}
    if kind == "scaled" and change.node.op_type == "Gather":
        return "DX991", {}
    codes = {"transposed": "DX982", "scaled": "DX948"}
    if kind in codes:
        return codes[kind], {}
    scales = _scale_count(change.node), _scale_count(change.candidate_node)
    if scales[1] == 1 and scales[0] != 1:
        return "DX949", {
            "found": "one scale for all channels",
            "told": "the weight is quantised with one scale",
        }
    gap = (after - before).double() if before.shape == after.shape else None
    for axis in (0, 1) if gap is not None else ():
        flat = gap - gap.mean(axis, keepdim=True) if gap is not None else None
        if flat is not None and float(flat.norm()) < 0.2 * float(gap.norm()):  # type: ignore[union-attr]
            return "DX950", {"told": f"{change.node.op_type}: a weight has another zero point"}
    return None


def _is_zero_in_blocks(matrix: Tensor) -> bool:
    """Whether the zeros of a matrix are whole adjacent rows or columns."""
    for axis in (0, 1):
        gone = (matrix == 0).all(axis)
        at = gone.nonzero().reshape(-1)
        if (
            len(at) > 1
            and int(at[-1] - at[0]) + 1 == len(at)
            and int((matrix == 0).sum()) >= matrix.shape[axis] * len(at)
        ):
            return True
    return False


def _order_cause(change: GraphChange, before: Tensor, after: Tensor) -> tuple[str, dict[str, str]] | None:
    """Return the cause of a changed order: rows of an embedding or a head were shifted, or shards were swapped."""
    for axis in (0, 1):
        rows = before if axis == 0 else before.T
        if change.node.op_type == "Gather" and axis:
            return None
        for shift in (1, -1, 2, -2, 3, -3):
            if torch.equal(rows.roll(shift, 0), after if axis == 0 else after.T):
                return "DX993", {
                    "offset": f"{shift:+d}",
                    "told": f"{change.node.op_type}: rows shifted by {shift:+d}",
                }
    return "DX983", {}


def _swapped_weight_cause(
    change: GraphChange, after: Tensor, reference: GraphModule
) -> tuple[str, dict[str, str]] | None:
    """Return the cause if a weight belongs to another module in the reference."""
    for at, node in enumerate(reference.graph.nodes):
        if node is change.node or not reference.reader.is_data(node.outputs[0] if node.outputs else None):
            continue
        for weight in reference.constants(node):
            if weight is None or weight.numel() != after.numel() or not weight.is_floating_point():
                continue
            if any(weight.shape == turned.shape and torch.equal(weight, turned) for turned in (after, after.T)):
                where = reference.graph.scopes[at][-1] if reference.graph.scopes[at] else reference.graph.node_name(at)
                code = "DX992" if node.op_type == "Gather" else "DX990"
                if code == "DX990" and _are_gated(change.node, node, reference):
                    code = "DX981"
                return code, {"other": where, "told": f"{change.node.op_type}: the weight is that of {where}"}
    return None


def _are_gated(one: ir.Node, other: ir.Node, view: GraphModule) -> bool:
    """Whether two products are multiplied with each other, one of them through an activation."""
    if one.inputs[0] is not other.inputs[0]:
        return False
    products = [
        {id(node) for node in view.nodes_after(start, ELEMENTWISE_OPERATORS) if node.op_type == "Mul"}
        for start in (one, other)
    ]
    return bool(products[0] & products[1])
