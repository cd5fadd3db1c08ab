"""The chat template of a tokenizer: which it is, by what it ends a turn, and which tokens it takes for granted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtdx.formats.jinja import Choice, Expression, Loop, TemplateError, Text, fault_of, judged, parse, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.documents import Document
    from trtdx.formats.jinja import Node
    from trtdx.inspect.readers.folder import Folder
    from trtdx.inspect.readers.hf.tokenizer import Vocabulary

MOST_BYTES = 1 << 20
PIPED = re.compile(r"<[|\uff5c][^<>|\uff5c\s{}%]{1,80}[|\uff5c]>")  # DeepSeek's bars are full width
ANGLED = re.compile(r"<[^<>\s{}%]{1,80}>")
NAMED = re.compile(r"\b(eos_token|bos_token)\b(?!_)")
RENAMED = re.compile(r"\bset\s+(?:eos|bos)_token\b")  # a template that gives these names its own tokens
UNWRITTEN_BEFORE = re.compile(r"(?:split|replace|startswith|endswith|strip|find|index|==|!=|\bin)\s*\(?\s*$")
UNWRITTEN_AFTER = re.compile(r"^\s*(?:==|!=|not\s+in\b|in\b)")
HARMLESS_AFTER = re.compile(r"[\s+~()|\]]|\b(?:trim|strip|safe)\b|\\n")


def put_template(
    folder: Folder, vocabulary: Vocabulary, config: Document | None, tokens: dict[str, str]
) -> None:
    """Put the chat template and what it says of tokens, where there is one."""
    template = _template(folder, config)
    if template is None:
        return
    source, where = template
    folder.facts.put("tokenizer.chat_template", source, where)
    folder.facts.put("tokenizer.template_source", where.partition(": ")[0].rpartition("/")[2], where)
    folder.facts.put("tokenizer.template_fault", fault_of(source), where)
    try:
        tree = parse(source)
        turn_end = ending(tree, vocabulary.special, {} if RENAMED.search(source) else tokens)
        unknown = unknown_tokens(tree, vocabulary) if vocabulary.whole else []
    except TemplateError:
        return
    folder.put_list("tokenizer.template_unknown_tokens", unknown, where)
    if turn_end:
        folder.facts.put("tokenizer.turn_end", turn_end, where)
        folder.facts.put("tokenizer.turn_end_id", vocabulary.id_of(turn_end), where)


def _template(folder: Folder, config: Document | None) -> tuple[str, str] | None:
    """Return the template in force; transformers takes chat_template.jinja before tokenizer_config.json."""
    text = folder.text("chat_template.jinja", MOST_BYTES)
    if text:
        return text, folder.at("chat_template.jinja")
    documents = (config, folder.document("chat_template.json"))
    for document in documents:
        chosen = _chosen(document.at("chat_template")) if document else None
        if document and chosen:
            return chosen, document.where("chat_template")
    return None


def _chosen(value: Any) -> str | None:
    """Return the one template, or the default among several that have names."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        named = {key: template for key, template in value.items() if isinstance(template, str)}
    elif isinstance(value, list):
        tables = [entry for entry in value if isinstance(entry, dict)]
        named = {
            str(table.get("name")): table["template"]
            for table in tables
            if isinstance(table.get("template"), str)
        }
    else:
        return None
    return named.get("default") or next(iter(named.values()), None)


def unknown_tokens(tree: list[Node], vocabulary: Vocabulary) -> list[str]:
    """Return tokens such as <|im_end|> that the template writes to all and the tokenizer has not.

    What only a conversation with tools meets is left out (DeepSeek-R1-Distill-Llama has no tool tokens).

    Where the tokenizer has none of this form (Zephyr, TinyLlama), they were trained as plain text.
    """
    if not any(PIPED.fullmatch(token) for token in vocabulary.special):
        return []
    written = dict.fromkeys(token for text in _written(tree) for token in PIPED.findall(text))
    return [token for token in written if not vocabulary.known(token) and "tool" not in token]


def _written(nodes: list[Node]) -> Iterator[str]:
    """Yield the texts that may be written; those in conditions, searches and error messages are not."""
    for node in nodes:
        if isinstance(node, Text):
            yield node.text
        elif isinstance(node, Expression):
            yield from _written_by(node.code)
        elif isinstance(node, Loop):
            if "tool" not in node.header:
                yield from _written(node.body)
        else:
            for condition, body in node.branches:
                if not condition or judged(condition, no_tools) is not False:
                    yield from _written(body)


def no_tools(atom: str) -> bool | None:
    """Return the truth of one condition in a conversation without tools."""
    return bool(NOT_THERE.search(atom)) if "tool" in atom else None


NOT_THERE = re.compile(r"is not defined|is none|not in\b|== \[\]|is undefined|!=")


def _written_by(code: str) -> Iterator[str]:
    if "raise_exception" in code:
        return
    parts = list(pieces(code))
    for at, (quoted, text) in enumerate(parts):
        before = parts[at - 1][1][-40:] if at else ""
        after = parts[at + 1][1][:40] if at + 1 < len(parts) else ""
        if quoted and not UNWRITTEN_BEFORE.search(before) and not UNWRITTEN_AFTER.search(after):
            yield text


UNTOLD = "?"  # what is written last is no token, or cannot be told


def ending(tree: list[Node], special: dict[str, int], tokens: dict[str, str]) -> str | None:
    """Return the token that ends an assistant's turn, where all ways through the template agree on one."""
    ends: set[str] = set()
    for loop in _message_loops(tree):
        loop_ends = _Ends(special, tokens).of(loop.body)
        if loop_ends != {""}:
            ends |= loop_ends
    if len(ends) != 1:
        return None
    end = ends.pop()
    return None if end in (UNTOLD, "") else end


def _message_loops(nodes: list[Node]) -> Iterator[Loop]:
    """Yield the loops over messages that write something."""
    for node in nodes:
        if isinstance(node, Loop) and "messages" in node.header:
            yield node
        elif isinstance(node, Choice):
            for _, body in node.branches:
                yield from _message_loops(body)


class _Ends:
    """What may be written last by a list of nodes: tokens, "" for nothing at all, UNTOLD for anything else."""

    def __init__(self, special: dict[str, int], tokens: dict[str, str]) -> None:
        self._special, self._tokens = special, tokens

    def of(self, nodes: list[Node]) -> set[str]:
        ends = {""}
        for node in reversed(nodes):
            ends.discard("")
            ends |= self._of_node(node)
            if "" not in ends:
                break
        return ends

    def _of_node(self, node: Node) -> set[str]:
        if isinstance(node, Text):
            return {self._of_text(node.text)}
        if isinstance(node, Expression):
            return self._of_expression(node.code)
        if isinstance(node, Loop):
            return self.of(node.body) | {""}
        return self._of_choice(node)

    def _of_choice(self, node: Choice) -> set[str]:
        ends: set[str] = set()
        for condition, body in node.branches:
            truth = True if not condition else judged(condition, assistant_speaks)
            if truth is not False:
                ends |= self.of(body)
            if truth is True:
                return ends
        return ends | {""}

    def _of_text(self, text: str) -> str:
        """Return the last token of a written text; text after it is no end, but white space is."""
        if not text.replace("\\n", "").strip():
            return ""
        last = None
        for token in ANGLED.finditer(text):
            last = token if token[0] in self._special or PIPED.fullmatch(token[0]) else last
        if last is None or text[last.end() :].replace("\\n", "").strip():
            return UNTOLD
        return last[0]

    def _of_expression(self, code: str) -> set[str]:
        if "raise_exception" in code:
            return {""}
        if re.search(r"\bif\b", code):
            return {UNTOLD}
        for quoted, text in reversed(list(pieces(code))):
            end = self._of_text(text) if quoted else self._of_code(text)
            if end:
                return {end}
        return {""}

    def _of_code(self, text: str) -> str:
        named = list(NAMED.finditer(text))
        rest = text[named[-1].end() :] if named else text
        if HARMLESS_AFTER.sub("", rest):
            return UNTOLD
        return self._tokens.get(named[-1][0][:3], UNTOLD) if named else ""


ROLE_IS = re.compile(r"""role['"\]\s)]*\s*(==|!=)\s*'(\w+)'|'(\w+)'\s*(==|!=)\s*[\w.\['"]*role""")


def assistant_speaks(atom: str) -> bool | None:
    """Return the truth of one condition while an assistant's plain last answer is written."""
    role = ROLE_IS.search(atom)
    if role:
        same = (role[2] or role[3]) in ("assistant", "model")
        return same if (role[1] or role[4]) == "==" else not same
    if "add_generation_prompt" in atom:
        return False
    if "tool_call" in atom:
        return bool(NOT_THERE.search(atom))
    return None
