"""Whether a page says where its claims can be read again, and whether its examples are what programs print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.knowledge.atlas import message_atlas, programs_hinted
from trtdx.rule import PageProblem, RuleKind, example_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.rule import Rule

PUBLIC_THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")
# A line in the form of a program's own logger: a sentence that only speaks of the program is nobody's message.
PRINTED = re.compile(
    r"\[TensorRT-LLM\]|\[TRT-LLM\]|\bNCCL (?:WARN|INFO)\b|^[IWEF]\d{4} \d\d:\d\d|^\[[\w.-]+:\d+\] .*(?:ORTE|PMIX|MPI)"
)
INVENTED = ("DX000",)  # the page of what nobody knows shows a line that nobody prints
PACKAGED = "DX"  # pages of a team owe nobody a source


def check_sources(rules: Iterable[Rule]) -> Iterator[PageProblem]:
    """Yield the pages that cannot be checked against anything, and the examples that no source is known to print."""
    for rule in rules:
        if not rule.front.retired:
            yield from _harmless_problems(rule)
            yield from _source_problems(rule)
            yield from _example_problems(rule)


def _harmless_problems(rule: Rule) -> Iterator[PageProblem]:
    silent = [log for log in rule.front.log if not log.message]
    if rule.kind is RuleKind.HARMLESS and len(rule.front.log) > 1 and silent:
        message = f"{len(silent)} of {len(rule.front.log)} patterns of a harmless page have no message of their own"
        yield PageProblem(rule.path, 1, message, "harmless")


def _source_problems(rule: Rule) -> Iterator[PageProblem]:
    if rule.code.startswith(PACKAGED):
        lacking = [name for name in ("source", "checked") if not getattr(rule.front, name)]
        if lacking:
            yield PageProblem(rule.path, 1, f"the page has no `{'` and no `'.join(lacking)}`", "source")


def _example_problems(rule: Rule) -> Iterator[PageProblem]:
    """Yield lines of programs whose sources are known that none of them prints.

    A page that names a public thread shows where such a line was seen; one that does not is refused.
    """
    has_thread = any(PUBLIC_THREAD.search(source) for source in rule.front.source)
    is_note = has_thread or not rule.code.startswith(PACKAGED)  # a team's programs are its own
    for example in rule.fires_on:
        lines = [line for line in example.splitlines() if PRINTED.search(line) and programs_hinted(line)]
        if rule.code not in INVENTED and lines and not any(message_atlas().locate(line) for line in lines):
            names = " or ".join(sorted(programs_hinted(lines[0])))
            message = f"is printed nowhere in the sources of {names}"
            problem = example_problem(
                rule, lines[0], message if is_note else f"{message}, and `source` names no thread"
            )
            yield PageProblem(problem.path, problem.line, problem.message, "atlas", is_note=is_note)
