"""Parts of a module that are no modules of their own, found in its nodes: attention, rotary embedding, activation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.twin.operators import node_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx_ir as ir

    from trtdx.compare.attribute.twin.graph_reader import GraphReader

IDENTITY_OPERATORS = {"Cast", "Identity", "Dropout"}
ACTIVATION_OPERATORS = {"Sigmoid", "Tanh", "Erf", "Relu", "Gelu", "FastGelu", "QuickGelu", "Swish", "Silu", "HardSwish", "Softplus", "Mish", "LeakyRelu", "Elu"}  # fmt: skip
ELEMENTWISE_OPERATORS = {
    *ACTIVATION_OPERATORS,
    "Mul",
    "Add",
    "Sub",
    "Div",
    "Pow",
    "Neg",
    "Sqrt",
    "Cast",
    "Identity",
    "Exp",
    "Clip",
}
MASKED_SCORE = -1e4


class AttentionMasking(NamedTuple):
    """A mask in a graph: added to scores, or a condition under which keys are visible (or hidden)."""

    value: ir.Value
    kind: str  # "add", "seen" or "hidden"


class AttentionPattern(NamedTuple):
    """Softmax of scores, and what its weights are for."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    output: ir.Value
    scale: float  # 0 where it is one over the root of the width
    softcap: float | None
    masks: tuple[AttentionMasking, ...]
    is_key_transposed: bool  # whether the key is kept as scores want it, [..., width, all]
    is_causal: bool = False


class RotationPattern(NamedTuple):
    """One rotated tensor: which of its channels belong together, and how they are put together again."""

    input_value: ir.Value
    cosine: ir.Value
    sine: ir.Value
    output: ir.Value
    input_layout: str  # "halves" or "pairs"
    output_layout: str
    has_half_tables: bool  # whether there is one cosine for two numbers


class ActivationPattern(NamedTuple):
    """An activation: the nodes from one value to another, in order."""

    input_value: ir.Value
    output: ir.Value
    nodes: tuple[ir.Node, ...]


class _ScoresPattern(NamedTuple):
    query: ir.Value
    key: ir.Value
    scale: float = 1.0
    softcap: float | None = None
    is_capped: bool = False  # by tanh, not yet multiplied by its cap
    masks: tuple[AttentionMasking, ...] = ()


def find_attentions(reader: GraphReader, nodes: Iterable[ir.Node]) -> Iterator[AttentionPattern]:
    """Yield the attentions in some nodes."""
    for node in nodes:
        if node.op_type == "Attention":
            yield from _match_attention_node(reader, node)
        if node.op_type != "Softmax" or node.inputs[0] is None:
            continue
        scores = _match_scores(reader, node.inputs[0])
        product = _find_value_product(reader, node.outputs[0])
        if scores is None or product is None or scores.is_capped or product.inputs[1] is None:
            continue
        query, before = _strip_scales(reader, scores.query)
        key, factor, turned = _match_key(reader, scores.key)
        key, value = before_head_repeat(reader, key), before_head_repeat(reader, product.inputs[1])
        output, scale = product.outputs[0], scores.scale * before * factor
        yield AttentionPattern(query, key, value, output, scale, scores.softcap, scores.masks, turned)


def _match_attention_node(reader: GraphReader, node: ir.Node) -> Iterator[AttentionPattern]:
    """Yield an attention that is one operator, if its heads are apart and it has no cache of its own."""
    query, key, value, mask, *cache = [*node.inputs, None, None][:6]
    settings = node_settings(node)
    if query is None or key is None or value is None or any(cache) or settings.get("q_num_heads"):
        return
    masks = []
    if mask is not None:
        is_bool = mask.dtype is not None and mask.dtype.name == "BOOL"
        masks.append(AttentionMasking(mask, "seen" if is_bool else "add"))
    cap = float(settings.get("softcap") or 0.0) or None
    scale, causal = float(settings.get("scale") or 0.0), bool(settings.get("is_causal"))
    yield AttentionPattern(
        query, before_head_repeat(reader, key), before_head_repeat(reader, value), node.outputs[0], scale, cap, tuple(masks), False, causal
    )  # fmt: skip


def _match_scores(reader: GraphReader, value: ir.Value, depth: int = 0) -> _ScoresPattern | None:
    """Return what scores are made from, walking back from where they enter the softmax."""
    node = reader.producer(value)
    if node is None or depth > 12:
        return None
    if node.op_type in IDENTITY_OPERATORS and node.inputs[0] is not None:
        return _match_scores(reader, node.inputs[0], depth + 1)
    if node.op_type == "MatMul" and all(map(reader.is_data, node.inputs)):
        query, key = node.inputs
        return None if query is None or key is None else _ScoresPattern(query, key)
    if node.op_type in ("Mul", "Div"):
        return _match_scaled_scores(reader, node, depth)
    if node.op_type == "Tanh" and node.inputs[0] is not None:
        scores = _match_scores(reader, node.inputs[0], depth + 1)
        return None if scores is None or scores.masks else scores._replace(is_capped=True)
    return _match_masked_scores(reader, node, depth)


def _match_scaled_scores(reader: GraphReader, node: ir.Node, depth: int) -> _ScoresPattern | None:
    both = reader.split_constant(node)
    factor = reader.scalar(both[1]) if both else None
    if both is None or not factor or (node.op_type == "Div" and both[0] is not node.inputs[0]):
        return None
    scores = _match_scores(reader, both[0], depth + 1)
    if scores is None or scores.masks:
        return None
    factor = 1 / factor if node.op_type == "Div" else factor
    if scores.is_capped:
        return scores._replace(is_capped=False, softcap=factor, scale=scores.scale * factor)
    return None if scores.softcap else scores._replace(scale=scores.scale * factor)


def _match_masked_scores(reader: GraphReader, node: ir.Node, depth: int) -> _ScoresPattern | None:
    if node.op_type == "Add":
        for one, other in ((0, 1), (1, 0)):
            inner, mask = node.inputs[one], node.inputs[other]
            scores = None if inner is None else _match_scores(reader, inner, depth + 1)
            if scores is not None and mask is not None:
                return scores._replace(masks=(*scores.masks, AttentionMasking(mask, "add")))
    if node.op_type == "Where" and node.inputs[0] is not None:
        for at, fill, how in ((1, 2, "seen"), (2, 1, "hidden")):
            number, value = reader.scalar(node.inputs[fill]), node.inputs[at]
            if number is None or number > MASKED_SCORE or value is None:
                continue
            scores = _match_scores(reader, value, depth + 1)
            if scores is not None:
                return scores._replace(masks=(*scores.masks, AttentionMasking(node.inputs[0], how)))
    return None


def _find_value_product(reader: GraphReader, weights: ir.Value) -> ir.Node | None:
    """Return the product that attention's weights enter first."""
    for _ in range(6):
        users = [reader.graph.nodes[at] for at in reader.graph.users.get(weights, ())]
        product = next((user for user in users if user.op_type == "MatMul"), None)
        if product is not None:
            return product if product.inputs[0] is weights else None
        passing = next((user for user in users if user.op_type in (*IDENTITY_OPERATORS, "Where")), None)
        if passing is None:
            return None
        weights = passing.outputs[0]
    return None


def _strip_scales(reader: GraphReader, value: ir.Value) -> tuple[ir.Value, float]:
    """Return a value before it was multiplied by numbers, and their product."""
    factor = 1.0
    for _ in range(4):
        node = reader.producer(value)
        both = reader.split_constant(node) if node is not None and node.op_type in ("Mul", "Div") else None
        number = reader.scalar(both[1]) if both else None
        if node is None or both is None or not number or (node.op_type == "Div" and both[0] is not node.inputs[0]):
            break
        value, factor = both[0], factor / number if node.op_type == "Div" else factor * number
    return value, factor


def _match_key(reader: GraphReader, value: ir.Value) -> tuple[ir.Value, float, bool]:
    """Return keys before they were turned and scaled, the scale, and whether they are still turned."""
    value, factor = _strip_scales(reader, value)
    node = reader.producer(value)
    # Batch and heads may be put together while they are turned.
    flat = node is not None and node.op_type == "Reshape"
    if node is not None and flat:
        node = reader.producer(node.inputs[0])
    if node is None or node.op_type != "Transpose" or node.inputs[0] is None:
        return value, factor, True
    order = list(node_settings(node).get("perm") or ())
    if order != [*range(len(order) - 2), len(order) - 1, len(order) - 2]:
        return value, factor, True
    source: ir.Value | None = node.inputs[0]
    if flat:
        before = reader.producer(source)
        source = before.inputs[0] if before is not None and before.op_type == "Reshape" else None
    if source is None:
        return value, factor, True
    value, more = _strip_scales(reader, source)
    return value, factor * more, False


def before_head_repeat(reader: GraphReader, value: ir.Value) -> ir.Value:
    """Return keys or values before each head was repeated for its group, if they were."""
    reshape = reader.producer(value)
    expand = reader.producer(reshape.inputs[0]) if reshape is not None and reshape.op_type == "Reshape" else None
    before = reader.producer(expand.inputs[0]) if expand is not None and expand.op_type == "Expand" else None
    if before is None or before.op_type != "Unsqueeze" or before.inputs[0] is None:
        return value
    axes = node_settings(before).get("axes")
    if len(before.inputs) > 1 and before.inputs[1] is not None and reader.is_weight(before.inputs[1]):
        axes = reader.constant(before.inputs[1]).reshape(-1).tolist()
    return before.inputs[0] if axes and list(axes) == [2] else value


def find_rotations(reader: GraphReader, nodes: Iterable[ir.Node]) -> Iterator[RotationPattern]:
    """Yield the tensors in some nodes that are turned by cosines and sines."""
    for node in nodes:
        rotation = _match_rotate_half(reader, node) if node.op_type == "Add" else _match_rotary_node(node)
        if rotation is None and node.op_type == "Concat" and len(node.inputs) == 2:
            rotation = _match_split_rotation(reader, node)
        if rotation is not None:
            yield rotation


def _match_rotary_node(node: ir.Node) -> RotationPattern | None:
    """Return a rotation that is one operator, if it is given the rows of its tables."""
    if node.op_type != "RotaryEmbedding" or node.domain not in ("", "ai.onnx") or len(node.inputs) != 3:
        return None
    x, cosine, sine = node.inputs
    settings = node_settings(node)
    if x is None or cosine is None or sine is None or settings.get("rotary_embedding_dim"):
        return None
    how = "pairs" if settings.get("interleaved") else "halves"
    return RotationPattern(x, cosine, sine, node.outputs[0], how, how, has_half_tables=True)


def table_origin(reader: GraphReader, value: ir.Value) -> Any:
    """Return what a table is made of, the same for two that are made alike."""
    node = reader.producer(value)
    same = node is not None and node.op_type in ("Cos", "Sin") and node.inputs[0] is not None
    return (node.op_type, node.inputs[0]) if node is not None and same else value


def _mul_operands(reader: GraphReader, value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    node = reader.producer(value)
    if node is None or node.op_type != "Mul" or node.inputs[0] is None or node.inputs[1] is None:
        return None
    return node.inputs[0], node.inputs[1]


def _match_rotate_half(reader: GraphReader, node: ir.Node) -> RotationPattern | None:
    """Return the rotation x * cos + (-second half, first half) * sin."""
    for one, other in ((0, 1), (1, 0)):
        plain, swapped = _mul_operands(reader, node.inputs[one]), _mul_operands(reader, node.inputs[other])
        if plain is None or swapped is None:
            continue
        for turned, sine in (swapped, swapped[::-1]):
            source = _match_swapped_halves(reader, turned)
            for x, cosine in (plain, plain[::-1]):
                if source is not None and x is source[0]:
                    return RotationPattern(
                        x, cosine, sine, node.outputs[0], source[1], source[1], has_half_tables=False
                    )
    return None


def _match_swapped_halves(reader: GraphReader, value: ir.Value) -> tuple[ir.Value, str] | None:
    """Return what was cut in two, of which the second was negated and put first, and how it was cut."""
    node = reader.producer(value)
    woven = node is not None and node.op_type in ("Reshape", "Flatten")
    if node is not None and woven:
        node = reader.producer(node.inputs[0])
    if node is None or node.op_type != "Concat" or len(node.inputs) != 2:
        return None
    ends = []
    for operand in node.inputs:
        inner = reader.producer(operand) if woven else None
        if woven and (inner is None or inner.op_type != "Unsqueeze"):
            return None
        ends.append(operand if inner is None else inner.inputs[0])
    negated = reader.producer(ends[0])
    if negated is None or negated.op_type != "Neg":
        return None
    second, first = _match_slice(reader, negated.inputs[0]), _match_slice(reader, ends[1])
    if first is None or second is None or first[0] is not second[0] or first[1] == second[1]:
        return None
    return first[0], "pairs" if woven else "halves"


def _match_slice(reader: GraphReader, value: ir.Value | None) -> tuple[ir.Value, str] | None:
    """Return what a slice or a split is a part of, and which part."""
    node = reader.producer(value)
    if node is None or node.op_type not in ("Slice", "Split") or node.inputs[0] is None:
        return None
    if node.op_type == "Split":
        return node.inputs[0], f"halves number {list(node.outputs).index(value)}"  # type: ignore[arg-type]
    start = node.inputs[1] if len(node.inputs) > 1 else None
    step = node.inputs[4] if len(node.inputs) > 4 else None
    if start is None or not reader.is_weight(start) or (step is not None and not reader.is_weight(step)):
        return node.inputs[0], "slice from somewhere"
    at = int(reader.constant(start).reshape(-1)[0])
    by = 1 if step is None else int(reader.constant(step).reshape(-1)[0])
    return node.inputs[0], f"{'pairs' if by == 2 else 'halves'} from {at}"


def _match_split_rotation(reader: GraphReader, node: ir.Node) -> RotationPattern | None:
    """Return the rotation (a * cos - b * sin, b * cos + a * sin), concatenated."""
    first, second = (reader.producer(operand) for operand in node.inputs)
    if first is None or second is None or first.op_type != "Sub" or second.op_type != "Add":
        return None
    one, two = _mul_operands(reader, first.inputs[0]), _mul_operands(reader, first.inputs[1])
    rest = [_mul_operands(reader, operand) for operand in second.inputs]
    if one is None or two is None or None in rest:
        return None
    for a, cosine in (one, one[::-1]):
        for b, sine in (two, two[::-1]):
            source, other = _match_slice(reader, a), _match_slice(reader, b)
            expected = {frozenset((id(b), id(cosine))), frozenset((id(a), id(sine)))}
            if source is None or other is None or source[0] is not other[0]:
                continue
            if {frozenset(map(id, factors)) for factors in rest if factors} == expected:
                layout = "pairs" if source[1].startswith("pairs") else "halves"
                return RotationPattern(source[0], cosine, sine, node.outputs[0], layout, "halves", has_half_tables=True)
    return None


def find_activations(reader: GraphReader, nodes: Iterable[ir.Node]) -> Iterator[ActivationPattern]:
    """Yield the activations in some nodes: everything between one value and what is made of it and numbers alone."""
    inside = list(nodes)
    node_ids = set(map(id, inside))
    for node in inside:
        if node.op_type in ACTIVATION_OPERATORS:
            activation = _match_activation(reader, node, node_ids)
            if activation is not None:
                yield activation


def _match_activation(reader: GraphReader, seed: ir.Node, node_ids: set[int]) -> ActivationPattern | None:
    source = seed.inputs[0]
    for _ in range(8):  # back to where it was no longer one value and numbers
        node = reader.producer(source)
        if node is None or id(node) not in node_ids or node.op_type not in ELEMENTWISE_OPERATORS:
            break
        data = [operand for operand in node.inputs if reader.is_data(operand)]
        before = data[0] if len(data) == 1 else _common_source(reader, data)
        if before is None or any(
            not _is_scalar_constant(reader, operand) for operand in node.inputs if operand not in data
        ):
            break
        source = before
    if source is None:
        return None
    derived, order = {source}, []
    result = seed.outputs[0]
    for node in (other for other in reader.graph.nodes if id(other) in node_ids):
        if node.op_type not in ELEMENTWISE_OPERATORS or not any(operand in derived for operand in node.inputs):
            continue
        if all(
            operand in derived or _is_scalar_constant(reader, operand) for operand in node.inputs if operand is not None
        ):
            derived.update(node.outputs)
            order.append(node)
            result = node.outputs[0]
    return ActivationPattern(source, result, tuple(order)) if seed in order else None


def _common_source(reader: GraphReader, data: list[Any]) -> ir.Value | None:
    """Return what two values of a polynomial are both made of: x in x + 0.04 x ** 3."""
    ways = []
    for value in data:
        way = [value]
        for _ in range(4):
            node = reader.producer(way[-1])
            more = [operand for operand in node.inputs if reader.is_data(operand)] if node is not None else []
            if node is None or node.op_type not in ELEMENTWISE_OPERATORS or len(more) != 1 or more[0] is None:
                break
            way.append(more[0])
        ways.append(way)
    return next((shared for shared in ways[0] if all(shared in way for way in ways)), None) if ways else None


def _is_scalar_constant(reader: GraphReader, value: Any) -> bool:
    return value is None or reader.scalar(value) is not None
