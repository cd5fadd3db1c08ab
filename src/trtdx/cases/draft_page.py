"""A rule page drafted from a resolved case: its resolution in words, its log lines as the example that fires."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from trtdx.cases.fingerprints import line_fingerprint
from trtdx.diagnose.logs.prefixes import peel_line
from trtdx.errors import CaseError
from trtdx.knowledge.page_format import format_page
from trtdx.rule import RuleKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.cases.nouns import OpenedCase, StoredCase
    from trtdx.rule import RuleBook

MAX_PATTERN = 160
MAX_EXAMPLE_LINES = 3
HEALTHY_LINE = "[TensorRT-LLM][INFO] Engine loaded"
# What differs from run to run becomes a class of characters; the rest of the line is what the pattern looks for.
_CHANGING = re.compile(
    r"(?P<path>(?<![\w.])(?:~|\.{1,2})?/[\w./@+~-]+)|(?P<hex>\b0[xX][0-9a-fA-F]+)|(?P<number>\d+(?:[.,]\d+)*)"
)
_CLASSES = {"path": r"\S+", "hex": r"0[xX][0-9a-fA-F]+", "number": r"\d[\d.,]*"}
_PROGRAM = re.compile(
    r"(?:sudo |[A-Z][A-Z0-9_]*=\S+ )*(?:docker|podman|pip3?|uv|apt(?:-get)?|export|unset|trtllm-\w+|mpirun|srun|python3?|nvidia-smi|"
    r"kubectl|helm|ulimit|sysctl|systemctl|git|rm|mount|ldconfig|modprobe|trtdx)\b"
)  # fmt: skip


def draft_page(code: str, slug: str, case: StoredCase, opened: OpenedCase, book: RuleBook) -> str:
    """Return a page that says what the case was, ready for `rules check`.

    Raises:
        CaseError: the case is not resolved, or holds no line of a log.
    """
    if case.resolution is None:
        raise CaseError(
            f"case {case.id} is not resolved, so nothing says what it was", fix=f"trtdx cases resolve {case.id}"
        )
    lines = _firing_lines(case, opened)
    if not lines:
        raise CaseError(
            f"case {case.id} holds no error line that a rule could look for", fix="trtdx rules new CODE SLUG"
        )
    known = [book.get(name) for name in case.facts.codes if book.has_rule(name)]
    causes = [rule.front for rule in known if rule.kind is RuleKind.CAUSE and rule.front.log]
    stage, area = (causes[0].stage.value, causes[0].area) if causes else ("serve", "runtime")
    return format_page(
        _page_text(code, slug, stage, area, case, lines, _silent_line(opened, lines)), f"{code}-{slug}.md"
    )


def _page_text(code: str, slug: str, stage: str, area: str, case: StoredCase, lines: list[str], silent: str) -> str:
    solved = case.resolution
    assert solved is not None
    message = _message(solved.cause)
    fix = solved.fix or "do what mended it; the case does not tell"
    command = f"\ncommand = {_quote(fix)}" if _PROGRAM.match(fix) else ""
    verify = solved.verified_by or "trtdx diagnose server.log"
    examples = "\n".join(f"    {line}" for line in lines)
    return f"""+++
code = {_quote(code)}
slug = {_quote(slug)}
severity = "error"
stage = {_quote(stage)}
area = {_quote(area)}
kind = "cause"
since = "0.1"
message = {_quote(message)}
verify = {_quote(verify)}

[[fix]]
stage = {_quote(stage)}
text = {_quote("run the command that mended it" if command else fix)}{command}

[[log]]
pattern = '''{pattern_from_line(lines[0])}'''
confidence = 0.9
+++
# {message[:1].upper()}{message[1:]}
## Why it happens
{_sentence(solved.cause)}
## What to do
{f"Run `{fix}`." if command else _sentence(fix)} This is what helped in case {case.id}.
## How to verify
`{verify}`
## Fires on
{examples}
## Stays silent on
    {silent}
"""


def pattern_from_line(line: str) -> str:
    """Return a regular expression for a line's message whatever its paths, addresses and numbers are."""
    message = peel_line(line.strip()).message.strip()[:MAX_PATTERN].rstrip("\\")
    parts, end = [], 0
    for match in _CHANGING.finditer(message):
        parts += [_escape(message[end : match.start()]), _CLASSES[match.lastgroup or "number"]]
        end = match.end()
    return "".join([*parts, _escape(message[end:])])


def _escape(text: str) -> str:
    return re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", text).replace("'''", ".{3}")


def _firing_lines(case: StoredCase, opened: OpenedCase) -> list[str]:
    """Return the lines of the log that the case's cause shows in, else those that its report quotes."""
    fingerprints = set(case.facts.errors[:MAX_EXAMPLE_LINES])
    lines: dict[str, str] = {}
    for line in _log_lines(opened):
        fingerprint = line_fingerprint(line[:1000])
        if fingerprint in fingerprints:
            lines.setdefault(fingerprint, line.rstrip())
        if len(lines) == len(fingerprints):
            break
    if not lines and opened.report:
        quoted = [evidence.text for finding in opened.report.findings for evidence in finding.evidence]
        return [line for text in quoted[:1] for line in text.splitlines()[:1]]
    return [lines[name] for name in case.facts.errors if name in lines]


def _log_lines(opened: OpenedCase) -> Iterator[str]:
    for text in opened.texts.values():
        yield from (line for line in text.splitlines() if line.strip())


def _silent_line(opened: OpenedCase, lines: list[str]) -> str:
    """Return a line of the same log that is no complaint, for the page's author to replace by a nearer one."""
    pattern = re.compile(pattern_from_line(lines[0]))
    for line in _log_lines(opened):
        if peel_line(line[:1000]).level == "info" and not pattern.search(line):
            return line.strip()[:300]
    return HEALTHY_LINE


def _message(cause: str) -> str:
    """Return the cause as a page's message: lower case, no full stop, no braces, one line."""
    words = " ".join(cause.split()).rstrip(".").translate(str.maketrans("{}", "()"))
    first = words.split(" ", 1)[0]
    return words[:1].lower() + words[1:] if first[1:].islower() else words


def _sentence(text: str) -> str:
    words = " ".join(text.split()).rstrip(".")
    return f"{words[:1].upper()}{words[1:]}."


def _quote(text: str) -> str:
    """Return text as TOML has it, where JSON's strings are strings too."""
    return msgspec.json.encode(text).decode()
