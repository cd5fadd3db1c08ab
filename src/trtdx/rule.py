"""A rule: the knowledge behind one code, written as one Markdown page with TOML front matter."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Literal

import msgspec

from trtdx.errors import RulePageError, UnknownNameError
from trtdx.model import Fix, Severity, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PAGE_SECTIONS = ("Why it happens", "What to do", "How to verify")
LOG_EXAMPLES = ("Fires on", "Stays silent on")
ARTIFACT_EXAMPLES = ("Artifacts that fire", "Artifacts that stay silent")
COMMAND_EXAMPLES = ("Commands that fire", "Commands that stay silent")
CODE_EXAMPLES = ("Code that fires", "Code that stays silent")
EXAMPLE_SECTIONS = (*LOG_EXAMPLES, *ARTIFACT_EXAMPLES, *COMMAND_EXAMPLES, *CODE_EXAMPLES)
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal", "unknown")


class RuleKind(str, Enum):
    """What a match of the rule means."""

    CAUSE = "cause"
    SYMPTOM = "symptom"  # a consequence: folded under a cause when there is one
    HARMLESS = "harmless"  # alarming and fine: counted, never a finding


class RuleHarm(str, Enum):
    """What a computed rule's violation does to its user."""

    SILENT = "silent"  # wrong output and no error
    LOAD = "load"  # fails to convert, build or load
    REQUEST = "request"  # a request is refused or fails
    SLOW = "slow"  # works, and wastes time or memory


class FindingTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The words for what Python computed, with its values put in."""

    message: str = ""
    why: str = ""
    verify: str = ""
    fix: tuple[Fix, ...] = ()


class LogPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wording of the cause in a log, with what is said about it."""

    pattern: str
    message: str = ""
    why: str = ""
    fix: tuple[Fix, ...] = ()
    confidence: float = 0.8
    severity: Severity | None = None  # where this wording is less (or more) grave than the page says
    level: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


class DescriptionPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cause in a user's own words: what their description speaks of, and what it must not speak of."""

    all: tuple[str, ...]  # regular expressions; each must be found somewhere in the description
    none: tuple[str, ...] = ()
    confidence: float = 0.5

    def matches_description(
        self, text: str, search: Callable[[re.Pattern[str], str], re.Match[str] | None] = re.Pattern.search
    ) -> bool:
        return all(search(compile_description_regex(part), text) for part in self.all) and not any(
            search(compile_description_regex(part), text) for part in self.none
        )


class EvidencePattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cause that no single line shows: a symptom beside a command, a setting, a release or a GPU, anywhere in a report."""

    mentions: tuple[str, ...]  # plain text in lower case; where none of it is in the report, nothing else is looked for
    all: tuple[str, ...]  # regular expressions; each must be found somewhere in the report
    none: tuple[str, ...] = ()
    over: tuple[str, ...] = ()  # pages that see only the symptom of what this one explains
    releases: str = ""  # a bug of these releases of TensorRT-LLM
    fixed: str = ""  # the first release without the bug
    source: tuple[str, ...] = ()
    message: str = ""
    why: str = ""
    fix: tuple[Fix, ...] = ()
    confidence: float = 0.75


class FrontMatter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stands between the `+++` lines of a page."""

    code: str
    slug: str
    severity: Severity
    stage: Stage
    area: Literal["install", "convert", "build", "config", "runtime", "memory", "multigpu", "accuracy", "performance"]
    message: str
    verify: str
    kind: RuleKind = RuleKind.CAUSE
    since: str
    retired: str = ""  # the version from which on nothing finds it; its code stays known
    replaced_by: str = ""  # the code that has taken a retired page's place
    computed: bool = False  # found by Python that names the code, not (only) by patterns or phrases
    found: FindingTemplate | None = None
    harm: RuleHarm | None = None
    holds_for: str = ""
    checked: str = ""  # when, and against which releases, a reader held the page against its sources
    source: tuple[str, ...] = ()  # "path@tag" in TensorRT-LLM, or "owner/repository#number"
    follows: tuple[str, ...] = ()
    described: tuple[str, ...] = ()
    fix: tuple[Fix, ...] = ()
    log: tuple[LogPattern, ...] = ()
    told: tuple[DescriptionPattern, ...] = ()
    evidence: tuple[EvidencePattern, ...] = ()


class Rule(msgspec.Struct, frozen=True):
    """One cause: its front matter, its page and its examples."""

    front: FrontMatter
    title: str
    why: str
    body: str
    fires_on: tuple[str, ...]
    silent_on: tuple[str, ...]
    artifacts_fire: tuple[str, ...]
    artifacts_silent: tuple[str, ...]
    path: str
    front_lines: int  # how many lines of the page come before the body

    @property
    def code(self) -> str:
        return self.front.code

    @property
    def slug(self) -> str:
        return self.front.slug

    @property
    def kind(self) -> RuleKind:
        return self.front.kind

    def examples(self, section: str) -> tuple[str, ...]:
        """Return the examples under one heading."""
        return indented_examples(page_section(self.body, section))

    @property
    def has_log_wording(self) -> bool:
        """Whether log text or words can find it; DX000 and what is only computed from artifacts cannot be."""
        return bool(self.front.log or self.front.told or self.front.evidence or self.front.described)

    def is_named(self, name: str) -> bool:
        return name.lower() in (self.code.lower(), self.slug.lower())


class PageProblem(msgspec.Struct, frozen=True):
    """What is wrong with a page, and where."""

    path: str
    line: int
    message: str
    check: str = "form"  # form, example, inventory, source: what an auditor works through one by one
    is_note: bool = False  # worth a reader's look, and no reason to refuse the page

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class RuleBook:
    """All rules in force, found by code or slug."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(sorted(rules, key=_code_order))
        self._by_name: dict[str, Rule] = {}
        for rule in self.rules:
            self._add(rule)

    def _add(self, rule: Rule) -> None:
        for name in (rule.code.lower(), rule.slug.lower()):
            other = self._by_name.setdefault(name, rule)
            if other is not rule:
                raise RulePageError(
                    f"{name} is claimed by two pages: {other.path} and {rule.path}",
                    fix="give one of them a new code and slug",
                )

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def get(self, name: str) -> Rule:
        rule = self._by_name.get(name.strip().lower())
        if rule is None:
            raise UnknownNameError(
                "rule",
                name,
                [
                    code_or_slug.upper() if code_or_slug.startswith("dx") else code_or_slug
                    for code_or_slug in self._by_name
                ],
            )
        return rule

    def has_rule(self, name: str) -> bool:
        return name.lower() in self._by_name


def _code_order(rule: Rule) -> tuple[str, int]:
    """Return what puts DX1000 behind DX999."""
    letters = rule.code.rstrip("0123456789")
    return letters, int(rule.code[len(letters) :] or 0)


@cache
def compile_description_regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def example_problem(rule: Rule, example: str, message: str) -> PageProblem:
    """Return a problem of an example, at the line of the page on which the example begins."""
    first = example.splitlines()[0]
    lines = rule.body.splitlines()
    number = next((number for number, line in enumerate(lines, 1) if line.strip() == first.strip()), 1)
    return PageProblem(rule.path, number + rule.front_lines, f"the example {first[:80]!r} {message}", "example")


def iterate_log_patterns(rules: Iterable[Rule]) -> Iterator[str]:
    """Yield every pattern that is looked for in logs, conditions included."""
    for rule in rules:
        for log in rule.front.log:
            yield from (log.pattern, *log.requires, *log.unless)


def parse_rule(text: str, path: str) -> Rule:
    """Return the rule a page states, or raise with every problem that keeps it from being read."""
    rule, problems = parse_page(text, path)
    if rule is None:
        raise RulePageError("; ".join(map(str, problems)), fix="trtdx rules check " + path)
    return rule


def parse_page(text: str, path: str) -> tuple[Rule | None, list[PageProblem]]:
    """Return the rule, or None and why it cannot be read."""
    split = re.match(r"\+\+\+\r?\n(.*?)^\+\+\+\r?\n(.*)\Z", text, re.DOTALL | re.MULTILINE)
    if split is None:
        return None, [PageProblem(path, 1, "the page does not start with front matter between two lines of +++")]
    try:
        front = msgspec.toml.decode(split[1], type=FrontMatter)
    except msgspec.ValidationError as err:
        return None, [PageProblem(path, _line_of_field(split[1], str(err)), str(err))]
    except (msgspec.DecodeError, ValueError) as err:
        return None, [PageProblem(path, _line_in_message(str(err)) + 1, f"the front matter is not TOML: {err}")]
    body = split[2]
    title = re.search(r"^# (.+)$", body, re.MULTILINE)
    return Rule(
        front=front,
        title=title[1].strip() if title else "",
        why=_first_paragraph(page_section(body, "Why it happens")),
        body=body.strip() + "\n",
        fires_on=indented_examples(page_section(body, "Fires on")),
        silent_on=indented_examples(page_section(body, "Stays silent on")),
        artifacts_fire=indented_examples(page_section(body, "Artifacts that fire")),
        artifacts_silent=indented_examples(page_section(body, "Artifacts that stay silent")),
        path=path,
        front_lines=text[: len(text) - len(body.lstrip())].count("\n"),
    ), []


def page_section(body: str, heading: str) -> str:
    """Return the text under one `## ` heading."""
    match = re.search(rf"^## {re.escape(heading)}[ \t]*\n(.*?)(?=^## |\Z)", body, re.DOTALL | re.MULTILINE)
    return match[1] if match else ""


def indented_examples(text: str) -> tuple[str, ...]:
    """Return the blocks of lines indented by four; any other line that is not blank ends a block."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line[4:])
        elif line.strip():
            blocks.append([])
        elif blocks[-1]:
            blocks[-1].append("")
    return tuple("\n".join(block).strip("\n") for block in blocks if any(line.strip() for line in block))


def _first_paragraph(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip().split("\n\n")[0]).replace("`", "")


def _line_in_message(message: str) -> int:
    match = re.search(r"line (\d+)", message)
    return int(match[1]) if match else 1


def _line_of_field(front: str, message: str) -> int:
    """Return the page's line that a validation error such as "... - at `$.log[1].pattern`" is about."""
    lines = front.splitlines()
    where = re.search(r"\$(?:\.(log|fix|told|evidence)\[(\d+|\.\.\.)\])?(?:\.(\w+))?", message)
    unknown = re.search(r"unknown field `(\w+)`", message)
    key = unknown[1] if unknown else where[3] if where and where[3] else None
    start = 0
    if where and where[1] and where[2] != "...":
        starts = [number for number, line in enumerate(lines) if line.strip() == f"[[{where[1]}]]"]
        start = starts[int(where[2])] if int(where[2]) < len(starts) else 0
    for number in range(start, len(lines)):
        if key and re.match(rf"\s*{key}\s*=", lines[number]):
            return number + 2
    return start + 2
