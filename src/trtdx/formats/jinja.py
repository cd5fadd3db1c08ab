"""Templates parsed by Jinja's own parser, as far as what they write is of interest: none is ever rendered.

Templates are hostile input. Parsing runs no code of theirs; trees may be deeper than Python's stack, so whoever walks
one catches `RecursionError`. Jinja is imported with this module, which is why users of it import it late.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jinja2.parser import Parser

MAX_CHARACTERS = 400_000  # the longest template in use has about 20,000
# Statements that write nothing where they stand.
_SILENT = (
    nodes.Macro, nodes.Assign, nodes.AssignBlock, nodes.ExprStmt, nodes.Continue, nodes.Break, nodes.Include,
    nodes.Import, nodes.FromImport, nodes.Extends,
)  # fmt: skip


class TemplateError(ValueError):
    """The template is not understood; nothing is said about it then."""


class _Generation(Extension):
    """The tag by which transformers marks what the assistant says: it writes its body."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def _parsing_environment() -> Environment:
    """Return an environment that knows every tag a chat template may have, those of extensions included."""
    extensions = (
        "jinja2.ext.do",
        "jinja2.ext.loopcontrols",
        "jinja2.ext.i18n",
        "jinja2.ext.debug",
        _Generation,
    )
    return Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions, autoescape=True)


def parse_template(source: str) -> tuple[nodes.Template | None, str]:
    """Return the tree of a template, or None and why Jinja refuses it; no reason where that is not certain."""
    if len(source) > MAX_CHARACTERS:
        return None, ""
    try:
        return _parsing_environment().parse(source), ""
    except TemplateSyntaxError as err:
        return None, f"line {err.lineno}: {(err.message or 'a syntax error').rstrip('.')}"
    except (
        RecursionError,
        ValueError,
        OverflowError,
    ):  # nested too deeply; a number with thousands of digits
        return None, ""


def written_nodes(body: list[nodes.Node]) -> Iterator[nodes.TemplateData | nodes.Expr | nodes.For | nodes.If]:
    """Yield what a list of statements writes, in order: texts, expressions, loops and choices."""
    for node in body:
        if isinstance(node, nodes.Output):
            yield from node.nodes
        elif isinstance(node, nodes.For | nodes.If):
            yield node
        elif not isinstance(node, _SILENT):
            raise TemplateError(f"{type(node).__name__} is not understood")


def choice_branches(choice: nodes.If) -> Iterator[tuple[nodes.Node | None, list[nodes.Node]]]:
    """Yield the branches of an `if` with their conditions; that of `else` is None."""
    for branch in (choice, *choice.elif_):
        yield branch.test, branch.body
    if choice.else_:
        yield None, choice.else_


def mentions_word(node: nodes.Node, word: str) -> bool:
    """Whether a name, an attribute or a text in an expression contains a word."""
    return any(word in _own_text(part) for part in (node, *node.find_all((nodes.Name, nodes.Getattr, nodes.Const))))


def _own_text(node: nodes.Node) -> str:
    if isinstance(node, nodes.Const):
        return node.value if isinstance(node.value, str) else ""
    return str(getattr(node, "attr", "") or getattr(node, "name", ""))


def condition_truth(condition: nodes.Node, atom_truth: Callable[[nodes.Node], bool | None]) -> bool | None:
    """Return a condition's truth from the truth of its parts (a function), or None where it cannot be told."""
    if isinstance(condition, nodes.Not):
        value = condition_truth(condition.node, atom_truth)
        return None if value is None else not value
    if not isinstance(condition, nodes.And | nodes.Or):
        return atom_truth(condition)
    decisive = isinstance(condition, nodes.Or)  # the truth of one side that settles the whole
    sides = [condition_truth(side, atom_truth) for side in (condition.left, condition.right)]
    return decisive if decisive in sides else None if None in sides else not decisive
