"""Whether a rule page has the form a page must have. Its examples are run by `trtdx.diagnose.rule_examples`."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from trtdx.knowledge.literals import MIN_LENGTH, compile_pattern, required_texts
from trtdx.knowledge.symptom_words import expand_symptom_words, is_complaint
from trtdx.knowledge.template import FILTERS, template_fields
from trtdx.rule import (
    ARTIFACT_EXAMPLES,
    CODE_EXAMPLES,
    COMMAND_EXAMPLES,
    EXAMPLE_SECTIONS,
    LOG_EXAMPLES,
    LOG_LEVELS,
    PAGE_SECTIONS,
    DescriptionPattern,
    EvidencePattern,
    LogPattern,
    PageProblem,
    Rule,
    RuleKind,
    page_section,
    parse_page,
)
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.model import Fix

NEW_PAGE = """+++
code = "CODE"
slug = "SLUG"
severity = "error"            # error | warning | note
stage = "serve"               # install | convert | build | launch | serve
area = "runtime"              # install | convert | build | config | runtime | memory | multigpu | accuracy | performance
kind = "cause"                # cause | symptom (folded under a cause) | harmless (counted, never a finding)
since = "0.1"
message = "what is wrong, in lower case, without a full stop and without the remedy"
verify = "a command that shows it is gone"
described = []                # how users put it in words

[[fix]]
stage = "serve"
text = "what to do"
command = "the command to paste"

[[log]]
pattern = \'\'\'replace this text: (?P<value>\\d+)\'\'\'
message = "the same with the value {value} of the log"
confidence = 0.8
+++
# What is wrong, as a sentence
## Why it happens
One to three sentences that say the cause plainly; they become the finding's `why`.
## What to do
The fixes in detail.
## How to verify
What is seen when it is gone.
## Fires on
    [TensorRT-LLM][ERROR] replace this text: 42
## Stays silent on
    [TensorRT-LLM][INFO] a similar line that is healthy
"""


def check_page(text: str, path: str) -> tuple[Rule | None, list[PageProblem]]:
    """Return the rule and everything about the page that breaks the format; examples are not run here."""
    rule, problems = parse_page(text, path)
    if rule is None:
        return None, problems
    return rule, list(_page_problems(rule, text.splitlines()))


class _Page:
    """A page's lines, to say on which of them a problem is."""

    def __init__(self, rule: Rule, lines: list[str]) -> None:
        self._path, self._lines = rule.path, lines

    def problem_at(self, pattern: str, message: str, nth: int = 0) -> PageProblem:
        numbers = [number for number, line in enumerate(self._lines, 1) if re.search(pattern, line)]
        return PageProblem(self._path, numbers[min(nth, len(numbers) - 1)] if numbers else 1, message)


def _page_problems(rule: Rule, lines: list[str]) -> Iterator[PageProblem]:
    page = _Page(rule, lines)
    yield from _front_problems(rule, page)
    yield from _body_problems(rule, page)
    in_places = [*(log.fix for log in rule.front.log), *(evidence.fix for evidence in rule.front.evidence)]
    for fix in (*rule.front.fix, *(fix for fixes in in_places for fix in fixes)):
        for message in _command_problems(fix):
            yield page.problem_at(re.escape((fix.command or "").partition('"')[0].splitlines()[0][:40]), message)
    for number, log in enumerate(rule.front.log):
        for message in (*_regex_problems(log), *_template_problems(log), *_scale_problems(log)):
            yield page.problem_at(r"^\[\[log\]\]", message, number)
    for number, description in enumerate(rule.front.told):
        for message in _description_problems(description):
            yield page.problem_at(r"^\[\[told\]\]", message, number)
    for number, evidence in enumerate(rule.front.evidence):
        for message in _evidence_problems(evidence):
            yield page.problem_at(r"^\[\[evidence\]\]", message, number)


_ANGLED = re.compile(r"""(?<![<\w"'])<([a-z][\w ./*+-]{0,60})>""")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|#.*""")


def _command_problems(fix: Fix) -> Iterator[str]:
    """Yield why a fix's command cannot be pasted; whether a shell parses it is for the tests to ask the shell."""
    command = re.sub(r"\{\w+(:\w+)?\}", "X", fix.command or "")
    if fix.lang == "sh" and (angled := _ANGLED.search(_QUOTED.sub("", command))):
        name = re.sub(r"\W+", "_", angled[1]).upper()
        yield f"a shell takes <{angled[1]}> for a redirection: write {name}"
    if fix.lang == "yaml":
        import yaml  # most pages have none, and every start would pay for it

        try:
            yaml.safe_load(command)
        except yaml.YAMLError as err:
            yield f"the YAML of a fix does not parse: {str(err).splitlines()[0]}"
    if fix.lang == "python":
        yield from _python_problems(command)
    if problem := _span_problem(fix.holds_for):
        yield problem


def _python_problems(command: str) -> Iterator[str]:
    """Yield why Python cannot be pasted into a program of the reader's own."""
    from trtdx.knowledge.python_names import READERS_NAMES, undefined_names

    try:
        names = undefined_names(command, READERS_NAMES)
    except SyntaxError:
        names = ()
        try:
            ast.parse("async def pasted():\n" + textwrap.indent(command, " "))
        except SyntaxError as err:
            yield f"the Python of a fix does not parse: {err.msg}: {command.splitlines()[0]!r}"
    if names:
        yield f"the Python of a fix defines {', '.join(names)} nowhere: {command.splitlines()[0]!r}"


def _front_problems(rule: Rule, page: _Page) -> Iterator[PageProblem]:
    front = rule.front
    if not re.fullmatch(r"[A-Z]{2,8}\d{3,5}", front.code):
        yield page.problem_at(
            r"^code\s*=", f"the code {front.code!r} is not letters and digits such as DX042 or ACME001"
        )
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", front.slug):
        yield page.problem_at(r"^slug\s*=", f"the slug {front.slug!r} is not words joined by hyphens")
    if front.message != front.message.strip() or front.message.endswith(".") or not front.message:
        yield page.problem_at(r"^message\s*=", "the message is empty, padded or ends with a full stop")
    if not re.fullmatch(r"\d+(\.\d+)*", front.since):
        yield page.problem_at(r"^since\s*=", f"since {front.since!r} is not a version such as 0.1")
    elif front.code.startswith("DX") and Version(front.since) > Version(__version__):
        yield page.problem_at(r"^since\s*=", f"since {front.since} is newer than trtdx {__version__}")
    if problem := _span_problem(front.holds_for):
        yield page.problem_at(r"^holds_for\s*=", problem)
    yield from _content_problems(rule, page)


def _span_problem(holds_for: str) -> str:
    if not holds_for:
        return ""
    from packaging.specifiers import InvalidSpecifier

    from trtdx.knowledge.holds_for import parse_holds_for  # every start would pay for it

    try:
        parse_holds_for(holds_for)
    except InvalidSpecifier as err:
        return f"holds_for is not a version specifier: {err}"
    return ""


def _content_problems(rule: Rule, page: _Page) -> Iterator[PageProblem]:
    """Yield what a page lacks to be of use; a retired one only says what has taken its place."""
    front = rule.front
    if front.retired:
        if rule.has_log_wording or front.found:
            yield page.problem_at(r"^retired\s*=", "a retired page still has patterns, phrases or [found]")
        return
    if not front.fix and front.kind is not RuleKind.HARMLESS:
        yield page.problem_at(r"^\+\+\+", "there is no [[fix]]")
    if not (rule.has_log_wording or front.computed):
        yield page.problem_at(
            r"^\+\+\+",
            "there is no [[log]], [[told]] or [[evidence]] and no `described` phrase, so nothing can find this rule",
        )


def _body_problems(rule: Rule, page: _Page) -> Iterator[PageProblem]:
    if not rule.title:
        yield page.problem_at(r"^\+\+\+", "there is no `# ` heading", 1)
    owed = PAGE_SECTIONS if not rule.front.retired else PAGE_SECTIONS[1:2]
    for name in (*owed, *_example_sections(rule)):
        if not page_section(rule.body, name).strip():
            yield page.problem_at(r"^# ", f"the section `## {name}` is missing or empty")
    for name in EXAMPLE_SECTIONS:
        if page_section(rule.body, name).strip() and not rule.examples(name):
            yield page.problem_at(f"^## {name}", "the example is not indented by four spaces")


# Found in a live machine, build tree or job by `check`, `build` and `run`: their tests break real ones for each code.
LIVE_CODES = frozenset(f"DX{number}" for number in range(1100, 1300))


def _example_sections(rule: Rule) -> Iterator[str]:
    """Yield the examples a page owes: what a rule is found in is what it is shown in."""
    if rule.front.retired or rule.code in LIVE_CODES:
        return
    if rule.front.found is None or rule.has_log_wording:
        yield from LOG_EXAMPLES
    if rule.front.harm is not None:
        yield from ARTIFACT_EXAMPLES
    elif not rule.has_log_wording and rule.front.found is not None:
        yield from CODE_EXAMPLES if rule.examples(CODE_EXAMPLES[0]) else COMMAND_EXAMPLES


def _description_problems(description: DescriptionPattern) -> Iterator[str]:
    if len(description.all) < 2:
        yield "a [[told]] needs at least two things that a description speaks of in `all`"
    if not 0 < description.confidence <= 0.7:
        yield f"the confidence {description.confidence} of a [[told]] is not between 0 and 0.7: words prove little"
    for part in (*description.all, *description.none):
        problem = _regex_problem(part)
        if problem:
            yield f"{part!r} {problem}"


def _evidence_problems(evidence: EvidencePattern) -> Iterator[str]:
    if not evidence.mentions or any(text != text.lower() or not text for text in evidence.mentions):
        yield "`mentions` of an [[evidence]] is text in lower case, at least one"
    if len(evidence.all) < 2:
        yield "an [[evidence]] needs at least two things in `all`: a symptom, and what it is seen beside"
    if not any(map(is_complaint, evidence.all)):
        yield "an [[evidence]] without a complaint in `all` ({fails}, {wrong}, {said} ...) fires on healthy logs"
    if not 0 < evidence.confidence <= 0.9:
        yield f"the confidence {evidence.confidence} of an [[evidence]] is not between 0 and 0.9"
    if evidence.fixed and not (evidence.releases and evidence.source and evidence.message):
        yield "a bug that was fixed needs `releases`, `source` and a `message`"
    try:
        SpecifierSet(evidence.releases)
    except InvalidSpecifier as err:
        yield f"releases is not a version specifier: {err}"
    for part in (*evidence.all, *evidence.none):
        try:
            problem = _regex_problem(expand_symptom_words(part))
        except KeyError as err:
            problem = f"names words that are not in symptom_words.py: {err}"
        if problem:
            yield f"{part!r} {problem}"


def _regex_problems(log: LogPattern) -> Iterator[str]:
    for pattern in (log.pattern, *log.requires, *log.unless):
        problem = _regex_problem(pattern)
        if problem:
            yield f"the pattern {pattern!r} {problem}"
    if not _regex_problem(log.pattern) and not required_texts(log.pattern):
        yield f"the pattern {log.pattern!r} has no fixed run of {MIN_LENGTH} ASCII characters that every match contains"


def _regex_problem(pattern: str) -> str:
    from trtdx.knowledge.pattern_cost import exponential_part  # every start would pay for it

    try:
        is_empty = compile_pattern(pattern).match("")
    except (re.error, RecursionError, OverflowError) as err:
        return f"is not a regular expression: {err}"
    if part := exponential_part(pattern):
        return f"can take for ever on a line that does not fit: it has {part}"
    return "matches an empty line" if is_empty else ""


def _template_problems(log: LogPattern) -> Iterator[str]:
    if _regex_problem(log.pattern):
        return
    groups = set(compile_pattern(log.pattern).groupindex)
    for template in (
        log.message,
        log.why,
        *(part for fix in log.fix for part in (fix.text, fix.command or "")),
    ):
        yield from _placeholder_problems(template, groups)


def _placeholder_problems(template: str, groups: set[str]) -> Iterator[str]:
    try:
        fields = template_fields(template)
    except ValueError as err:
        yield f"the template {template!r} has a stray brace: {err}"
        return
    for name, spec in fields:
        if name not in groups:
            yield f"{{{name}}} is not a named group of the pattern"
        if spec and spec not in FILTERS:
            yield f"{{{name}:{spec}}}: no such filter; there are {', '.join(FILTERS)}"


def _scale_problems(log: LogPattern) -> Iterator[str]:
    for level in log.level:
        if level not in LOG_LEVELS:
            yield f"the level {level!r} is none of {', '.join(LOG_LEVELS)}"
    if not 0 < log.confidence <= 1:
        yield f"the confidence {log.confidence} is not between 0 and 1"
