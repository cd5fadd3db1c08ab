"""What a model from a stranger may hold that no library stands: text that is none, loops that never end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TURNS = 10_000_000  # of a loop that nothing ends but its count


def find_unusable_part(proto: Any) -> str:
    """Return what makes a model unusable, in words; empty where nothing does."""
    counts = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in _all_nodes([*proto.graph.node, *(node for function in proto.functions for node in function.node)]):
        texts = (node.op_type, node.domain, node.name, *node.input, *node.output)
        if any(isinstance(text, bytes) for text in texts):  # protobuf hands out what is not UTF-8 as it is
            return f"holds a name that is not UTF-8: {next(text for text in texts if isinstance(text, bytes))!r}"
        if node.op_type == "Loop" and (turns := _turns_without_end(node, counts)) > MOST_TURNS:
            return f"holds a Loop of {turns:,} turns that nothing ends before"
    return ""


def _all_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body.node)


def _turns_without_end(node: Any, counts: dict[str, Any]) -> int:
    """Return how often a loop's body runs where its condition is what it was at the start; 0 where it can change."""
    body = next((attribute.g for attribute in node.attribute if attribute.name == "body"), None)
    if body is None or len(body.input) < 2 or not body.output or not node.input or node.input[0] not in counts:
        return 0
    makers = {output: maker for maker in body.node for output in maker.output}
    name = body.output[0].name
    while (maker := makers.get(name)) is not None and maker.op_type == "Identity":
        name = maker.input[0]
    is_constant = name == body.input[1].name or (maker is not None and maker.op_type == "Constant")
    return _read_count(counts[node.input[0]]) if is_constant else 0


def _read_count(tensor: Any) -> int:
    if len(tensor.int64_data) == 1:
        return int(tensor.int64_data[0])
    return int.from_bytes(tensor.raw_data, "little", signed=True) if len(tensor.raw_data) == 8 else 0
