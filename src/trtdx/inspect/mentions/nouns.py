"""A name that a text mentions, and what the inventory says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.knowledge.inventory import (
    TENSORRT_LLM,
    describe_releases,
    era_of_release,
    find_field,
    find_flag,
    find_path,
    find_variable,
    list_fields,
    list_paths,
    list_tool_flags,
    nearest_names,
    product_releases,
    tool_name,
)
from trtdx.knowledge.inventory_checks import check_flag, check_option, check_path, check_variable

if TYPE_CHECKING:
    from collections.abc import Iterator


TRITON_FOLDER = "triton_backend/"  # since 0.20; before, what is below it was a repository of its own


class NameMention(NamedTuple):
    """One name in a text."""

    kind: str  # program, flag, any-flag (of a program that is not said), option, field, variable, path, folder
    name: str
    program: str = ""  # of a flag; the class of a field
    subcommand: str | None = None
    value: str | None = None

    def __str__(self) -> str:
        return f"{self.program} {self.name}".strip()

    @property
    def product(self) -> str:
        """Return the product whose releases have it or not."""
        if self.kind in ("program", "flag"):
            entries = find_flag(self.program, self.name, self.subcommand) or list_tool_flags(self.program)
            return entries[0].product if entries else TENSORRT_LLM
        if self.kind == "variable":
            products = [entry.product for entry in find_variable(self.name)]
            return TENSORRT_LLM if TENSORRT_LLM in products or not products else products[0]
        entry = find_path(self.name) if self.kind == "path" and not find_path(TRITON_FOLDER + self.name) else None
        return entry.product if entry else TENSORRT_LLM


def check_mention(mention: NameMention, release: str) -> str:
    """Return why a release does not have what is mentioned, with the releases that do; "" where it has it."""
    if mention.kind == "flag":
        return check_flag(mention.program, mention.name, release, mention.subcommand, mention.value)
    if mention.kind == "option":
        return check_option(mention.name, release, mention.value)
    if mention.kind == "field":
        return _check_field(mention.program, mention.name, release)
    if mention.kind == "program":
        return check_program(mention.program, release)
    if mention.kind == "variable":
        return check_variable(mention.name, release)
    return _check_script(mention.name, release) if mention.kind == "path" else _check_folder(mention.name, release)


def _check_script(path: str, release: str) -> str:
    """Return why a release does not have a script, seen from the repository or from its folder for Triton."""
    return check_path(TRITON_FOLDER + path, release) and check_path(path, release)


def check_program(program: str, release: str) -> str:
    """Return why a release does not have a program that the inventory knows."""
    flags = list_tool_flags(program)
    if not flags or any(era_of_release(flag, release) is not None for flag in flags):
        return ""
    having = [
        release
        for release in product_releases(flags[0].product)
        if any(era_of_release(flag, release) for flag in flags)
    ]
    return f"{tool_name(program)}: {having[0]} to {having[-1]}, not in {release}"


def _check_folder(path: str, release: str) -> str:
    """Return why a release has no script below a folder."""
    below = [entry for name in list_paths() if name.startswith(f"{path}/") and (entry := find_path(name))]
    if any(era_of_release(entry, release) is not None for entry in below):
        return ""
    leaf = path.rpartition("/")[2]
    moved = sorted({name.partition(f"/{leaf}/")[0] for name in _present_paths(release) if f"/{leaf}/" in name})
    hint = f"; it is {' or '.join(f'{folder}/{leaf}' for folder in moved[:2])} there" if moved else ""
    return f"{path}: no script below it in {release}{hint}"


def _present_paths(release: str) -> Iterator[str]:
    for name in list_paths():
        entry = find_path(name)
        if entry and era_of_release(entry, release) is not None:
            yield name


def _check_field(owner: str, name: str, release: str) -> str:
    field = find_field(owner, name)
    if field is None:
        near = nearest_names(name, [entry.field for entry in list_fields(owner)])
        return f"{owner}.{name}: no release has this field" + (f"; nearest: {', '.join(near)}" if near else "")
    if era_of_release(field, release) is not None:
        return ""
    return f"{owner}.{name}: {describe_releases(field)}, not in {release}"
