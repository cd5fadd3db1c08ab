"""What is wrong inside an ONNX graph whatever the profile: invalid nodes, shapes and types that do not fit.

The `onnx` package infers shapes and types on a copy without weights. ONNX forbids more than TensorRT does: only
what the parser or the builder of TensorRT-RTX 1.7.1 was seen to refuse, or to get wrong in silence, is told here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import BrokenExtraError, InputError, MissingExtraError
from trtdx.formats.onnx.graph_summary import STANDARD_DOMAINS
from trtdx.formats.onnx.shape_inference import (
    ShapesUnknownError,
    open_without_weights,
    parse_inference_error,
    shape_inference_error,
)
from trtdx.formats.onnx.untrusted import find_unusable_part
from trtdx.formats.protobuf_wire import WireError, WireLimitError
from trtdx.inspect.facts.artifact import Fact
from trtdx.inspect.readers.onnx.onnx_file import NEWEST_OPSET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact

UNCHECKED = (
    MissingExtraError, BrokenExtraError, InputError, OSError, WireError, WireLimitError, ShapesUnknownError,
)  # fmt: skip
NOT_CHECKED = "the types and shapes inside the graph were not checked"
MAX_LISTED_FAULTS = 50
MAX_NODES = 100_000
# Faults the reader has found already; what inference would say of them is only their consequence.
KNOWN_FAULT_FACTS = (
    "onnx.truncated", "onnx.corrupt", "onnx.empty", "onnx.dangling", "onnx.duplicate_names", "weights.lfs_pointers",
)  # fmt: skip
# Operators that TensorRT refuses when a required attribute, or (the second set) an input, is missing.
NEED_ATTRIBUTES = {
    "AveragePool", "Cast", "Concat", "DepthToSpace", "Einsum", "If", "LRN", "Loop", "MaxPool", "Pad", "Scan", "Slice",
    "SpaceToDepth", "TopK", "Unsqueeze",
}  # fmt: skip
NEED_INPUTS = {"Pad", "Slice", "TopK"}
# What became an input with opset 13; in the other form TensorRT goes on without it.
INPUT_SINCE_13 = {"Squeeze": "axes", "Split": "split"}
# Operators whose failed shape inference is a failed build; Split and Tile, say, are not among them.
SHAPE_FAILURE_OPERATORS = {
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "Min", "Max", "Sum", "Mean", "Where", "MatMul", "Gemm", "BatchNormalization", "Concat", "Conv",
    "Einsum", "Expand", "Flatten", "Gather", "Pad", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "Reshape",
    "Softmax", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
# Its reasons that are a contradiction; others say that something is unknown, such as a constant kept elsewhere.
CONTRADICTION = re.compile(
    r"Incompatible dimensions|Dimension mismatch|Can't merge shape info|All inputs to Concat must have same rank"
    r"|Number of spatial dimensions|Rank of input|expected to have rank|Invalid value\(|axis'? must be in"
    r"|Unexpected axis value|Pads has incorrect number|incompatible shapes|may not have multiple -1"
    r"|must be 1 instead of|Invalid attribute perm|Attribute perm for Transpose"
)
# Operators that take one type; Pow and Clip are converted by the parser.
SINGLE_TYPE_OPERATORS = {
    "Add", "Sub", "Mul", "Div", "Min", "Max", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where",
    "Concat", "MatMul", "Gemm", "Conv", "Einsum", "LayerNormalization", "PRelu",
}  # fmt: skip
COMPARED_DTYPES = {
    1: "float32",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float32",
    16: "bfloat16",
}


def check_graph(host: Host, onnx: Artifact) -> Artifact:
    """Return an ONNX artifact with the faults inside its graph, or with a note why nobody looked for them."""
    if any(onnx.has(name) for name in KNOWN_FAULT_FACTS) or not onnx.get("onnx.nodes"):
        return onnx
    opsets = onnx.table("onnx.opset")
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    if not 0 < opset <= NEWEST_OPSET:
        return onnx
    try:
        faults = dict(graph_faults(*_weightless_model(host, onnx.path, opset), opset))
    except UNCHECKED as err:
        return with_note(onnx, f"{NOT_CHECKED}: {unchecked_reason(err)}")
    facts = {name: Fact(problems[:MAX_LISTED_FAULTS], f"{onnx.path}: graph.node") for name, problems in faults.items()}
    return msgspec.structs.replace(onnx, facts=onnx.facts | facts) if facts else onnx


def unchecked_reason(err: BaseException) -> str:
    """Return in words why nobody looked into a graph."""
    if isinstance(err, (MissingExtraError, BrokenExtraError)):
        return f"{err.message} ({err.fix})"
    return str(err) or "the graph is too large"


def with_note(artifact: Artifact, note: str) -> Artifact:
    return msgspec.structs.replace(artifact, unread=(*artifact.unread, note))


def _weightless_model(host: Host, path: str, opset: int) -> tuple[Any, Any]:
    package, model = open_without_weights(host, path)
    if len(model.graph.node) > MAX_NODES:
        raise WireLimitError
    if problem := find_unusable_part(model):
        raise ShapesUnknownError(f"it {problem}")
    newest = package.defs.onnx_opset_version()
    if opset > newest:
        raise ShapesUnknownError(
            f"this onnx package knows opsets up to {newest}, the model has {opset} (pip install -U onnx)"
        )
    return package, model


def graph_faults(package: Any, model: Any, opset: int) -> Iterator[tuple[str, list[str]]]:
    """Yield facts about what is wrong inside; nodes that are invalid themselves hide what follows from them."""
    nodes = [(node, _operator_schema(package, node, opset)) for node in _onnx_nodes(model)]
    invalid = [problem for node, schema in nodes for problem in _invalid_node_problems(node, schema, opset)]
    ignored = [problem for node, schema in nodes for problem in _ignored_form_problems(node, schema, opset)]
    if ignored:
        yield "onnx.ignored", ignored
    if invalid:
        yield "onnx.invalid_nodes", invalid
    if ignored or invalid:
        return
    unmet = parse_inference_error(shape_inference_error(package, model))
    if unmet and unmet["operator"] in SHAPE_FAILURE_OPERATORS and CONTRADICTION.search(unmet["why"]):
        node = f"the {unmet['operator']} node {unmet['node']}".rstrip()
        yield "onnx.unmet", [f"the inputs of {node} do not fit together ({unmet['why'].rstrip('.')})"]
    mixed = list(_mixed_type_nodes(package, model, opset))
    if mixed:
        yield "onnx.mixed_types", mixed


def _onnx_nodes(model: Any) -> Iterator[Any]:
    """Yield the nodes of the graph itself that are ONNX's own; a branch that is never taken may be invalid."""
    functions = {(function.domain, function.name) for function in model.functions}
    for node in model.graph.node:
        if node.domain in STANDARD_DOMAINS and (node.domain, node.op_type) not in functions:
            yield node


def _operator_schema(package: Any, node: Any, opset: int) -> Any:
    """Return what an operator is like in an opset, None for one that it does not have."""
    if not package.defs.has(node.op_type):
        return None
    try:
        return package.defs.get_schema(node.op_type, opset)
    except Exception:  # onnx's own SchemaError: a newer operator, which TensorRT imports nevertheless
        return None


def _invalid_node_problems(node: Any, schema: Any, opset: int) -> Iterator[str]:
    if schema is None:
        return
    has = {attribute.name for attribute in node.attribute}
    input_count = len([name for name in node.input if name])
    if node.op_type in NEED_ATTRIBUTES:
        for name, attribute in schema.attributes.items():
            if attribute.required and name not in has:
                yield f"the {_node_label(node)} has no attribute {name}, which opset {opset} requires"
    if node.op_type in NEED_INPUTS and input_count < schema.min_input:
        yield f"the {_node_label(node)} has {input_count} of the {schema.min_input} inputs that opset {opset} requires"


def _ignored_form_problems(node: Any, schema: Any, opset: int) -> Iterator[str]:
    moved = INPUT_SINCE_13.get(node.op_type)
    if schema is None or moved is None:
        return
    is_attribute = any(attribute.name == moved for attribute in node.attribute)
    input_count = len([name for name in node.input if name])
    if is_attribute and moved not in schema.attributes:
        yield f"the {_node_label(node)} has {moved} as an attribute, which is an input in opset {opset}"
    elif not is_attribute and moved in schema.attributes and input_count > schema.max_input:
        yield f"the {_node_label(node)} has {moved} as an input, which is an attribute in opset {opset}"


def _node_label(node: Any) -> str:
    output = node.output[0] if node.output else "?"
    return f"{node.op_type} node {node.name}" if node.name else f"{node.op_type} node that makes {output}"


def _mixed_type_nodes(package: Any, model: Any, opset: int) -> Iterator[str]:
    """Yield the nodes that combine different types."""
    types = _inferred_types(package, model)
    for node in _onnx_nodes(model):
        schema = _operator_schema(package, node, opset) if node.op_type in SINGLE_TYPE_OPERATORS else None
        if schema is None:
            continue
        by_group: dict[str, dict[str, str]] = {}
        for position, name in enumerate(node.input):
            formal = schema.inputs[min(position, len(schema.inputs) - 1)]
            dtype = COMPARED_DTYPES.get(types.get(name, 0))
            if dtype:
                by_group.setdefault(formal.type_str, {}).setdefault(dtype, name)
        for names_by_dtype in by_group.values():
            if len(names_by_dtype) > 1:
                pairs = " and ".join(f"{dtype} ({name})" for dtype, name in names_by_dtype.items())
                yield f"the {_node_label(node)} combines {pairs}"


def _inferred_types(package: Any, model: Any) -> dict[str, int]:
    """Return the type of each tensor that inference knows."""
    try:
        graph = package.shape_inference.infer_shapes(model).graph
    except Exception:  # what C++ throws; types stay unknown
        return {}
    values = (*graph.input, *graph.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values if value.type.HasField("tensor_type")}
    return {**types, **{initializer.name: initializer.data_type for initializer in graph.initializer}}
