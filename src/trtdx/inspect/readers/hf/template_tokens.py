"""By which token a chat template ends a turn, and which tokens it takes for granted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jinja2 import nodes

from trtdx.formats.jinja import choice_branches, condition_truth, mentions_word, written_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.readers.hf.tokenizer import Vocabulary

PIPED_TOKEN = re.compile(r"<[|\uff5c][^<>|\uff5c\s{}%]{1,80}[|\uff5c]>")  # DeepSeek's bars are full width
ANGLED_TOKEN = re.compile(r"<[^<>\s{}%]{1,80}>")
# Methods and filters whose first argument is looked for and not written.
SEARCHES = re.compile(r"(?:split|replace|startswith|endswith|strip|find|index)$")
UNKNOWN_END = "?"  # what is written last is no token, or cannot be told


def unknown_tokens(template: nodes.Template, vocabulary: Vocabulary) -> list[str]:
    """Return tokens such as <|im_end|> that the template writes to all and the tokenizer has not.

    What only a conversation with tools meets is left out (DeepSeek-R1-Distill-Llama has no tool tokens).

    Where the tokenizer has none of this form (Zephyr, TinyLlama), they were trained as plain text.
    """
    if not any(PIPED_TOKEN.fullmatch(token) for token in vocabulary.special):
        return []
    written = dict.fromkeys(token for text in _written_texts(template.body) for token in PIPED_TOKEN.findall(text))
    return [token for token in written if not vocabulary.has_token(token) and "tool" not in token]


def _written_texts(body: list[nodes.Node]) -> Iterator[str]:
    """Yield the texts that may be written; those in conditions, searches and error messages are not."""
    for node in written_nodes(body):
        if isinstance(node, nodes.For):
            if not _loops_over(node, "tool"):
                yield from _written_texts(node.body)
        elif isinstance(node, nodes.If):
            for condition, branch in choice_branches(node):
                if condition is None or condition_truth(condition, is_true_without_tools) is not False:
                    yield from _written_texts(branch)
        elif not mentions_word(node, "raise_exception"):
            yield from _texts_in_expression(node)


def _texts_in_expression(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.TemplateData):
        yield node.data
    elif isinstance(node, nodes.Const):
        yield str(node.value)
    elif not isinstance(node, nodes.Compare):
        searched = _searched_argument(node)
        for child in node.iter_child_nodes(exclude=("test",)):
            if child is not searched:
                yield from _texts_in_expression(child)


def _searched_argument(node: nodes.Node) -> nodes.Expr | None:
    """Return what a method or filter looks for, which is not written."""
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
        name = node.node.attr
    elif isinstance(node, nodes.Filter):
        name = node.name
    else:
        return None
    return node.args[0] if node.args and SEARCHES.search(name) else None


def _loops_over(loop: nodes.For, word: str) -> bool:
    parts = (loop.target, loop.iter, loop.test)
    return any(part is not None and mentions_word(part, word) for part in parts)


def is_true_without_tools(atom: nodes.Node) -> bool | None:
    """Return the truth of one condition in a conversation without tools."""
    return _states_absence(atom) if mentions_word(atom, "tool") else None


def _states_absence(atom: nodes.Node) -> bool:
    """Whether a condition holds where what it names is not there."""
    if isinstance(atom, nodes.Test):
        return atom.name in ("none", "undefined")
    comparisons = atom.ops if isinstance(atom, nodes.Compare) else []
    return any(
        operand.op in ("ne", "notin")
        or (operand.op == "eq" and isinstance(operand.expr, nodes.List) and not operand.expr.items)
        for operand in comparisons
    )


def is_true_for_assistant(atom: nodes.Node) -> bool | None:
    """Return the truth of one condition while an assistant's plain last answer is written."""
    if isinstance(atom, nodes.Compare) and len(atom.ops) == 1 and atom.ops[0].op in ("eq", "ne"):
        sides = (atom.expr, atom.ops[0].expr)
        role = next((side.value for side in sides if isinstance(side, nodes.Const)), None)
        if isinstance(role, str) and any(map(_is_role, sides)):
            return (role in ("assistant", "model")) == (atom.ops[0].op == "eq")
    if mentions_word(atom, "add_generation_prompt"):
        return False
    return _states_absence(atom) if mentions_word(atom, "tool_call") else None


def _is_role(expression: nodes.Expr) -> bool:
    if isinstance(expression, nodes.Getitem):
        return isinstance(expression.arg, nodes.Const) and expression.arg.value == "role"
    name = expression.attr if isinstance(expression, nodes.Getattr) else getattr(expression, "name", "")
    return str(name).endswith("role")


def turn_end_token(template: nodes.Template, special: dict[str, int], tokens: dict[str, str]) -> str | None:
    """Return the token that ends an assistant's turn, where all ways through the template agree on one."""
    ends: set[str] = set()
    for loop in _message_loops(template.body):
        loop_ends = _LastWritten(special, tokens).by_body(loop.body)
        if loop_ends != {""}:
            ends |= loop_ends
    end = ends.pop() if len(ends) == 1 else ""
    return None if end in (UNKNOWN_END, "") else end


def _message_loops(body: list[nodes.Node]) -> Iterator[nodes.For]:
    """Yield the loops over messages that write something."""
    for node in written_nodes(body):
        if isinstance(node, nodes.For) and _loops_over(node, "messages"):
            yield node
        elif isinstance(node, nodes.If):
            for _, branch in choice_branches(node):
                yield from _message_loops(branch)


class _LastWritten:
    """What may be written last: tokens, "" for nothing at all, UNKNOWN_END for anything else."""

    def __init__(self, special: dict[str, int], tokens: dict[str, str]) -> None:
        self._special, self._tokens = special, tokens

    def by_body(self, body: list[nodes.Node]) -> set[str]:
        ends = {""}
        for node in reversed(list(written_nodes(body))):
            ends.discard("")
            ends |= self._by_node(node)
            if "" not in ends:
                break
        return ends

    def _by_node(self, node: nodes.Node) -> set[str]:
        if isinstance(node, nodes.For):
            return self.by_body(node.body) | {""}
        if isinstance(node, nodes.If):
            return self._by_choice(node)
        if mentions_word(node, "raise_exception"):
            return {""}
        return {UNKNOWN_END if node.find(nodes.CondExpr) else self._by_expression(node)}

    def _by_choice(self, choice: nodes.If) -> set[str]:
        ends: set[str] = set()
        for condition, branch in choice_branches(choice):
            truth = True if condition is None else condition_truth(condition, is_true_for_assistant)
            if truth is not False:
                ends |= self.by_body(branch)
            if truth is True:
                return ends
        return ends | {""}

    def _by_expression(self, node: nodes.Node) -> str:
        if isinstance(node, nodes.TemplateData):
            return self._by_text(node.data)
        if isinstance(node, nodes.Const) and isinstance(node.value, str):
            return self._by_text(node.value)
        if isinstance(node, nodes.Add):
            return self._by_expression(node.right) or self._by_expression(node.left)
        if isinstance(node, nodes.Concat):
            return next(filter(None, map(self._by_expression, reversed(node.nodes))), "")
        if isinstance(node, nodes.Filter) and node.node and node.name in ("trim", "safe"):
            return self._by_expression(node.node)
        if isinstance(node, nodes.Name) and node.name in ("eos_token", "bos_token"):
            return self._tokens.get(node.name[:3], UNKNOWN_END)
        return UNKNOWN_END

    def _by_text(self, text: str) -> str:
        """Return the last token of a written text; text after it is no end, but white space is."""
        if not text.replace("\\n", "").strip():
            return ""
        last = None
        for token in ANGLED_TOKEN.finditer(text):
            last = token if token[0] in self._special or PIPED_TOKEN.fullmatch(token[0]) else last
        if last is None or text[last.end() :].replace("\\n", "").strip():
            return UNKNOWN_END
        return last[0]
