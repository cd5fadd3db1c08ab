"""What `trtdx explain --option, --env, --flag` answers: one name of the inventory through all releases."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError, UnknownNameError
from trtdx.knowledge import inventory
from trtdx.model import Section
from trtdx.render.table import table_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtdx.rule import Rule

MOST_PAGES = 12


class NamedEntry(msgspec.Struct, frozen=True):
    """One place that has the name: a program's flag, a product's variable, a key."""

    where: str  # "trtllm-serve serve", "NCCL (src/init.cc)", "LLM API"
    releases: str  # "since 1.0.0"
    newest: str  # the newest release that was looked at; "" for what was taken from documentation
    source: str
    eras: tuple[inventory.ReleaseEra, ...]


class PageReference(msgspec.Struct, frozen=True):
    """A rule page that speaks of a name."""

    code: str
    title: str


class InventoryAnswer(msgspec.Struct, frozen=True):
    """Everything that is known of one name."""

    kind: str  # option, variable, flag
    name: str
    entries: tuple[NamedEntry, ...]
    other_names: tuple[str, ...] = ()
    pages: tuple[PageReference, ...] = ()


def answer_option(path: str) -> InventoryAnswer:
    """Return what is known of a key of the LLM API."""
    option = inventory.find_option(path)
    if option is None:
        known = inventory.options_by_path()
        raise UnknownNameError("option of the LLM API", path, _names_like(path, known))
    return InventoryAnswer("option", path, (_entry(option, "LLM API"),))


def answer_variable(name: str) -> InventoryAnswer:
    """Return what is known of an environment variable."""
    variables = inventory.find_variable(name)
    if not variables:
        raise UnknownNameError("environment variable", name, inventory.list_variables())
    entries = [_entry(entry, f"{entry.product} ({entry.place})") for entry in variables]
    return InventoryAnswer("variable", name, tuple(entries))


def answer_flag(question: str) -> InventoryAnswer:
    """Return what is known of a flag, asked for as PROGRAM:--flag."""
    program, colon, flag = question.partition(":")
    if not colon or not flag.startswith("-"):
        raise InputError(f"{question!r} is not PROGRAM:--flag", fix="trtdx explain --flag trtllm-build:--gemm_plugin")
    flags = inventory.list_tool_flags(program)
    if not flags:
        raise UnknownNameError("program", program, inventory.list_tools())
    entries = [entry for entry in flags if entry.flag == flag]
    if not entries:
        raise UnknownNameError(f"flag of {program}", flag, sorted({entry.flag for entry in flags}))
    named = [_entry(entry, f"{entry.tool} {entry.subcommand}".strip()) for entry in entries]
    return InventoryAnswer("flag", f"{program} {flag}", tuple(named))


def _names_like(path: str, known: Iterable[str]) -> list[str]:
    """Return the keys with the same last part first, so that a key without its section is found."""
    leaf = path.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == leaf]
    return same or list(known)


def _entry(entry: inventory.InventoryEntry, where: str) -> NamedEntry:
    releases = inventory.product_releases(entry.product)
    return NamedEntry(
        where,
        inventory.describe_releases(entry),
        f"{entry.product} {releases[-1]}" if releases else "",
        inventory.documented_source(entry.product),
        entry.eras,
    )


def find_pages(answer: InventoryAnswer, rules: Iterable[Rule]) -> tuple[PageReference, ...]:
    """Return the rule pages that name it, in their text or in a command."""
    last = answer.name.rpartition(" ")[2]
    names = {last, last.rpartition(".")[2]} if len(last.rpartition(".")[2]) > 7 else {last}
    named = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in sorted(names)))
    return tuple(
        PageReference(rule.code, rule.title)
        for rule in rules
        if not rule.front.retired and any(named.search(text) for text in _page_texts(rule))
    )


def _page_texts(rule: Rule) -> list[str]:
    fixes = [*rule.front.fix, *(fix for log in rule.front.log for fix in log.fix)]
    fixes += rule.front.found.fix if rule.front.found else ()
    return [rule.body, *(f"{fix.text} {fix.command}" for fix in fixes)]


def render_answer(answer: InventoryAnswer) -> str:
    """Return the answer as text."""
    kinds = {
        "option": "a key of the LLM API",
        "variable": "an environment variable",
        "flag": "a command-line flag",
    }
    lines = [f"{answer.name}: {kinds[answer.kind]}"]
    for entry in answer.entries:
        looked = f" (looked at up to {entry.newest})" if entry.newest else f" (from {entry.source})"
        lines += ["", f"{entry.where}: {entry.releases}{looked}"]
        lines += [f"  {line}" for line in table_lines(_era_section(entry.eras))]
    if answer.other_names:
        lines += ["", "other names:", *(f"  {name}" for name in answer.other_names)]
    if answer.pages:
        lines += ["", "pages that speak of it:"]
        lines += [f"  {page.code}  {page.title}" for page in answer.pages[:MOST_PAGES]]
        if len(answer.pages) > MOST_PAGES:
            lines.append(f"  and {len(answer.pages) - MOST_PAGES} more (--json lists them)")
    return "\n".join(lines) + "\n"


def _era_section(eras: Sequence[inventory.ReleaseEra]) -> Section:
    rows = tuple(
        (_describe_span(era), era.type, _describe_default(era), _describe_values(era), _describe_rest(era))
        for era in eras
    )
    return Section("eras", "", ("releases", "type", "default", "values", ""), rows)


def _describe_span(era: inventory.ReleaseEra) -> str:
    if not era.since:
        return "every release"
    if not era.until:
        return f"since {era.since}"
    return era.since if era.since == era.until else f"{era.since} to {era.until}"


def _describe_default(era: inventory.ReleaseEra) -> str:
    if era.computed:
        return "worked out"
    return "" if era.default is None else msgspec.json.encode(era.default).decode().strip('"')


def _describe_values(era: inventory.ReleaseEra) -> str:
    words = ", ".join(map(str, era.values))
    if era.least is not None:
        words = f"at least {era.least:g}" + (f"; {words}" if words else "")
    return words


def _describe_rest(era: inventory.ReleaseEra) -> str:
    words = {
        "required": era.required,
        "deprecated": era.deprecated,
        "several values": era.many,
        f"another name of {era.alias_of}": bool(era.alias_of),
        f"{' and '.join(era.backends)} only": bool(era.backends),
    }
    return ", ".join(word for word, holds in words.items() if holds)
