"""ONNX graphs changed in memory and saved: constants added, nodes inserted, unused weights and metadata removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    import onnx_ir as ir

MAX_EMBEDDED_BYTES = 1 << 30  # of weights in the file itself; beyond, they lie beside it


def import_onnx_ir() -> Any:
    return import_optional("onnx_ir", extra="onnx", purpose="read and change ONNX graphs")


def may_be_tensor(value: ir.Value) -> bool:
    """Whether a value is not known to be something else: a sequence, a map."""
    return value.type is None or type(value.type).__name__ == "TensorType"


def add_constant(graph: ir.Graph, name: str, array: Any, dtype: Any = None) -> ir.Value:
    """Add a weight to a graph and return its value."""
    import numpy as np

    graphs = import_onnx_ir()
    tensor = graphs.tensor(np.asarray(array), dtype=dtype, name=name)
    value: ir.Value = graphs.Value(
        name=name, shape=tensor.shape, type=graphs.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def insert_node(
    graph: ir.Graph,
    before: ir.Node,
    operator: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    *,
    dtype: Any = None,
    shape: ir.Shape | None = None,
    attributes: Sequence[ir.Attr] = (),
) -> ir.Value:
    """Insert a node before another and return the value it makes, which is float32 unless told."""
    graphs = import_onnx_ir()
    result: ir.Value = graphs.Value(name=name, shape=shape, type=graphs.TensorType(dtype or graphs.DataType.FLOAT))
    node = graphs.Node("", operator, inputs, attributes, outputs=[result], name=f"{operator}_{name}")
    graph.insert_before(before, node)
    return result


def iter_body_nodes(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes inside the bodies of an If, Loop or Scan, and inside those of nodes in them."""
    for attribute in node.attributes.values():
        kind = attribute.type.name
        bodies = [attribute.as_graph()] if kind == "GRAPH" else attribute.as_graphs() if kind == "GRAPHS" else ()
        for body in bodies:
            yield from import_onnx_ir().traversal.RecursiveGraphIterator(body)


def drop_unused_weights(graph: ir.Graph) -> None:
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def remove_metadata(model: ir.Model, keep: Collection[str] = ()) -> None:
    """Take out of a model what tells about the machine it was made on: traces, paths, documentation."""
    nodes = [*model.graph]
    for holder in (
        model,
        model.graph,
        *nodes,
        *(value for node in nodes for value in node.outputs),
        *model.graph.inputs,
    ):
        holder.doc_string = None
        for key in [key for key in holder.metadata_props if key not in keep]:
            del holder.metadata_props[key]


def save_model(model: ir.Model, file: Path) -> None:
    """Write a model with all its weights: in the file, or in one beside it where they are many."""
    graphs = import_onnx_ir()
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and isinstance(tensor, graphs.ExternalTensor):
            value.const_value = graphs.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
    weights = (value.const_value for value in model.graph.initializers.values())
    size = sum(weight.nbytes for weight in weights if weight is not None)
    try:
        graphs.save(model, file, external_data=f"{file.name}.data" if size > MAX_EMBEDDED_BYTES else None)
    except OSError as err:
        file.unlink(missing_ok=True)  # half a model is none
        raise InputError(f"cannot write {file}: {err.strerror or err}") from err
