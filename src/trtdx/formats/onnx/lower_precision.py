"""A float32 ONNX graph in a lower precision, all but some of its operations, with the casts in place.

    model = convert(open_model("model.onnx"), "float16", keep={"pow_3", "mean_3"})

Every operation computes in one type, and every tensor has the type of the operation it comes from; where the two
differ there is a Cast, one for each tensor. That is what a strongly typed network wants. Which types an operation
takes is told by ONNX's own schemas; those that have no lower one stay. What is fed and what comes back stays as it is.
An operation is called by the first tensor it makes, which is one name in a graph; the node's own name will do, too.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import UnknownNameError
from trtdx.formats.onnx.edit import (
    add_constant,
    drop_unused_weights,
    import_onnx_ir,
    iter_body_nodes,
    may_be_tensor,
)
from trtdx.formats.onnx.graph_summary import STANDARD_DOMAINS
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np
    import onnx_ir as ir

    Array = np.ndarray[Any, Any]

LOWER_DTYPES = {"float16": "FLOAT16", "bfloat16": "BFLOAT16"}
OPSET = 20
PURPOSE = "convert ONNX models"
# Their result's type is an attribute, or they carry types that one cast does not reach.
_UNCONVERTED_OPERATORS = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "EyeLike", "Bernoulli", "Multinomial",
    "BitCast", "MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow",
}  # fmt: skip
_STASH_TYPE_OPERATORS = ("LayerNormalization",)  # all results but the first are in the type it adds up in
_CONTAINER_OPERATORS = ("Sequence", "Optional", "String")


class LowerableTensors(NamedTuple):
    """In which type each input and output of an operation may be computed: True where the lower one will do."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def convert_precision(model: ir.Model, dtype: str, keep: Collection[str] = ()) -> ir.Model:
    """Return a model in a lower precision.

    Args:
        model: the float32 model, as `open_model` gives it; it stays as it is.
        dtype: "float16" or "bfloat16".
        keep: the operations that stay in float32.

    Raises:
        InputError: there is no such type or operation.
    """
    if dtype not in LOWER_DTYPES:
        raise UnknownNameError("type to convert to", dtype, LOWER_DTYPES)
    converted = lift_constants(model)
    known_operations = {name for node in converted.graph for name in (operation_name(node), node.name) if name}
    for name in keep:
        if name not in known_operations:
            raise UnknownNameError("operation of the graph", name, known_operations)
    converted.graph.opset_imports.setdefault("", OPSET)  # a graph of other domains alone has none for Cast
    PrecisionConverter(converted, dtype, set(keep)).convert()
    return converted


def lift_constants(model: ir.Model) -> ir.Model:
    """Return a copy of a model with its constants among the weights, where they can be converted once."""
    passes = import_optional("onnx_ir.passes.common", extra="onnx", purpose=PURPOSE)
    lifted_model: ir.Model = passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(
        model.clone()
    ).model
    return lifted_model


def operation_name(node: ir.Node) -> str:
    """Return what an operation is called here."""
    return next((str(value.name) for value in node.outputs if value.name), node.name or "")


def list_lowerable_operations(model: ir.Model, dtype: str) -> list[str]:
    """Return the operations that would be computed in a lower precision, in their order."""
    low = getattr(import_onnx_ir().DataType, LOWER_DTYPES[dtype])
    return [operation_name(node) for node in lift_constants(model).graph if any(map(any, lowerable_tensors(node, low)))]


def is_float(value: ir.Value | None) -> bool:
    if value is None or value.dtype is None:
        return False
    return value.dtype.name == "FLOAT" and may_be_tensor(value)


def lowerable_tensors(node: ir.Node, low: Any) -> LowerableTensors:
    """Return which of an operation's tensors may be of a lower type; only those of float32 count."""
    nothing = LowerableTensors((False,) * len(node.inputs), (False,) * len(node.outputs))
    bodies = any(attribute.type.name in ("GRAPH", "GRAPHS") for attribute in node.attributes.values())
    odd = node.op_type in _UNCONVERTED_OPERATORS or any(word in node.op_type for word in _CONTAINER_OPERATORS)
    if bodies or odd or node.domain not in STANDARD_DOMAINS:
        return nothing
    formal = _types_allowed_by_schema(
        node.op_type, node.domain, node.version or _node_opset(node), f"tensor({low.name.lower()})"
    )
    if formal is None:
        return nothing
    ins, outs = formal
    outs = [outs[0], False] if node.op_type in _STASH_TYPE_OPERATORS else outs
    return LowerableTensors(
        tuple(is_float(value) and ins[min(at, len(ins) - 1)] for at, value in enumerate(node.inputs)),
        tuple(is_float(value) and outs[min(at, len(outs) - 1)] for at, value in enumerate(node.outputs)),
    )


def _node_opset(node: ir.Node) -> int:
    return int(getattr(node.graph, "opset_imports", {}).get(node.domain, 1))


@cache
def _types_allowed_by_schema(op: str, domain: str, opset: int, low: str) -> tuple[list[bool], list[bool]] | None:
    """Return for each input and output of an operator whether a type is allowed there; the last stands for more."""
    defs = import_optional("onnx", extra="onnx", purpose=PURPOSE).defs
    try:
        schema = defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None
    allowed = {rule.type_param_str: low in rule.allowed_type_strs for rule in schema.type_constraints}
    ins = [allowed.get(parameter.type_str, False) for parameter in schema.inputs]
    outs = [allowed.get(parameter.type_str, False) for parameter in schema.outputs]
    return ins or [False], outs or [False]


class PrecisionConverter:
    """Converts one model in place."""

    def __init__(self, model: ir.Model, dtype: str, keep: set[str]) -> None:
        self.ir = import_onnx_ir()
        self.model, self.graph, self.dtype, self.keep = model, model.graph, dtype, keep
        self.full = self.ir.DataType.FLOAT
        self.low = getattr(self.ir.DataType, LOWER_DTYPES[dtype])
        self._converted: dict[tuple[ir.Value, Any], ir.Value] = {}
        outputs = [value for node in model.graph for value in node.outputs]
        self._names = {value.name for value in outputs} | set(model.graph.initializers)
        values = (*model.graph.inputs, *model.graph.initializers.values(), *outputs)
        self._floats = {value for value in values if is_float(value)}

    def convert(self) -> None:
        for node in list(self.graph):
            self._convert_node(node)
        for at, value in enumerate(list(self.graph.outputs)):
            if value in self._floats and value.dtype is not self.full:
                self.graph.outputs[at] = self._restore_output(value)
        drop_unused_weights(self.graph)

    def _convert_node(self, node: ir.Node) -> None:
        is_kept = operation_name(node) in self.keep or (node.name or "") in self.keep
        fits = lowerable_tensors_as_float32(self._floats, node, self.low)
        for at, value in enumerate(node.inputs):
            if value is not None and value in self._floats:
                target = self.low if fits.inputs[at] and not is_kept else self.full
                node.replace_input_with(at, self.as_type(value, target))
        self._convert_bodies(node)
        for at, value in enumerate(node.outputs):
            if value in self._floats and fits.outputs[at] and not is_kept:
                value.type = self.ir.TensorType(self.low)
                self.set_type_attribute(node)

    def set_type_attribute(self, node: ir.Node) -> None:
        """Put the lower type where an operation tells its result's type itself."""
        for name in ("to", "output_dtype"):
            attribute = node.attributes.get(name)
            if attribute is not None and attribute.value == self.full.value:
                node.attributes[name] = self.ir.AttrInt64(name, self.low.value)
        attribute = node.attributes.get("value")
        if node.op_type == "ConstantOfShape":
            import numpy as np

            array = attribute.as_tensor().numpy() if attribute is not None else np.zeros(1, np.float32)
            tensor = self.ir.tensor(round_to_dtype(array, self.dtype), dtype=self.low)
            node.attributes["value"] = self.ir.AttrTensor("value", tensor)

    def _convert_bodies(self, node: ir.Node) -> None:
        """Give the bodies of If, Loop and Scan what they read from outside in float32."""
        for inner in iter_body_nodes(node):
            for at, value in enumerate(inner.inputs):
                if value in self._floats:
                    inner.replace_input_with(at, self.as_type(value, self.full))

    def as_type(self, value: ir.Value, target: Any) -> ir.Value:
        """Return a tensor in a type: itself, a converted weight, or what a Cast makes of it."""
        if value.dtype is target:
            return value
        key = value, target
        if key not in self._converted:
            weight = value.const_value if value.is_initializer() and not value.is_graph_input() else None
            self._converted[key] = (
                self._insert_cast(value, target) if weight is None else self._convert_weight(value, weight, target)
            )
        return self._converted[key]

    def _convert_weight(self, value: ir.Value, weight: Any, target: Any) -> ir.Value:
        array = round_to_dtype(weight.numpy(), self.dtype)
        name = self.unique_name(f"{value.name}_{self.dtype}")
        return add_constant(self.graph, name, array, target)

    def _insert_cast(self, value: ir.Value, target: Any, name: str = "") -> ir.Value:
        word = "float32" if target is self.full else self.dtype
        name = name or self.unique_name(f"{value.name}_to_{word}")
        result: ir.Value = self.ir.Value(name=name, shape=value.shape, type=self.ir.TensorType(target))
        to = [self.ir.AttrInt64("to", target.value)]
        node = self.ir.Node("", "Cast", [value], to, outputs=[result], name=f"cast_{name}")
        before = value.producer()
        if before is not None:
            self.graph.insert_after(before, node)
        else:
            self.graph.insert_before(self.graph[0], node)
        return result

    def _restore_output(self, value: ir.Value) -> ir.Value:
        """Return a result in the type the model had it in, and under its name."""
        name = str(value.name)
        value.name = self.unique_name(f"{name}_{self.dtype}")
        return self._insert_cast(value, self.full, name)

    def unique_name(self, stem: str) -> str:
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name


def lowerable_tensors_as_float32(floats: Collection[ir.Value], node: ir.Node, low: Any) -> LowerableTensors:
    """Return which of an operation's tensors may be lower, where those before it may have been lowered already."""
    full = import_onnx_ir().DataType.FLOAT
    changed = [value for value in node.inputs if value is not None and value in floats and value.dtype is not full]
    before = [(value, value.type) for value in dict.fromkeys(changed)]
    for value, _ in before:
        value.type = import_onnx_ir().TensorType(full)
    try:
        return lowerable_tensors(node, low)
    finally:
        for value, kind in before:
            value.type = kind


def round_to_dtype(array: Array, dtype: str) -> Array:
    """Return an array in a lower type; what would overflow stays finite, and a lone number does not become 0."""
    import ml_dtypes
    import numpy as np

    kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    finfo: Any = ml_dtypes.finfo  # which has no types
    limits = finfo(kind)
    largest, least = float(limits.max), float(limits.smallest_subnormal)
    clipped = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
    if clipped.size == 1:  # an epsilon
        clipped = np.where((clipped != 0) & (np.abs(clipped) < least), np.copysign(least, clipped), clipped)
    return np.asarray(clipped.astype(kind))
