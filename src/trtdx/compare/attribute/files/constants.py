"""What another constant in a file is: a weight turned, ordered, scaled, cut or taken from elsewhere, a norm's, angles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.files.weight_differences import relation
from trtdx.compare.attribute.twin.graph import NORMS, is_frequencies
from trtdx.compare.attribute.twin.lifts import ELEMENTWISE
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx_ir as ir

    from trtdx.compare.attribute.files.node_differences import Difference, View

    Tensor = Any


class FileCause(NamedTuple):
    """A cause that the files tell, and what they say in words."""

    code: str
    told: str
    values: Mapping[str, str] = {}


def of_weight(each: Difference, ours: View) -> FileCause | None:
    before, after = each.before, each.after
    if not before.is_floating_point() or not after.is_floating_point():
        return None
    weight_relation = relation(before, after)
    description = f"{each.own.op_type}: a constant is {weight_relation.told}"
    makes_angles = is_frequencies(before) and any(
        node.op_type in ("Cos", "Sin") for node in ours.nodes_after(each.own)
    )
    rules: list[Callable[[], tuple[str, dict[str, str]] | None]] = [
        lambda: _of_angles(before, after) if makes_angles else None,
        lambda: _of_row(each, before, after, weight_relation.told, ours),
        lambda: _of_matrix(each, before, after, weight_relation.kind, ours),
        lambda: _from_elsewhere(each, after, ours),
        lambda: _untied(each, before, ours),
    ]
    for rule in rules:
        cause = rule()
        if cause is not None:
            return FileCause(cause[0], cause[1].pop("told", description), cause[1])
    plain = before.ndim == 2 and _scales_in(each.other) is None  # else it may be honestly quantised
    return FileCause("DX977", description, {"what": description}) if plain else None


def _scales_in(node: ir.Node) -> int | None:
    """Return how many scales the quantised weight of a node has; none where it is not quantised."""
    for value in node.inputs:
        maker = None if value is None else value.producer()
        while (
            maker is not None
            and maker.op_type in ("Transpose", "Cast", "Identity")
            and maker.inputs[0] is not None
        ):
            maker = maker.inputs[0].producer()
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.inputs[1] is not None:
            scale = maker.inputs[1].const_value
            return None if scale is None else int(scale.size)
    return None


def _untied(each: Difference, before: Tensor, ours: View) -> tuple[str, dict[str, str]] | None:
    """Return that a head no longer has the weights of the embedding."""
    swapped = _from_elsewhere(each, before, ours)
    if swapped is None or swapped[0] != "DX992":
        return None
    description = f"{each.own.op_type}: the weight is no longer that of {swapped[1]['other']}"
    return "DX992", {"other": "another one", "told": description}


def _of_angles(before: Tensor, after: Tensor) -> tuple[str, dict[str, str]] | None:
    """Return what another row of rotary frequencies is: of another base, or scaled."""
    one, other = before.double().reshape(-1), after.double().reshape(-1)
    if one.shape != other.shape or one.numel() < 2 or float(other.min()) <= 0 or float(one.min()) <= 0:
        return None
    steps = torch.arange(one.numel(), dtype=torch.float64) / one.numel()
    bases = [math.exp(-float(frequencies[1].log()) * one.numel()) for frequencies in (one, other)]
    if float((bases[1] ** -steps / other - 1).abs().max()) < 1e-3 and float(other[0]) > 0.999:
        description = f"rotary frequencies of base {bases[1]:.6g}, not {bases[0]:.6g}"
        return "DX962", {"expected": f"{bases[0]:.6g}", "found": f"{bases[1]:.6g}", "told": description}
    return "DX963", {"told": "the rotary frequencies are scaled otherwise"}


def _of_row(
    each: Difference, before: Tensor, after: Tensor, told: str, ours: View
) -> tuple[str, dict[str, str]] | None:
    """Return what another row of numbers is: the weight or the bias of a norm, or a bias."""
    if before.numel() != max(before.shape, default=0) or before.shape != after.shape:
        return None
    of_norm = bool(ours.ops & NORMS or "ReduceMean" in ours.ops)
    weight = of_norm and each.own.op_type in ("Mul", *NORMS) and not _is_bias(each)
    if weight and bool((after == 1).all()):
        return "DX976", {"told": f"{each.own.op_type}: the weight is one everywhere"}
    if weight and told in ("with one added", "with one taken away"):
        return "DX979", {"found": "added" if told == "with one added" else "not added"}
    if weight:
        return None
    if not bool(after.any()):
        return "DX987", {"told": f"{each.own.op_type}: the bias is zero"}
    factor = float((after * before).sum() / (before * before).sum()) if bool(before.any()) else 0.0
    if factor > 1.5 and abs(factor - round(factor)) < 1e-3 and told.startswith("multiplied"):
        return "DX988", {"ranks": str(round(factor)), "told": f"{each.own.op_type}: the bias is {told}"}
    return None


def _is_bias(each: Difference) -> bool:
    """Whether the row is what a norm of one operator adds last."""
    last = each.own.inputs[2] if len(each.own.inputs) > 2 else None
    constant = None if last is None or last.const_value is None else last.const_value.numpy().reshape(-1)
    return constant is not None and bool(
        (torch.from_numpy(constant.astype("float64")) == each.before.reshape(-1).double()).all()
    )


def _of_matrix(
    each: Difference, before: Tensor, after: Tensor, kind: str, ours: View
) -> tuple[str, dict[str, str]] | None:
    if before.ndim != 2:
        return None
    if kind == "in another order":
        return _of_order(each, before, after)
    if kind == "partly zero" and _in_blocks(after):
        return "DX984", {}
    if kind == "scaled" and each.own.op_type == "Gather":
        return "DX991", {}
    codes = {"transposed": "DX982", "scaled": "DX948"}
    if kind in codes:
        return codes[kind], {}
    scales = _scales_in(each.own), _scales_in(each.other)
    if scales[1] == 1 and scales[0] != 1:
        return "DX949", {
            "found": "one scale for all channels",
            "told": "the weight is quantised with one scale",
        }
    gap = (after - before).double() if before.shape == after.shape else None
    for axis in (0, 1) if gap is not None else ():
        flat = gap - gap.mean(axis, keepdim=True) if gap is not None else None
        if flat is not None and float(flat.norm()) < 0.2 * float(gap.norm()):  # type: ignore[union-attr]
            return "DX950", {"told": f"{each.own.op_type}: a weight has another zero point"}
    return None


def _in_blocks(held: Tensor) -> bool:
    """Whether what is zero in a matrix is whole rows or columns that follow each other."""
    for axis in (0, 1):
        gone = (held == 0).all(axis)
        at = gone.nonzero().reshape(-1)
        if (
            len(at) > 1
            and int(at[-1] - at[0]) + 1 == len(at)
            and int((held == 0).sum()) >= held.shape[axis] * len(at)
        ):
            return True
    return False


def _of_order(each: Difference, before: Tensor, after: Tensor) -> tuple[str, dict[str, str]] | None:
    """Return what another order is: of the rows of a table or a head, or of parts."""
    for axis in (0, 1):
        rows = before if axis == 0 else before.T
        if each.own.op_type == "Gather" and axis:
            return None
        for shift in (1, -1, 2, -2, 3, -3):
            if torch.equal(rows.roll(shift, 0), after if axis == 0 else after.T):
                return "DX993", {
                    "offset": f"{shift:+d}",
                    "told": f"{each.own.op_type}: rows shifted by {shift:+d}",
                }
    return "DX983", {}


def _from_elsewhere(each: Difference, after: Tensor, ours: View) -> tuple[str, dict[str, str]] | None:
    """Return that a weight is another module's in the reference."""
    for at, node in enumerate(ours.graph.nodes):
        if node is each.own or not ours.reader.is_data(node.outputs[0] if node.outputs else None):
            continue
        for weight in ours.constants(node):
            if weight is None or weight.numel() != after.numel() or not weight.is_floating_point():
                continue
            if any(
                weight.shape == turned.shape and torch.equal(weight, turned) for turned in (after, after.T)
            ):
                where = ours.graph.scopes[at][-1] if ours.graph.scopes[at] else ours.graph.node_name(at)
                code = "DX992" if node.op_type == "Gather" else "DX990"
                if code == "DX990" and _are_gated(each.own, node, ours):
                    code = "DX981"
                return code, {"other": where, "told": f"{each.own.op_type}: the weight is that of {where}"}
    return None


def _are_gated(one: ir.Node, other: ir.Node, view: View) -> bool:
    """Whether two products are multiplied with each other, one of them through an activation."""
    if one.inputs[0] is not other.inputs[0]:
        return False
    products = [
        {id(node) for node in view.nodes_after(start, ELEMENTWISE) if node.op_type == "Mul"}
        for start in (one, other)
    ]
    return bool(products[0] & products[1])
