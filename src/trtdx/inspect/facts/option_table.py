"""The LLM API's keys and the flags that set them, by release: the inventory's facts with what is known by hand.

What the sources state comes from `knowledge/inventory.py`; which flag sets which key, what old names became and what
people write for them stand in `data/option_notes.toml`.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from packaging.version import Version

from trtdx.knowledge import inventory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

AUTODEPLOY = ("_autodeploy",)
FREE_TYPES = ("dict", "any")
# The subcommands that take options of the LLM API; "" is the program itself.
JUDGED_SUBCOMMANDS = {
    "trtllm-serve": ("", "serve"),
    "trtllm-bench": ("", "throughput", "latency", "build"),
    "trtllm-eval": ("",),
    "trtllm-build": ("",),
}


class LlmOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key of the LLM API and the releases that have it."""

    type: str  # bool, int, float, str, list, dict, table (a section with known keys), any
    values: tuple[str | int, ...] = ()
    value_since: dict[str, str] = {}  # the first release that takes a value, for those that came later
    value_until: dict[str, str] = {}  # the last release that takes a value, for those that went
    otherwise: str = ""  # what is taken in silence for an unknown value; empty: the value is refused
    any_case: bool = False
    least: float | None = None
    default: bool | int | float | str | None = None
    since: str = ""
    until: str = ""
    pytorch_until: str = ""  # later only the TensorRT engine backend has it
    backend: str = ""  # "tensorrt": no release has it for PyTorch
    absent: tuple[str, ...] = ()


class CommandFlag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One command-line flag, and the key of the LLM API it sets."""

    type: str  # flag, int, float, bool, str
    option: str = ""
    means: bool = True  # what a flag without value sets
    many: bool = False
    values: tuple[str | int, ...] = ()
    value_since: dict[str, str] = {}
    value_until: dict[str, str] = {}
    otherwise: str = ""
    any_case: bool = False
    only: tuple[str, ...] = ()  # the subcommands that have it
    since: str = ""
    until: str = ""
    absent: tuple[str, ...] = ()


class RenamedOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new name of an old key."""

    to: str
    since: str
    note: str = ""


class OptionNotes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the sources do not state in a form that can be read off: `data/option_notes.toml`."""

    first_release: str
    first_build_release: str
    last_build_release: str
    top_level_ignored_until: str
    option: dict[str, dict[str, Any]]
    flag: dict[str, dict[str, dict[str, Any]]]
    sets: dict[str, str]  # the key of the LLM API that a flag sets, in whichever program
    renamed: dict[str, RenamedOption]
    meant: dict[str, str]
    instead: dict[str, str]


class OptionTable(msgspec.Struct, frozen=True):
    """All of it, over the releases that messages speak of."""

    releases: tuple[str, ...]
    build_releases: tuple[str, ...]
    top_level_ignored_until: str
    autodeploy: tuple[str, ...]
    option: dict[str, LlmOption]
    flag: dict[str, dict[str, CommandFlag]]
    renamed: dict[str, RenamedOption]
    meant: dict[str, str]
    instead: dict[str, str]  # flags of other servers that no option corresponds to


@cache
def option_table() -> OptionTable:
    data = resources.files("trtdx").joinpath("data/option_notes.toml").read_bytes()
    notes = msgspec.toml.decode(data, type=OptionNotes)
    releases = _spoken_releases(notes.first_release)
    build_releases = _spoken_releases(notes.first_build_release, notes.last_build_release)
    return OptionTable(
        releases,
        build_releases,
        notes.top_level_ignored_until,
        _autodeploy_keys(),
        _build_options(notes, releases),
        {
            program: _build_flags(program, notes, build_releases if program == "trtllm-build" else releases)
            for program in JUDGED_SUBCOMMANDS
        },
        notes.renamed,
        notes.meant,
        notes.instead,
    )


def _spoken_releases(first: str, last: str = "") -> tuple[str, ...]:
    """Return the releases that messages name: candidates only of what has not come out."""
    versions = {name: Version(name) for name in inventory.product_releases()}
    newest = max(version for version in versions.values() if not version.is_prerelease)
    return tuple(
        name
        for name, version in versions.items()
        if version >= Version(first)
        and not (last and version > Version(last))
        and (version > newest or not version.is_prerelease)
    )


class _Presence(NamedTuple):
    """The releases that have something, and what each says of it."""

    releases: tuple[str, ...]
    eras: tuple[inventory.ReleaseEra, ...]

    def span(self, releases: Sequence[str]) -> dict[str, Any]:
        """Return since, until and absent, each only where it says something."""
        first, last = releases.index(self.releases[0]), releases.index(self.releases[-1])
        span: dict[str, Any] = {"since": self.releases[0] if first else ""}
        span["until"] = self.releases[-1] if last < len(releases) - 1 else ""
        span["absent"] = tuple(name for name in releases[first:last] if name not in self.releases)
        return span

    def values(self) -> dict[str, Any]:
        """Return the values of all releases together, with the spans of those that came or went."""
        stated = [(name, era.values) for name, era in zip(self.releases, self.eras, strict=True) if era.values]
        if not stated:
            return {}
        values = tuple(dict.fromkeys(value for _, taken in stated for value in taken))
        having = {value: [name for name, taken in stated if value in taken] for value in values}
        first, last = stated[0][0], stated[-1][0]
        return {
            "values": values,
            "value_since": {str(value): names[0] for value, names in having.items() if names[0] != first},
            "value_until": {str(value): names[-1] for value, names in having.items() if names[-1] != last},
        }


def _presence(entries: Iterable[inventory.InventoryEntry], releases: Sequence[str]) -> _Presence | None:
    eras: dict[str, inventory.ReleaseEra] = {}
    for entry in entries:
        for name, era in inventory.eras_by_release(entry, releases).items():
            if era.backends != AUTODEPLOY:
                eras.setdefault(name, era)
    if not eras:
        return None
    names = tuple(name for name in releases if name in eras)
    return _Presence(names, tuple(eras[name] for name in names))


def _autodeploy_keys() -> tuple[str, ...]:
    """Return the top-level keys that came with the AutoDeploy backend."""
    return tuple(
        name
        for name, option in inventory.options_by_path().items()
        if "." not in name and option.eras[0].backends == AUTODEPLOY
    )


def _build_options(notes: OptionNotes, releases: Sequence[str]) -> dict[str, LlmOption]:
    options: dict[str, LlmOption] = {}
    free: set[str] = set()
    for name, entry in inventory.options_by_path().items():
        presence = _presence([entry], releases)
        if presence is None or any(name.startswith(f"{section}.") for section in free):
            continue
        if any(era.type in FREE_TYPES for era in presence.eras):
            free.add(name)
        stated = _option_facts(presence, releases)
        options[name] = msgspec.convert(stated | notes.option.get(name, {}), LlmOption)
    known_by_hand = {name: msgspec.convert(facts, LlmOption) for name, facts in notes.option.items() if "type" in facts}
    return {**known_by_hand, **options}


def _option_facts(presence: _Presence, releases: Sequence[str]) -> dict[str, Any]:
    newest = presence.eras[-1]
    free = next((era.type for era in presence.eras if era.type in FREE_TYPES), "")
    facts: dict[str, Any] = {"type": free or newest.type, "least": newest.least}
    if isinstance(newest.default, (bool, int, float, str)):
        facts["default"] = newest.default
    pytorch = [
        name
        for name, era in zip(presence.releases, presence.eras, strict=True)
        if not era.backends or "pytorch" in era.backends
    ]
    if not pytorch:
        facts["backend"] = "tensorrt"
    elif pytorch[-1] != presence.releases[-1]:
        facts["pytorch_until"] = pytorch[-1]
    return facts | presence.span(releases) | presence.values()


def _build_flags(program: str, notes: OptionNotes, releases: Sequence[str]) -> dict[str, CommandFlag]:
    judged = JUDGED_SUBCOMMANDS[program]
    entries: dict[str, list[inventory.ToolFlag]] = {}
    for entry in inventory.list_tool_flags(program):
        if entry.subcommand in judged:
            entries.setdefault(entry.flag, []).append(entry)
    flags = {}
    for name, alike in entries.items():
        presence = _presence(alike, releases)
        if presence is not None:
            facts = _flag_facts(presence, [entry.subcommand for entry in alike], judged)
            facts |= presence.span(releases) | {"option": notes.sets.get(name, "")}
            flags[name] = msgspec.convert(facts | notes.flag.get(program, {}).get(name, {}), CommandFlag)
    return flags


def _flag_facts(presence: _Presence, subcommands: Sequence[str], judged: Sequence[str]) -> dict[str, Any]:
    newest = presence.eras[-1]
    facts: dict[str, Any] = {"type": newest.type, "many": newest.many}
    only = tuple(name for name in judged if name in subcommands)
    if "" not in only and len(only) < len(judged) - 1:
        facts["only"] = only
    return facts | ({} if newest.many else presence.values())
