"""Whether what a rule page mentions is there in the releases that the page speaks of."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.shell import parse_shell
from trtdx.inspect.mentions.code_mentions import mentions_in_python, mentions_in_yaml
from trtdx.inspect.mentions.nouns import NameMention, check_mention
from trtdx.inspect.mentions.prose_mentions import mentions_in_prose
from trtdx.inspect.mentions.shell_mentions import distinct_mentions, mentions_in_shell
from trtdx.knowledge.holds_for import releases_to_hold
from trtdx.knowledge.inventory import (
    describe_releases,
    era_of_release,
    find_flag,
    find_option,
    product_releases,
    releases_with,
)
from trtdx.knowledge.python_names import undefined_names
from trtdx.render.markdown import is_command
from trtdx.render.page import without_examples
from trtdx.rule import PageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trtdx.model import Fix
    from trtdx.rule import Rule

# Names that are right although no release of the inventory has them, each with its reason.
RIGHT_BY_OTHER_MEANS: dict[str, str] = {
    "--mca": "Open MPI 4 takes it too; it is defined outside of mpirun's own table there",
    "-mca": "the same",
    "-hosts": "MPICH's mpiexec takes it",
    "./build.py": "Triton server's own build script",
    "NCCL_HOME": "read by the build of programs that link to NCCL, not by NCCL",
}
VALUE = re.compile(r"\{\w+(?::\w+)?\}")  # put in when the page is used
HEREDOC_YAML = (".yaml", ".yml")


class _Claim(NamedTuple):
    """Text of a page that names things, what it is written in, and for which releases it is to be true."""

    text: str
    lang: str  # sh, python, yaml, prose
    holds_for: str


def check_claims(rules: Iterable[Rule], texts: Mapping[str, str]) -> Iterator[PageProblem]:
    """Yield what pages mention that the releases they speak of do not have; `texts` are the pages by their paths."""
    for rule in rules:
        if not rule.front.retired:
            yield from _page_claim_problems(rule, texts[rule.path].splitlines())


def page_fixes(rule: Rule) -> tuple[Fix, ...]:
    """Return every fix of a page: its own, those of its patterns, and those of what code finds."""
    computed = rule.front.found.fix if rule.front.found else ()
    return (*rule.front.fix, *(fix for log in rule.front.log for fix in log.fix), *computed)


def _page_claim_problems(rule: Rule, lines: Sequence[str]) -> Iterator[PageProblem]:
    messages: dict[str, str] = {}  # by the name that they are about
    for claim in _claims(rule):
        for name, message in _claim_problems(claim):
            messages.setdefault(message, name)
    for message, name in messages.items():
        number = next((number for number, line in enumerate(lines, 1) if name in line), 1)
        yield PageProblem(rule.path, number, message, "inventory")


def _claims(rule: Rule) -> Iterator[_Claim]:
    for fix in page_fixes(rule):
        holds_for = fix.holds_for or rule.front.holds_for
        yield _Claim(VALUE.sub("X", fix.text), "prose", holds_for)
        if fix.command:
            yield _Claim(VALUE.sub("X", fix.command), fix.lang, holds_for)
    verify = VALUE.sub("X", rule.front.verify)
    yield _Claim(verify, "sh" if is_command(verify) else "prose", rule.front.holds_for)
    yield _Claim(without_examples(rule.body), "prose", rule.front.holds_for)


def _claim_problems(claim: _Claim) -> Iterator[tuple[str, str]]:
    """Yield the name and what is wrong with it."""
    if claim.lang == "prose":
        for mention, is_dated in dict.fromkeys(mentions_in_prose(claim.text)):
            message = _describe_missing(mention, claim.holds_for)
            if message and not (is_dated and _exists_anywhere(mention)):
                yield mention.name, message
        return
    mentions = distinct_mentions(_mentions_in(claim))
    absent = {
        mention.program
        for mention in mentions
        if mention.kind == "program" and _describe_missing(mention, claim.holds_for)
    }
    for mention in mentions:
        if mention.kind == "flag" and (mention.program in absent or mention.program in RIGHT_BY_OTHER_MEANS):
            continue  # one cause, one problem
        if message := _describe_missing(mention, claim.holds_for):
            yield mention.name, message
    if claim.lang == "sh":
        yield from _undefined_in_shell(claim.text)


def _mentions_in(claim: _Claim) -> Iterator[NameMention]:
    if claim.lang == "yaml":
        yield from mentions_in_yaml(claim.text)
    elif claim.lang == "python":
        yield from mentions_in_python(claim.text)
    elif claim.lang == "sh":
        yield from mentions_in_shell(claim.text)
        for path, (text, _) in parse_shell(claim.text).files.items():
            if path.endswith(HEREDOC_YAML):
                yield from mentions_in_yaml(text)
        for program in python_programs(claim.text):
            yield from mentions_in_python(program)


def python_programs(text: str) -> Iterator[str]:
    """Yield the Python that a shell text hands to `python3 -c`."""
    for command in parse_shell(text).commands:
        words = [word.text for word in command.words]
        for at, word in enumerate(words[:-1]):
            if word == "-c" and any(re.fullmatch(r"(?:.*/)?python[\d.]*", before) for before in words[:at]):
                yield words[at + 1]


def _undefined_in_shell(text: str) -> Iterator[tuple[str, str]]:
    for program in python_programs(text):
        try:
            names = undefined_names(program)
        except SyntaxError as err:
            yield program[:30], f"the Python of `python3 -c` does not parse: {err.msg}"
            continue
        if names:
            yield "python", f"the Python of `python3 -c` defines {', '.join(names)} nowhere"


@cache
def _describe_missing(mention: NameMention, holds_for: str) -> str:
    """Return which of the releases that a claim is about lack what it mentions, and which have it."""
    if mention.name in RIGHT_BY_OTHER_MEANS:
        return ""
    if mention.kind == "any-flag":
        return _describe_bare_flag(mention, holds_for)
    missing: dict[str, list[str]] = defaultdict(list)
    for release in releases_to_hold(holds_for, mention.product):
        if message := check_mention(mention, release):
            missing[
                re.sub(rf"(?:, not)? in {re.escape(release)}(?![\w.])|, not in the newest release", "", message)
            ].append(release)
    return "; ".join(f"{message} (not in {_shorten(releases)})" for message, releases in missing.items())


def _shorten(releases: list[str]) -> str:
    return ", ".join(releases) if len(releases) < 4 else f"{releases[0]} to {releases[-1]}"


def _describe_bare_flag(mention: NameMention, holds_for: str) -> str:
    """Return that no program has a flag any more; which one is meant is not said, so one that has it is enough."""
    entries = [entry for program in mention.program.split() for entry in find_flag(program, mention.name)]
    for entry in entries:
        if all(era_of_release(entry, release) for release in releases_to_hold(holds_for, entry.product)):
            return ""
    last = max(entries, key=lambda entry: len(releases_with(entry)))
    missing = [release for release in releases_to_hold(holds_for, last.product) if not era_of_release(last, release)]
    return f"{mention.name}: {last.tool} has it {describe_releases(last)} (not in {_shorten(missing)})"


def _exists_anywhere(mention: NameMention) -> bool:
    if mention.kind in ("any-flag", "folder"):
        return True
    if mention.kind == "option":  # some old releases take any key
        return find_option(mention.name) is not None
    return any(not check_mention(mention, release) for release in product_releases(mention.product))
