"""Mistakes made in the graph of an exported model: constants, weights, operators and wires, found by module scope."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SCOPES = "pkg.torch.onnx.name_scopes"
_COUNT = [0]


def scope_of(node: Any) -> str:
    told = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    return told[-2] if len(told) > 1 else ""


def nodes_in(model: Any, scope: str, op: str = "") -> list[Any]:
    found = [node for node in model.graph if scope_of(node) == scope and op in ("", node.op_type)]
    if not found:
        raise LookupError(f"the graph has no {op or 'node'} in {scope}")
    return found


def constant(model: Any, array: Any, like: Any = None) -> Any:
    """Return a new initializer, of the type of another value where one is given."""
    array = np.asarray(array)
    if like is not None:
        array = array.astype(like.dtype.numpy())
    _COUNT[0] += 1
    name = f"zoo_{_COUNT[0]}"
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape(array.shape),
                     type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))  # fmt: skip
    model.graph.register_initializer(value)
    return value


def array_of(value: Any) -> Any:
    return value.const_value.numpy()


def is_constant(value: Any) -> bool:
    return value is not None and value.const_value is not None and value.is_initializer()


def after(
    model: Any,
    value: Any,
    op: str,
    more: Iterable[Any] = (),
    *,
    users: Any = None,
    near: Any = None,
    **attributes: Any,
) -> Any:
    """Put an operator on a value; all that read it (or the users given) read the result, which is returned.

    It is in the module of what made the value, or of the node `near`.
    """
    users = [(user, at) for user, at in value.uses() if users is None or user in users]
    _COUNT[0] += 1
    made = ir.node(op, [value, *more], attributes=attributes or None)
    made.outputs[0].name = f"zoo_out_{_COUNT[0]}"
    made.outputs[0].type, made.outputs[0].shape = value.type, value.shape
    anchor = value.producer() or users[0][0]
    made.metadata_props.update((near or anchor).metadata_props)
    if value.producer():
        model.graph.insert_after(anchor, made)
    else:
        model.graph.insert_before(anchor, made)
    for user, at in users:
        user.replace_input_with(at, made.outputs[0])
    if value in model.graph.outputs and users is None:
        raise LookupError("an output of the model is not renamed here")
    return made.outputs[0]


def with_constant(model: Any, node: Any, change: Callable[[Any], Any]) -> None:
    """Change the constant that a node reads, for this node alone."""
    for at, value in enumerate(node.inputs):
        if is_constant(value):
            node.replace_input_with(at, constant(model, change(array_of(value)), like=value))
            return
    raise LookupError(f"{node.op_type} reads no constant")


def linear(model: Any, scope: str, change: Callable[[Any], Any]) -> None:
    """Change the weight of a linear layer; the function gets it as torch has it, outputs first."""
    node = next(node for node in nodes_in(model, scope) if node.op_type in ("MatMul", "Gemm"))
    value = node.inputs[1]
    if not is_constant(value):  # transposed in the graph
        node, value = value.producer(), value.producer().inputs[0]
        at = 0
        changed = change(np.array(array_of(value)))
    else:
        at = 1
        changed = np.ascontiguousarray(change(np.array(array_of(value)).T).T)
    node.replace_input_with(at, constant(model, changed, like=value))


def linear_bias(model: Any, scope: str, factor: float) -> None:
    for node in nodes_in(model, scope):
        if node.op_type == "Gemm":
            node.replace_input_with(2, constant(model, array_of(node.inputs[2]) * factor, like=node.inputs[2]))
            return
        if node.op_type == "Add":
            with_constant(model, node, lambda bias: bias * factor)
            return
    raise LookupError(f"{scope} has no bias")


def swapped(model: Any, first: str, second: str) -> None:
    one, other = (nodes_in(model, scope, "MatMul")[0] for scope in (first, second))
    kept = one.inputs[1]
    one.replace_input_with(1, other.inputs[1])
    other.replace_input_with(1, kept)


def epsilon(model: Any, scope: str, value: float) -> None:
    for node in nodes_in(model, scope):
        if node.op_type == "LayerNormalization":
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", value)
            return
        if node.op_type == "Add" and any(is_constant(each) and array_of(each).size == 1 for each in node.inputs):
            with_constant(model, node, lambda old: np.full_like(old, value))
            return
    raise LookupError(f"{scope} has no epsilon")


def norm_weight(model: Any, scope: str, change: Callable[[Any], Any]) -> None:
    for node in nodes_in(model, scope):
        if node.op_type == "LayerNormalization":
            node.replace_input_with(1, constant(model, change(array_of(node.inputs[1])), like=node.inputs[1]))
            return
        if node.op_type == "Mul" and any(is_constant(each) and array_of(each).size > 1 for each in node.inputs):
            with_constant(model, node, change)
            return
    raise LookupError(f"{scope} has no weight")


def norm_bias(model: Any, scope: str) -> None:
    node = nodes_in(model, scope, "LayerNormalization")[0]
    node.replace_input_with(2, constant(model, np.zeros_like(array_of(node.inputs[2])), like=node.inputs[2]))


def no_mean_taken(model: Any, scope: str) -> None:
    """LayerNorm becomes RMS norm: written with the operators there are."""
    node = nodes_in(model, scope, "LayerNormalization")[0]
    x, weight, bias = node.inputs
    epsilon_ = node.attributes["epsilon"].value
    made = [ir.node("Mul", [x, x])]
    made.append(ir.node("ReduceMean", [made[-1].outputs[0], constant(model, np.array([-1]))]))
    made.append(ir.node("Add", [made[-1].outputs[0], constant(model, np.float32(epsilon_), like=weight)]))
    made.append(ir.node("Sqrt", [made[-1].outputs[0]]))
    made.append(ir.node("Div", [x, made[-1].outputs[0]]))
    made.append(ir.node("Mul", [made[-1].outputs[0], weight]))
    made.append(ir.node("Add", [made[-1].outputs[0], bias]))
    in_place_of(model, node, made)


def mean_taken(model: Any, scope: str) -> None:
    """RMS norm becomes LayerNorm without bias: the mean is taken away before."""
    nodes = nodes_in(model, scope)
    x = nodes[0].inputs[0]
    mean = ir.node("ReduceMean", [x, constant(model, np.array([-1]))])
    less = ir.node("Sub", [x, mean.outputs[0]])
    for number, each in enumerate((mean, less)):
        each.outputs[0].name = f"zoo_mean_{_COUNT[0]}_{number}"
        each.outputs[0].type = x.type
        each.metadata_props.update(nodes[0].metadata_props)
    model.graph.insert_before(nodes[0], [mean, less])
    for node in nodes:
        for at, value in enumerate(node.inputs):
            if value is x:
                node.replace_input_with(at, less.outputs[0])


def in_place_of(model: Any, node: Any, made: list[Any]) -> None:
    """Put a chain of nodes where one was; what the last one gives is read instead."""
    old = node.outputs[0]
    for each in made:
        each.metadata_props.update(node.metadata_props)
        for value in each.outputs:
            _COUNT[0] += 1
            value.name = f"zoo_out_{_COUNT[0]}"
            value.type = value.type or old.type
    made[-1].outputs[0].shape = old.shape
    model.graph.insert_before(node, made)
    for user, at in list(old.uses()):
        user.replace_input_with(at, made[-1].outputs[0])
    model.graph.remove(node, safe=True)


def _scores(model: Any, scope: str) -> Any:
    """Return the node that scales the attention scores of a scope."""
    softmax = nodes_in(model, scope, "Softmax")[0]
    value = softmax.inputs[0]
    while True:
        node = value.producer()
        if node.op_type == "Mul" and any(is_constant(each) for each in node.inputs):
            return node
        value = node.inputs[0]


def attention_scale(model: Any, scope: str, factor: float) -> None:
    with_constant(model, _scores(model, scope), lambda scale: scale * factor)


def _masking(model: Any, scope: str) -> Any:
    value = nodes_in(model, scope, "Softmax")[0].inputs[0]
    while value.producer().op_type != "Add":
        value = value.producer().inputs[0]
    return value.producer()


def no_mask(model: Any, scope: str) -> None:
    add = _masking(model, scope)
    for user, at in list(add.outputs[0].uses()):
        user.replace_input_with(at, add.inputs[0])
    model.graph.remove(add, safe=True)


def softmax_in_half(model: Any, scope: str) -> None:
    softmax = nodes_in(model, scope, "Softmax")[0]
    wide = softmax.inputs[0].dtype or ir.DataType.FLOAT
    value = after(model, softmax.inputs[0], "Max", [constant(model, np.float32(-6e4))], users=[softmax])
    value = after(model, value, "Cast", users=[softmax], to=int(ir.DataType.FLOAT16))
    value.type = ir.TensorType(ir.DataType.FLOAT16)
    softmax.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
    back = after(model, softmax.outputs[0], "Cast", to=int(wide))
    back.type = ir.TensorType(wide)


def heads_permuted(model: Any, scope: str, order: list[int]) -> None:
    """What the probabilities give is put in another order of heads."""
    product = list(nodes_in(model, scope, "MatMul"))[-1]
    after(model, product.outputs[0], "Gather", [constant(model, np.array(order))], axis=1)


def kv_heads_tiled(model: Any, scope: str, heads: int, groups: int) -> None:
    """Query head h gets KV head h modulo their number."""
    order = np.arange(heads).reshape(groups and heads // groups, groups).T.reshape(-1)
    for product, at in zip(_products(model, scope), (1, 1), strict=True):
        value = product.inputs[at]
        while value.producer().op_type != "Reshape":
            value = value.producer().inputs[0]
        after(model, value, "Gather", [constant(model, order)], axis=1)


def _products(model: Any, scope: str) -> list[Any]:
    return [node for node in nodes_in(model, scope, "MatMul") if not is_constant(node.inputs[1])]


def rotary_interleaved(model: Any, scope: str, width: int) -> None:
    """Neighbours are rotated as pairs: regrouped before, put back after."""
    into = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
    for neg in nodes_in(model, scope, "Neg"):
        x = neg.inputs[0].producer().inputs[0]
        joined = next(user for user, _ in neg.outputs[0].uses() if user.op_type == "Concat")
        turned = next(user for user, _ in joined.outputs[0].uses() if user.op_type == "Mul")
        total = next(user for user, _ in turned.outputs[0].uses() if user.op_type == "Add")
        after(model, x, "Gather", [constant(model, into)], axis=-1)
        after(model, total.outputs[0], "Gather", [constant(model, np.argsort(into))], axis=-1)


def rotary_frequencies(model: Any, scope: str, change: Callable[[Any], Any]) -> None:
    with_constant(model, nodes_in(model, scope, "Mul")[0], change)


def positions_moved(model: Any, name: str, by: int) -> None:
    value = next(each for each in model.graph.inputs if each.name == name)
    after(model, value, "Add", [constant(model, np.array([by]))])


def ids_moved(model: Any, scope: str, by: int) -> None:
    gather = nodes_in(model, scope, "Gather")[0]
    after(model, gather.inputs[1], "Add", [constant(model, np.array([by]))], users=[gather])


def quick_gelu(model: Any, scope: str) -> None:
    """x * sigmoid(1.702 x) instead of x * sigmoid(x)."""
    node = nodes_in(model, scope, "Sigmoid")[0]
    like = node.inputs[0]
    after(model, like, "Mul", [constant(model, np.float32(1.702), like=like)], users=[node], near=node)


def other_activation(model: Any, scope: str, op: str, **attributes: Any) -> None:
    """The whole activation is one other operator."""
    nodes = nodes_in(model, scope)
    x = nodes[0].inputs[0]
    made = ir.node(op, [x], attributes=attributes or None)
    _COUNT[0] += 1
    made.outputs[0].name = f"zoo_out_{_COUNT[0]}"
    made.outputs[0].type, made.outputs[0].shape = x.type, x.shape
    made.metadata_props.update(nodes[-1].metadata_props)
    model.graph.insert_after(nodes[-1], made)
    for user, at in list(nodes[-1].outputs[0].uses()):
        user.replace_input_with(at, made.outputs[0])
    for node in reversed(nodes):
        model.graph.remove(node, safe=True)


def residual(model: Any, layer: str, which: int, *, doubled: bool) -> None:
    """Leave the stream out of, or take it twice into, the first or second sum of a layer."""
    sums = list(nodes_in(model, layer, "Add"))
    add, scopes = sums[which], [scope_of(value.producer()) for value in sums[which].inputs]
    branch = next(at for at, scope in enumerate(scopes) if scope.startswith(f"{layer}."))
    stream = add.inputs[1 - branch]
    if doubled:
        after(model, add.outputs[0], "Add", [stream])
        return
    for user, at in list(add.outputs[0].uses()):
        user.replace_input_with(at, add.inputs[branch])


def scaled(model: Any, value: Any, factor: float) -> None:
    after(model, value, "Mul", [constant(model, np.float32(factor), like=value)])


def embedding_scaled(model: Any, scope: str, factor: float) -> None:
    scaled(model, nodes_in(model, scope)[-1].outputs[0], factor)


def clipped(model: Any, scope: str, limit: float) -> None:
    """What enters a linear layer is cut off at a limit."""
    node = nodes_in(model, scope)[0]
    x = node.inputs[0]
    limits = [constant(model, np.float32(each), like=x) for each in (-limit, limit)]
    after(model, x, "Clip", limits, users=[node], near=node)


def dropping(model: Any, scope: str, share: float) -> None:
    """A Dropout that trains, on what leaves a scope."""
    value = nodes_in(model, scope)[-1].outputs[0]
    after(model, value, "Dropout", [constant(model, np.float32(share)), constant(model, np.array(True))])


def noisy(model: Any, scope: str, share: float) -> None:
    """Random numbers around 1 on what leaves a scope, other ones at every run."""
    value = nodes_in(model, scope)[-1].outputs[0]
    users = [user for user, _ in value.uses()]
    noise = after(model, value, "RandomUniformLike", users=[], low=1 - share, high=1 + share)
    after(model, value, "Mul", [noise], users=users)
    model.graph.sort()


def linear_rows(model: Any, scope: str, by: int) -> None:
    """The rows of an embedding are moved."""
    gather = nodes_in(model, scope, "Gather")[0]
    gather.replace_input_with(0, constant(model, np.roll(array_of(gather.inputs[0]), by, 0), like=gather.inputs[0]))
