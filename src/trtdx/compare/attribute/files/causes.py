"""Which mistake a difference between two files is: the second witness beside what is computed.

A file tells what differs, not what that does. So a cause is named from it only where what differs is one thing of a
known kind; and where mistakes were tried out too, the files only agree, or tell apart what explains as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.attribute.files.constants import FileCause, of_weight
from trtdx.compare.attribute.files.node_differences import (
    Difference,
    View,
    describe_change,
    describe_changes,
    differences,
)
from trtdx.compare.attribute.twin.graph import NORMS
from trtdx.compare.attribute.twin.lifts import CURVES, ELEMENTWISE
from trtdx.compare.attribute.twin.operators import settings_of
from trtdx.engines.torch.lazy import torch
from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

CHANCE = {
    "RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Bernoulli", "Multinomial",
}  # fmt: skip
BENT = CURVES | {"Pow", "Exp", "Mul", "Add", "Div", "Sqrt", "Clip", "Max", "Min"}
QUANTISED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "MatMulNBits"}
SETTINGS = {
    "epsilon": "DX975", "approximate": "DX980", "interleaved": "DX961", "rotary_interleaved": "DX961", "scale": "DX967",
    "softcap": "DX968", "is_causal": "DX969", "unidirectional": "DX969", "local_window_size": "DX971",
    "kv_num_heads": "DX972", "q_num_heads": "DX972", "k": "DX955",
}  # fmt: skip


def compare_files(reference: str, candidate: str, scope: str) -> tuple[list[str], FileCause | None]:
    """Return how two ONNX files differ in a module, in words, and which one mistake that is, if it is one.

    Args:
        reference: one file.
        candidate: the other.
        scope: the module; "" for the whole graph, of which nothing is said in words.
    """
    try:
        modules = View(reference, scope), View(candidate, scope)
        changes = differences(*modules)
        return describe_changes(changes) if scope else [], _cause(changes, *modules) if changes else None
    except TrtdxError:
        return [], None


def _cause(found: list[Difference], ours: View, theirs: View) -> FileCause | None:
    if not ours.scope:
        _narrow(found, ours, theirs)
    moved = [change for change in found if change.kind in ("lost", "new")]
    if moved:
        return _of_operators(moved, ours, theirs)
    causes = [cause for change in found if (cause := _of_one(change, ours)) is not None]
    codes = {cause.code for cause in causes}
    return causes[0] if len(codes) == 1 and len(causes) == len(found) else None


def _narrow(found: list[Difference], ours: View, theirs: View) -> None:
    """Look only at what is near the differences; where all of it is new, at what is near in the candidate but old."""
    reference_nodes = ours.near(change.own for change in found if change.kind != "new")
    other = theirs.near(change.other for change in found if change.kind != "lost")
    new = {id(change.own) for change in found if change.kind == "new"}
    old = [node for node in other if id(node) not in new]
    ours.ops = {node.op_type for node in reference_nodes or old}
    theirs.ops = {node.op_type for node in other or reference_nodes}


def _of_one(each: Difference, ours: View) -> FileCause | None:
    if each.kind == "setting":
        return _of_setting(each)
    if each.before.numel() == each.after.numel() == 1:
        return _of_number(each, ours)
    return of_weight(each, ours)


def _of_setting(each: Difference) -> FileCause | None:
    description = describe_change(each)
    values = {"expected": str(each.before), "found": str(each.after)}
    if each.name == "perm" and each.before and len(each.before) == 2:
        return FileCause("DX982", description, values)
    return FileCause(SETTINGS[each.name], description, values) if each.name in SETTINGS else None


def _of_number(each: Difference, ours: View) -> FileCause | None:
    before, after = float(each.before), float(each.after)
    values = {"expected": f"{before:.5g}", "found": f"{after:.5g}", "offset": f"{after - before:+g}"}
    if before and after:
        values["factor"] = f"{after / before:.4g}"
    code = _number_code(each.own, ours, whole=not each.before.is_floating_point())
    return FileCause(code, describe_change(each), values) if code else None


def _number_code(node: ir.Node, view: View, *, whole: bool) -> str:
    """Return the cause that another number in a node is."""
    if whole:
        return {"TopK": "DX955"}.get(node.op_type, "")
    if node.op_type in QUANTISED:
        return "DX948"
    near = {neighbour.op_type for neighbour in (*view.users(node), *_makers(node, view))}
    if node.op_type in ("Mul", "Div") and "Tanh" in near and "Softmax" in _after(node, view):
        return "DX968"
    if node.op_type in ("Mul", "Div") and "Softmax" in _after(node, view):
        return "DX967"
    if node.op_type == "Add" and "ReduceMean" in near:
        return "DX975"
    if node.op_type in ("Mul", "Div") and "Gather" in near and "MatMul" not in view.ops:
        return "DX991"
    return "DX980" if view.ops & CURVES and "Softmax" not in view.ops else ""


def _makers(node: ir.Node, view: View) -> list[ir.Node]:
    producers = (view.reader.producer(value) for value in node.inputs)
    return [producer for producer in producers if producer is not None]


def _after(node: ir.Node, view: View) -> set[str]:
    """Return the operators that elementwise ones lead to from a node."""
    return {reached.op_type for reached in view.nodes_after(node, ELEMENTWISE | {"Where"})}


def _of_operators(moved: list[Difference], ours: View, theirs: View) -> FileCause | None:
    """Return what operators that are lost and new mean together."""
    lost = [change.own for change in moved if change.kind == "lost"]
    new = [change.own for change in moved if change.kind == "new"]
    gone, come = {node.op_type for node in lost}, {node.op_type for node in new}
    words = f"operators: {' '.join(sorted(gone)) or 'none'} lost, {' '.join(sorted(come)) or 'none'} new"
    rules: tuple[Callable[[], str], ...] = (
        lambda: "DX959" if come & CHANCE else "DX958" if "Dropout" in come else "",
        lambda: _masks(lost, new, ours),
        lambda: _precision(gone, come, new, theirs),
        lambda: _norms(lost, new, ours, theirs),
        lambda: _bends(gone, come, ours),
        lambda: _products(lost, new, ours, theirs),
        lambda: _sums(lost, new, ours, theirs),
        lambda: _orders(lost, new, theirs),
        lambda: _shifts(lost, new, theirs),
    )
    code = next((rule_code for rule in rules if (rule_code := rule())), "")
    return FileCause(code, words) if code else None


def _masks(lost: list[ir.Node], new: list[ir.Node], ours: View) -> str:
    hides = lost and not new and all(node.op_type in ("Add", "Where") for node in lost)
    return "DX969" if hides and all("Softmax" in _after(node, ours) for node in lost) else ""


def _precision(gone: set[str], come: set[str], new: list[ir.Node], theirs: View) -> str:
    if not gone and come == {"Clip"}:
        return "DX947"
    if gone or not come or come - {"Cast", "Max", "Min", "Clip"} or "Softmax" not in theirs.ops:
        return ""
    near = {neighbour.op_type for node in new for neighbour in (*theirs.users(node), *_makers(node, theirs))}
    return "DX974" if "Softmax" in near and "Cast" in come else ""


def _norms(lost: list[ir.Node], new: list[ir.Node], ours: View, theirs: View) -> str:
    norms = "ReduceMean" in ours.ops or ours.ops & NORMS
    if not norms or {"MatMul", "Gemm", "Softmax"} & ours.ops:
        return ""
    centred = [bool({"Sub", "LayerNormalization"} & view.ops) for view in (ours, theirs)]
    if centred[0] != centred[1]:
        return "DX978"
    both = ours.reader.with_constant(lost[0]) if len(lost) == 1 and not new else None
    if both is not None and ours.reader.vector(both[1]) is not None and lost[0].op_type in ("Mul", "Add"):
        return {"Mul": "DX976", "Add": "DX987"}[lost[0].op_type]
    return ""


def _bends(gone: set[str], come: set[str], ours: View) -> str:
    curved = (gone | come) & CURVES or (ours.ops & CURVES and come == {"Mul"} and not gone)
    plain = not {"MatMul", "Softmax", "ReduceMean"} & (gone | come)
    return "DX980" if curved and plain and gone | come <= BENT and "Softmax" not in ours.ops else ""


def _products(lost: list[ir.Node], new: list[ir.Node], ours: View, theirs: View) -> str:
    """Return what became of a matrix product, an embedding or heads."""
    both = [*lost, *new]
    if len(both) != 1:
        return ""
    node, view = both[0], ours if lost else theirs
    with_constant = view.reader.with_constant(node)
    row = with_constant is not None and view.reader.vector(with_constant[1]) is not None
    number = view.reader.scalar(with_constant[1]) if with_constant else None
    before = {producer.op_type for producer in _makers(node, view)}
    if node.op_type == "Add" and row and before & {"MatMul", "Gemm", "Reshape"}:
        return "DX987" if lost else "DX989"
    if node.op_type in ("Mul", "Div") and number is not None:
        if "Softmax" in _after(node, view):
            return "DX967"
        looked_up = "Gather" in view.ops and not {"MatMul", "Gemm"} & view.ops
        return "DX991" if looked_up else "DX948" if "MatMul" in before else ""
    if node.op_type == "Transpose" and {user.op_type for user in view.users(node)} & {"MatMul", "Gemm"}:
        return "DX982" if "Softmax" not in view.ops else ""
    return ""


def _orders(lost: list[ir.Node], new: list[ir.Node], theirs: View) -> str:
    """Return what gathers are that put numbers or heads of an attention in another order."""
    if lost or not new or "Softmax" not in theirs.all_ops or any(node.op_type != "Gather" for node in new):
        return ""
    orders = [next((array for array in theirs.constants(node) if array is not None), None) for node in new]
    axes = {int(settings_of(node).get("axis", 0)) for node in new}
    rows = [order.reshape(-1) for order in orders if order is not None]
    if len(rows) != len(new) or len(axes) != 1:
        return ""
    if axes <= {-1, 3}:
        half = len(rows[0]) // 2
        pairs = torch.cat((torch.arange(0, 2 * half, 2), torch.arange(1, 2 * half, 2)))
        return "DX961" if any(torch.equal(row, pairs) for row in rows) else ""
    return "DX972" if len(rows) > 1 else "DX973"


def _shifts(lost: list[ir.Node], new: list[ir.Node], theirs: View) -> str:
    """Return what a whole number is that is added to positions or tokens before they are looked up."""
    if lost or len(new) != 1 or new[0].op_type not in ("Add", "Sub"):
        return ""
    source = new[0].inputs[0]
    if source is None or not any(
        constant is not None and not constant.is_floating_point() for constant in theirs.constants(new[0])
    ):
        return ""
    return "DX965" if "position" in str(source.name) else "DX993" if "Gather" in theirs.ops else ""


def _sums(lost: list[ir.Node], new: list[ir.Node], ours: View, theirs: View) -> str:
    both = [*lost, *new]
    if len(both) != 1 or both[0].op_type != "Add" or both[0].inputs[0] is None:
        return ""
    view = ours if lost else theirs
    data = all(map(view.reader.is_data, both[0].inputs))
    return ("DX994" if lost else "DX995") if data and "Softmax" not in _after(both[0], view) else ""
