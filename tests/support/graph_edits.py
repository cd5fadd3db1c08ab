"""Single mistakes made in an exported graph, found by module scope: what a wrong converter would write."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trtdx.formats.onnx.module_graph import OnnxGraph


def nodes_of(model, scope, op):
    graph = OnnxGraph(model)
    return [
        node
        for at, node in enumerate(graph.nodes)
        if node.op_type == op and graph.scopes[at] and graph.scopes[at][-1].endswith(scope)
    ]


def constant(model, array, name):
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape(array.shape),
                     type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))  # fmt: skip
    model.graph.register_initializer(value)
    return value


def with_constant(model, node, change):
    """Change the constant that one node reads."""
    at = next(at for at, each in enumerate(node.inputs) if each is not None and each.const_value is not None)
    held = node.inputs[at].const_value.numpy()
    made = np.ascontiguousarray(np.asarray(change(held), held.dtype))
    node.replace_input_with(at, constant(model, made, f"another_{node.name}"))


def epsilon(model, layer):
    with_constant(model, nodes_of(model, f"{layer}.input_layernorm", "Add")[0], lambda held: held * 0 + 0.05)


def no_weight(model, layer):
    with_constant(model, nodes_of(model, f"{layer}.input_layernorm", "Mul")[1], np.ones_like)


def transposed(model, layer):
    with_constant(model, nodes_of(model, f"{layer}.self_attn.q_proj", "MatMul")[0], np.transpose)


def scale(model, layer):
    softmax = nodes_of(model, f"{layer}.self_attn", "Softmax")[0]
    node = softmax.inputs[0].producer().inputs[0].producer()
    with_constant(model, node, lambda held: held * 3)


def unmasked(model, layer):
    softmax = nodes_of(model, f"{layer}.self_attn", "Softmax")[0]
    softmax.replace_input_with(0, softmax.inputs[0].producer().inputs[0])


def exchanged(model, layer):
    gate, up = (nodes_of(model, f"{layer}.mlp.{name}", "MatMul")[0] for name in ("gate_proj", "up_proj"))
    held = gate.inputs[1]
    gate.replace_input_with(1, up.inputs[1])
    up.replace_input_with(1, held)


def relu(model, layer):
    (node,) = nodes_of(model, f"{layer}.mlp.act_fn", "Mul")
    made = ir.node("Relu", [node.inputs[0]], name="relu")
    made.outputs[0].name = "relu_out"
    made.outputs[0].type, made.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    made.metadata_props.update(node.metadata_props)
    model.graph.insert_after(node, made)
    for user, at in list(node.outputs[0].uses()):
        user.replace_input_with(at, made.outputs[0])
    model.graph.remove([node, *nodes_of(model, f"{layer}.mlp.act_fn", "Sigmoid")], safe=True)


def doubled(model, layer):
    """The stream is added a second time beside the attention."""
    node = nodes_of(model, layer, "Add")[0]
    made = ir.node("Add", [node.outputs[0], node.inputs[0]], name="again")
    made.outputs[0].name = "again_out"
    made.outputs[0].type, made.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    made.metadata_props.update(node.metadata_props)
    model.graph.insert_after(node, made)
    for user, at in list(node.outputs[0].uses()):
        if user is not made:
            user.replace_input_with(at, made.outputs[0])


def base(model, _layer):
    node = nodes_of(model, "rotary_emb", "Mul")[0]
    with_constant(model, node, lambda held: (2e5 ** -(np.arange(held.size) / held.size)).reshape(held.shape))


def shifted(model, _layer):
    with_constant(model, nodes_of(model, "embed_tokens", "Gather")[0], lambda held: np.roll(held, 1, 0))


# The mistake, its code, and the module where it is.
EDITS = {
    "epsilon": (epsilon, "DX975", "{}.input_layernorm"),
    "norm without weight": (no_weight, "DX976", "{}.input_layernorm"),
    "weight transposed": (transposed, "DX982", "{}.self_attn.q_proj"),
    "attention scale": (scale, "DX967", "{}.self_attn"),
    "no mask": (unmasked, "DX969", "{}.self_attn"),
    "gate and up": (exchanged, "DX981", "{}.mlp.gate_proj"),
    "activation": (relu, "DX980", "{}.mlp.act_fn"),
    "residual twice": (doubled, "DX995", "{}"),
    "rotary base": (base, "DX962", "rotary_emb"),
    "rows shifted": (shifted, "DX993", "embed_tokens"),
}


def edited(source, path, name, layer):
    """Write a file with one mistake in it; returns it, the code of the mistake and its module's path."""
    change, code, module = EDITS[name]
    model = ir.load(source)
    change(model, layer)
    ir.save(model, path)
    return path, code, module.format(layer)
