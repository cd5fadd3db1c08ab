"""A chat template as a tree of what it may write, as far as its ends need it: no template is ever run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_CHARACTERS = 400_000  # the longest template in use has about 20,000
MOST_DEPTH = 60
MOST_ATOMS = 400  # of one condition

OPENING = re.compile(r"\{[%{#]")
CLOSINGS = {"{%": "%}", "{{": "}}", "{#": "#}"}
OPENERS = {"if", "for", "macro", "call", "filter", "generation", "raw", "block", "with", "autoescape"}


CLOSED_BY = {
    word: f"end{word}"
    for word in (
        "if", "for", "macro", "call", "filter", "generation", "raw", "block", "with", "autoescape", "trans",
    )
}  # fmt: skip
MIDDLE = {"elif": ("if",), "else": ("if", "for"), "pluralize": ("trans",)}
ALONE = {"set", "break", "continue", "do", "include", "import", "from", "extends", "debug"}
MARK = re.compile(r"""['"(){}\[\]]|%\}""")


class Text(NamedTuple):
    """Characters that are written as they are."""

    text: str


class Expression(NamedTuple):
    """Something that is computed and written."""

    code: str


class Loop(NamedTuple):
    """A `for`, with what it goes over."""

    header: str
    body: list[Node]


class Choice(NamedTuple):
    """An `if` with its branches; the last condition is "" where there is an `else`."""

    branches: list[tuple[str, list[Node]]]


Node = Text | Expression | Loop | Choice


class TemplateError(ValueError):
    """The template is not understood; nothing is said about it then."""


def parse(source: str) -> list[Node]:
    """Return the tree of a template, or raise when its blocks do not close or are not understood."""
    if len(source) > MOST_CHARACTERS:
        raise TemplateError("too long")
    nodes, end = _body(_parts(source), 0)
    if end:
        raise TemplateError(f"{end} without a beginning")
    return nodes


def _parts(source: str) -> Iterator[tuple[str, str]]:
    """Yield ("text" | "code" | "write", content) in order."""
    at = 0
    while found := OPENING.search(source, at):
        end = source.find(CLOSINGS[found[0]], found.end())
        if end < 0:
            raise TemplateError(f"{found[0]} is not closed")
        if found.start() > at:
            yield "text", source[at : found.start()]
        content = source[found.end() : end].strip("-+ \t\r\n")
        if found[0] != "{#":
            yield "code" if found[0] == "{%" else "write", content
        at = end + 2
    if at < len(source):
        yield "text", source[at:]


def _body(parts: Iterator[tuple[str, str]], depth: int) -> tuple[list[Node], str]:
    """Return the nodes up to the tag that ends this block, and that tag."""
    nodes: list[Node] = []
    if depth > MOST_DEPTH:
        raise TemplateError("nested too deeply")
    for kind, content in parts:
        if kind == "text":
            nodes.append(Text(content))
        elif kind == "write":
            nodes.append(Expression(content))
        else:
            word = content.split(None, 1)[0].rstrip("(") if content else ""
            if word.startswith(("end", "el")):
                return nodes, content
            nodes += _block(word, content, parts, depth)
    return nodes, ""


def _block(word: str, content: str, parts: Iterator[tuple[str, str]], depth: int) -> list[Node]:
    if word == "for":
        body, end = _body(parts, depth + 1)
        if end.startswith("else"):  # what is written when there was nothing to go over
            _, end = _body(parts, depth + 1)
        _expect(end, "endfor")
        return [Loop(content[3:].strip(), body)]
    if word == "if":
        return [_choice(content[2:].strip(), parts, depth)]
    if word == "generation":
        body, end = _body(parts, depth + 1)
        _expect(end, "endgeneration")
        return body
    if word == "macro" or (word == "set" and "=" not in content):
        _body(parts, depth + 1)  # written elsewhere, if at all
        return []
    if word in OPENERS:
        raise TemplateError(f"{word} is not understood")
    return []


def _choice(condition: str, parts: Iterator[tuple[str, str]], depth: int) -> Choice:
    branches: list[tuple[str, list[Node]]] = []
    while True:
        body, end = _body(parts, depth + 1)
        branches.append((condition, body))
        if end.startswith("elif"):
            condition = end[4:].strip()
        elif end.startswith("else"):
            condition = ""
        else:
            _expect(end, "endif")
            return Choice(branches)


def _expect(end: str, wanted: str) -> None:
    if not end.startswith(wanted):
        raise TemplateError(f"{wanted} is missing")


def fault_of(source: str) -> str | None:
    """Return why Jinja cannot parse a template, or None where it can or where that is not certain."""
    blocks: list[str] = []
    try:
        for content in _tags(source[:MOST_CHARACTERS]):
            found = re.match(r"\w+", content)
            problem = _taken(blocks, found[0], content) if found else None
            if problem:
                return problem
    except TemplateError:
        return None
    return f"`{blocks[-1]}` is never closed" if blocks and len(source) <= MOST_CHARACTERS else None


def _taken(blocks: list[str], word: str, content: str) -> str | None:
    """Open or close a block; return what is wrong with a tag at this place."""
    inner = blocks[-1] if blocks else ""
    if word in CLOSED_BY or (word == "set" and "=" not in content):
        blocks.append(word)
    elif word in MIDDLE:
        return None if inner in MIDDLE[word] else f"`{word}` stands outside of what it belongs to"
    elif word.startswith("end") and word[3:] in {*CLOSED_BY, "set"}:
        if inner != word[3:]:
            return f"`{word}` stands where " + (f"`{inner}` is open" if inner else "nothing is open")
        blocks.pop()
    elif word not in ALONE:
        return f"`{word}` is not a tag that Jinja knows"
    return None


def _tags(source: str) -> Iterator[str]:
    """Yield what stands in {% %}, as Jinja sees it: comments, raw text and expressions hide nothing."""
    at = 0
    while found := OPENING.search(source, at):
        if found[0] == "{#":
            at = source.find("#}", found.end()) + 2
            if at < 2:
                raise TemplateError("a comment is not closed")
            continue
        end = _end_of_code(source, found.end(), CLOSINGS[found[0]])
        content, at = source[found.end() : end].strip("-+ \t\r\n"), end + 2
        if found[0] == "{%":
            yield content
        if content == "raw" and found[0] == "{%":
            closed = re.compile(r"\{%[-+]?\s*endraw\b").search(source, at)
            if closed is None:
                raise TemplateError("raw is not closed")
            at = closed.start()


def _end_of_code(source: str, at: int, closing: str) -> int:
    """Return where code ends; what closes it does not count within quotations and brackets."""
    depth = 0
    while found := MARK.search(source, at):
        mark, at = found[0], found.end()
        if not depth and source.startswith(closing, found.start()):
            return found.start()
        if mark in QUOTED:
            closed = QUOTED[mark].match(source, at)
            if closed is None:
                raise TemplateError("a quotation is not closed")
            at = closed.end()
        elif mark == "%}":
            at -= 1
        else:
            depth += 1 if mark in "([{" else -1
            if depth < 0:
                raise TemplateError("a bracket is not open")
    raise TemplateError(f"{closing} is missing")


QUOTED = {
    "'": re.compile(r"(?:[^'\\]|\\.)*'", re.DOTALL),
    '"': re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL),
}
QUOTE = re.compile("['\"]")


def pieces(code: str) -> Iterator[tuple[bool, str]]:
    """Yield an expression's pieces in order: (True, a quoted text) and (False, what stands between)."""
    at = 0
    while found := QUOTE.search(code, at):
        if found.start() > at:
            yield False, code[at : found.start()]
        closed = QUOTED[found[0]].match(code, found.end())
        if closed is None:
            raise TemplateError("a quotation is not closed")
        yield True, code[found.end() : closed.end() - 1]
        at = closed.end()
    if at < len(code):
        yield False, code[at:]


def judged(condition: str, atom_value: Callable[[str], bool | None]) -> bool | None:
    """Return a condition's truth from the truth of its parts (a function), or None where it cannot be told."""
    return _Judge(condition, atom_value).result()


class _Judge:
    """Reads `and`, `or`, `not` and parentheses; everything between them is one atom."""

    def __init__(self, condition: str, atom_value: Callable[[str], bool | None]) -> None:
        self._items = list(_boolean_items(condition))[:MOST_ATOMS]
        self._at = 0
        self._atom_value = atom_value

    def result(self) -> bool | None:
        try:
            value = self._either(0)
        except (IndexError, TemplateError):
            return None
        return value if self._at == len(self._items) else None

    def _peek(self) -> str:
        return self._items[self._at] if self._at < len(self._items) else ""

    def _either(self, depth: int) -> bool | None:
        values = [self._both(depth)]
        while self._peek() == "or":
            self._at += 1
            values.append(self._both(depth))
        return True if True in values else None if None in values else False

    def _both(self, depth: int) -> bool | None:
        values = [self._one(depth)]
        while self._peek() == "and":
            self._at += 1
            values.append(self._one(depth))
        return False if False in values else None if None in values else True

    def _one(self, depth: int) -> bool | None:
        if depth > MOST_DEPTH:
            raise TemplateError("nested too deeply")
        item = self._items[self._at]
        self._at += 1
        if item == "not":
            value = self._one(depth + 1)
            return None if value is None else not value
        if item == "(":
            value = self._either(depth + 1)
            if self._peek() != ")":
                raise TemplateError("a parenthesis is not closed")
            self._at += 1
            return value
        if item in (")", "and", "or"):
            raise TemplateError("no condition")
        return self._atom_value(item)


WORD = re.compile(r"\b(?:and|or|not)\b|[()]|[^\s()]+|\s+")


def _boolean_items(condition: str) -> Iterator[str]:
    """Yield operators, parentheses and atoms; the parentheses of a call and `is not`, `not in` are the atom's."""
    atom: list[str] = []
    calls = 0
    for item in _words(condition):
        before = atom[-1][-1:] if atom else ""
        calling = item == "(" and (before.isalnum() or before in ("_", "]"))
        if calls or calling:
            calls += (item == "(") - (item == ")")
        elif item in ("and", "or", "(", ")") or (item == "not" and not "".join(atom).strip()):
            if text := "".join(atom).strip():
                yield text
            atom = []
            yield item
            continue
        atom.append(item)
    if text := "".join(atom).strip():
        yield text


def _words(condition: str) -> Iterator[str]:
    for quoted, text in pieces(condition):
        if quoted:
            yield f"'{text}'"
        else:
            yield from WORD.findall(text)
