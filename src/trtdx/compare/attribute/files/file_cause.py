"""Which mistake a difference between two files amounts to: evidence beside what trying out mistakes shows.

A file tells what differs, not what that does. So a cause is named from it only where what differs is one thing of a
known kind; and where mistakes were tried out too, the files only agree, or tell apart what explains as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.attribute.files.constant_causes import FileCause, cause_of_weight
from trtdx.compare.attribute.files.graph_diff import (
    GraphChange,
    GraphModule,
    describe_change,
    describe_changes,
    diff_graphs,
)
from trtdx.compare.attribute.twin.graph_reader import NORM_OPERATORS
from trtdx.compare.attribute.twin.operators import node_settings
from trtdx.compare.attribute.twin.subgraph_patterns import ACTIVATION_OPERATORS, ELEMENTWISE_OPERATORS
from trtdx.engines.torch.lazy_import import torch
from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

RANDOM_OPERATORS = {
    "RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Bernoulli", "Multinomial",
}  # fmt: skip
ACTIVATION_OPERATORS = ACTIVATION_OPERATORS | {
    "Pow",
    "Exp",
    "Mul",
    "Add",
    "Div",
    "Sqrt",
    "Clip",
    "Max",
    "Min",
}
QUANTISED_OPERATORS = {
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "MatMulNBits",
}
CODES_BY_ATTRIBUTE = {
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
        modules = GraphModule(reference, scope), GraphModule(candidate, scope)
        changes = diff_graphs(*modules)
        return describe_changes(changes) if scope else [], _cause_of_changes(changes, *modules) if changes else None
    except TrtdxError:
        return [], None


def _cause_of_changes(changes: list[GraphChange], reference: GraphModule, candidate: GraphModule) -> FileCause | None:
    if not reference.scope:
        _narrow_to_changes(changes, reference, candidate)
    moved = [change for change in changes if change.kind in ("lost", "new")]
    if moved:
        return _cause_of_operators(moved, reference, candidate)
    causes = [cause for change in changes if (cause := _cause_of_change(change, reference)) is not None]
    codes = {cause.code for cause in causes}
    return causes[0] if len(codes) == 1 and len(causes) == len(changes) else None


def _narrow_to_changes(changes: list[GraphChange], reference: GraphModule, candidate: GraphModule) -> None:
    """Look only at nodes near the differences; if all of those are new, at old nodes near them in the candidate."""
    reference_nodes = reference.nodes_near(change.node for change in changes if change.kind != "new")
    other = candidate.nodes_near(change.candidate_node for change in changes if change.kind != "lost")
    new = {id(change.node) for change in changes if change.kind == "new"}
    old = [node for node in other if id(node) not in new]
    reference.ops = {node.op_type for node in reference_nodes or old}
    candidate.ops = {node.op_type for node in other or reference_nodes}


def _cause_of_change(change: GraphChange, reference: GraphModule) -> FileCause | None:
    if change.kind == "setting":
        return _cause_of_attribute(change)
    if change.before.numel() == change.after.numel() == 1:
        return _cause_of_scalar(change, reference)
    return cause_of_weight(change, reference)


def _cause_of_attribute(change: GraphChange) -> FileCause | None:
    description = describe_change(change)
    values = {"expected": str(change.before), "found": str(change.after)}
    if change.attribute == "perm" and change.before and len(change.before) == 2:
        return FileCause("DX982", description, values)
    return (
        FileCause(CODES_BY_ATTRIBUTE[change.attribute], description, values)
        if change.attribute in CODES_BY_ATTRIBUTE
        else None
    )


def _cause_of_scalar(change: GraphChange, reference: GraphModule) -> FileCause | None:
    before, after = float(change.before), float(change.after)
    values = {"expected": f"{before:.5g}", "found": f"{after:.5g}", "offset": f"{after - before:+g}"}
    if before and after:
        values["factor"] = f"{after / before:.4g}"
    code = _scalar_code(change.node, reference, is_integer=not change.before.is_floating_point())
    return FileCause(code, describe_change(change), values) if code else None


def _scalar_code(node: ir.Node, view: GraphModule, *, is_integer: bool) -> str:
    """Return the cause that a changed number in a node indicates."""
    if is_integer:
        return {"TopK": "DX955"}.get(node.op_type, "")
    if node.op_type in QUANTISED_OPERATORS:
        return "DX948"
    near = {neighbour.op_type for neighbour in (*view.users(node), *_producers_of(node, view))}
    if node.op_type in ("Mul", "Div") and "Tanh" in near and "Softmax" in _operators_after(node, view):
        return "DX968"
    if node.op_type in ("Mul", "Div") and "Softmax" in _operators_after(node, view):
        return "DX967"
    if node.op_type == "Add" and "ReduceMean" in near:
        return "DX975"
    if node.op_type in ("Mul", "Div") and "Gather" in near and "MatMul" not in view.ops:
        return "DX991"
    return "DX980" if view.ops & ACTIVATION_OPERATORS and "Softmax" not in view.ops else ""


def _producers_of(node: ir.Node, view: GraphModule) -> list[ir.Node]:
    producers = (view.reader.producer(value) for value in node.inputs)
    return [producer for producer in producers if producer is not None]


def _operators_after(node: ir.Node, view: GraphModule) -> set[str]:
    """Return the operators reached from a node through elementwise ones."""
    return {reached.op_type for reached in view.nodes_after(node, ELEMENTWISE_OPERATORS | {"Where"})}


def _cause_of_operators(moved: list[GraphChange], reference: GraphModule, candidate: GraphModule) -> FileCause | None:
    """Return the cause that removed and added operators indicate together."""
    lost = [change.node for change in moved if change.kind == "lost"]
    new = [change.node for change in moved if change.kind == "new"]
    gone, come = {node.op_type for node in lost}, {node.op_type for node in new}
    words = f"operators: {' '.join(sorted(gone)) or 'none'} lost, {' '.join(sorted(come)) or 'none'} new"
    rules: tuple[Callable[[], str], ...] = (
        lambda: "DX959" if come & RANDOM_OPERATORS else "DX958" if "Dropout" in come else "",
        lambda: _mask_code(lost, new, reference),
        lambda: _precision_code(gone, come, new, candidate),
        lambda: _norm_code(lost, new, reference, candidate),
        lambda: _activation_code(gone, come, reference),
        lambda: _product_code(lost, new, reference, candidate),
        lambda: _residual_sum_code(lost, new, reference, candidate),
        lambda: _order_code(lost, new, candidate),
        lambda: _index_shift_code(lost, new, candidate),
    )
    code = next((rule_code for rule in rules if (rule_code := rule())), "")
    return FileCause(code, words) if code else None


def _mask_code(lost: list[ir.Node], new: list[ir.Node], reference: GraphModule) -> str:
    hides = lost and not new and all(node.op_type in ("Add", "Where") for node in lost)
    return "DX969" if hides and all("Softmax" in _operators_after(node, reference) for node in lost) else ""


def _precision_code(
    lost_operators: set[str], new_operators: set[str], new: list[ir.Node], candidate: GraphModule
) -> str:
    if not lost_operators and new_operators == {"Clip"}:
        return "DX947"
    if (
        lost_operators
        or not new_operators
        or new_operators - {"Cast", "Max", "Min", "Clip"}
        or "Softmax" not in candidate.ops
    ):
        return ""
    near = {
        neighbour.op_type for node in new for neighbour in (*candidate.users(node), *_producers_of(node, candidate))
    }
    return "DX974" if "Softmax" in near and "Cast" in new_operators else ""


def _norm_code(lost: list[ir.Node], new: list[ir.Node], reference: GraphModule, candidate: GraphModule) -> str:
    norms = "ReduceMean" in reference.ops or reference.ops & NORM_OPERATORS
    if not norms or {"MatMul", "Gemm", "Softmax"} & reference.ops:
        return ""
    centred = [bool({"Sub", "LayerNormalization"} & view.ops) for view in (reference, candidate)]
    if centred[0] != centred[1]:
        return "DX978"
    both = reference.reader.split_constant(lost[0]) if len(lost) == 1 and not new else None
    if both is not None and reference.reader.vector(both[1]) is not None and lost[0].op_type in ("Mul", "Add"):
        return {"Mul": "DX976", "Add": "DX987"}[lost[0].op_type]
    return ""


def _activation_code(lost_operators: set[str], new_operators: set[str], reference: GraphModule) -> str:
    curved = (lost_operators | new_operators) & ACTIVATION_OPERATORS or (
        reference.ops & ACTIVATION_OPERATORS and new_operators == {"Mul"} and not lost_operators
    )
    plain = not {"MatMul", "Softmax", "ReduceMean"} & (lost_operators | new_operators)
    return (
        "DX980"
        if curved
        and plain
        and lost_operators | new_operators <= ACTIVATION_OPERATORS
        and "Softmax" not in reference.ops
        else ""
    )


def _product_code(lost: list[ir.Node], new: list[ir.Node], reference: GraphModule, candidate: GraphModule) -> str:
    """Return what became of a matrix product, an embedding or heads."""
    both = [*lost, *new]
    if len(both) != 1:
        return ""
    node, view = both[0], reference if lost else candidate
    with_constant = view.reader.split_constant(node)
    row = with_constant is not None and view.reader.vector(with_constant[1]) is not None
    number = view.reader.scalar(with_constant[1]) if with_constant else None
    before = {producer.op_type for producer in _producers_of(node, view)}
    if node.op_type == "Add" and row and before & {"MatMul", "Gemm", "Reshape"}:
        return "DX987" if lost else "DX989"
    if node.op_type in ("Mul", "Div") and number is not None:
        if "Softmax" in _operators_after(node, view):
            return "DX967"
        looked_up = "Gather" in view.ops and not {"MatMul", "Gemm"} & view.ops
        return "DX991" if looked_up else "DX948" if "MatMul" in before else ""
    if node.op_type == "Transpose" and {user.op_type for user in view.users(node)} & {"MatMul", "Gemm"}:
        return "DX982" if "Softmax" not in view.ops else ""
    return ""


def _order_code(lost: list[ir.Node], new: list[ir.Node], candidate: GraphModule) -> str:
    """Return the cause if Gather nodes permute the channels or heads of an attention."""
    if lost or not new or "Softmax" not in candidate.all_ops or any(node.op_type != "Gather" for node in new):
        return ""
    orders = [next((array for array in candidate.constants(node) if array is not None), None) for node in new]
    axes = {int(node_settings(node).get("axis", 0)) for node in new}
    rows = [order.reshape(-1) for order in orders if order is not None]
    if len(rows) != len(new) or len(axes) != 1:
        return ""
    if axes <= {-1, 3}:
        half = len(rows[0]) // 2
        pairs = torch.cat((torch.arange(0, 2 * half, 2), torch.arange(1, 2 * half, 2)))
        return "DX961" if any(torch.equal(row, pairs) for row in rows) else ""
    return "DX972" if len(rows) > 1 else "DX973"


def _index_shift_code(lost: list[ir.Node], new: list[ir.Node], candidate: GraphModule) -> str:
    """Return the cause if an integer is added to positions or token ids before the lookup."""
    if lost or len(new) != 1 or new[0].op_type not in ("Add", "Sub"):
        return ""
    source = new[0].inputs[0]
    if source is None or not any(
        constant is not None and not constant.is_floating_point() for constant in candidate.constants(new[0])
    ):
        return ""
    return "DX965" if "position" in str(source.name) else "DX993" if "Gather" in candidate.ops else ""


def _residual_sum_code(lost: list[ir.Node], new: list[ir.Node], reference: GraphModule, candidate: GraphModule) -> str:
    both = [*lost, *new]
    if len(both) != 1 or both[0].op_type != "Add" or both[0].inputs[0] is None:
        return ""
    view = reference if lost else candidate
    data = all(map(view.reader.is_data, both[0].inputs))
    return ("DX994" if lost else "DX995") if data and "Softmax" not in _operators_after(both[0], view) else ""
