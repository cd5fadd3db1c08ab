"""Whether a release has a flag, option, variable or path: "" if it does, else one sentence with what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.knowledge.inventory import (
    TENSORRT_LLM,
    describe_releases,
    era_of_release,
    find_flag,
    find_moved_paths,
    find_option,
    find_path,
    find_variable,
    list_paths,
    list_tool_flags,
    list_variables,
    nearest_names,
    options_by_path,
    tool_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.knowledge.inventory import InventoryEntry, ReleaseEra


def check_flag(
    program: str, flag: str, release: str = "", subcommand: str | None = None, value: str | None = None
) -> str:
    """Return why a release's program does not take a flag (or a value of it), with the nearest name; "" if it does."""
    name, equals, stated = flag.partition("=")
    flags = list_tool_flags(program)
    if not flags:
        return ""  # a program nobody wrote down
    entries = find_flag(program, name, subcommand)
    present = [era for entry in entries if (era := era_of_release(entry, release)) is not None]
    if present:
        return _describe_wrong_value(name, stated if equals else value, present)
    if entries:
        return f"{name}: {_describe_absence(entries, release)}"
    others = sorted({entry.subcommand for entry in find_flag(program, name)})
    if others:
        return f"{name}: a flag of {tool_name(program)} {' and '.join(others)}, not of {subcommand}"
    usable = {entry.flag for entry in flags if era_of_release(entry, release) is not None}
    return f"{name}: {tool_name(program)} has no such flag in any release{_describe_nearest(name, usable)}"


def check_option(path: str, release: str = "", value: str | None = None) -> str:
    """Return why a release's LLM API does not take a key (or a value of it), with the nearest name; "" if it does."""
    option = find_option(path)
    if option is None:
        if _is_below_free_table(path, release):
            return ""
        known = [name for name, entry in options_by_path().items() if era_of_release(entry, release)]
        leaf = path.rpartition(".")[2]
        moved = [name for name in known if name.rpartition(".")[2] == leaf]
        nearest = f"; nearest: {', '.join(moved[:3])}" if moved else _describe_nearest(path, known)
        return f"{path}: no release has this key{nearest}"
    era = era_of_release(option, release)
    if era is not None:
        return _describe_wrong_value(path, value, [era])
    return "" if _is_below_free_table(path, release) else f"{path}: {_describe_absence([option], release)}"


def _is_below_free_table(path: str, release: str) -> bool:
    """Whether a release takes any key there: a table of the user's own, or a type that its sources do not state."""
    parts = path.split(".")
    parents = (find_option(".".join(parts[:end])) for end in range(1, len(parts)))
    eras = (era_of_release(parent, release) for parent in parents if parent is not None)
    return any(era is not None and era.type in ("dict", "any") for era in eras)


def check_variable(name: str, release: str = "", value: str | None = None) -> str:
    """Return why a release does not read a variable, with the nearest name; "" if it does."""
    variables = find_variable(name)
    if not variables:
        return f"{name}: no release reads this variable{_describe_nearest(name, list_variables())}"
    present = [
        era
        for variable in variables
        if (era := era_of_release(variable, release if variable.product == TENSORRT_LLM else "")) is not None
    ]
    return "" if present else f"{name}: {_describe_absence(variables, release)}"


def check_path(path: str, release: str = "") -> str:
    """Return why a release does not have a script, with where it is or was; "" if it has it."""
    entry = find_path(path)
    if entry is not None and era_of_release(entry, release) is not None:
        return ""
    moved = [other.path for other in find_moved_paths(path) if era_of_release(other, release) is not None]
    hint = f"; it is {' or '.join(moved)} there" if moved else ""
    if entry is not None:
        return f"{path}: {_describe_absence([entry], release)}{hint}"
    return f"{path}: no release has this file{hint or _describe_nearest(path, list_paths())}"


def _describe_absence(entries: Iterable[InventoryEntry], release: str) -> str:
    having = "; ".join(dict.fromkeys(describe_releases(entry) for entry in entries))
    return f"{having}, not in {release or 'the newest release'}"


def _describe_wrong_value(name: str, value: str | None, eras: list[ReleaseEra]) -> str:
    choices = [str(choice) for era in eras for choice in era.values]
    if value is None or not all(era.values for era in eras) or value in choices:
        return ""
    near = nearest_names(value, choices, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name}: takes one of {', '.join(dict.fromkeys(choices))}, not {value}{hint}"


def _describe_nearest(name: str, names: Iterable[str]) -> str:
    near = nearest_names(name, names)
    return f"; nearest: {', '.join(near)}" if near else ""
