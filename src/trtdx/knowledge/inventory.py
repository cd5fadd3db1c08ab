"""The flags, options, variables, paths and requirements of each release, and the questions asked about them.

The facts live in `data/inventory/*.json`, written by `scripts/make_inventory.py` from the sources of each release
(docs/inventory.md). A file is read when the first question about its kind is asked.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from packaging.version import Version

from trtdx.knowledge.versions import parse_release

if TYPE_CHECKING:
    from collections.abc import Iterable

TENSORRT_LLM = "TensorRT-LLM"
SAME_PROGRAM = {
    "mpiexec": "mpirun",
    "orterun": "mpirun",
    "pip3": "pip",
    "nerdctl": "docker",
    "podman": "docker",
}
CLOSE = 0.75  # how alike two names are before one is offered for the other


class ReleaseEra(msgspec.Struct, frozen=True, kw_only=True):
    """A run of releases that say the same of one thing."""

    since: str  # "": every release
    until: str = ""  # the last release of the run; "": the newest one looked at
    type: str = (
        ""  # flag (takes no value), bool, int, float, str, list, dict, table (has keys of its own), any
    )
    default: Any = None
    computed: bool = False  # the default is worked out by the program
    values: tuple[Any, ...] = ()
    least: float | None = None
    many: bool = False
    required: bool = False
    deprecated: bool = False
    means: bool = True  # what a flag without value sets
    backends: tuple[str, ...] = ()  # empty: every backend of the release
    alias_of: str = ""
    wants: str = ""  # a version specifier


class InventoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that releases of a product have."""

    eras: tuple[ReleaseEra, ...]
    product: str = TENSORRT_LLM


class ToolFlag(InventoryEntry, frozen=True, kw_only=True):
    """A command-line flag."""

    tool: str  # "trtllm-build", or a script's folder and name: "llama/convert_checkpoint.py"
    flag: str
    subcommand: str = ""


class ApiOption(InventoryEntry, frozen=True, kw_only=True):
    """A key of the LLM API, dotted."""

    option: str


class EnvironmentVariable(InventoryEntry, frozen=True, kw_only=True):
    """A variable that a program reads; `values` are those its code compares it with."""

    variable: str
    place: str  # a file that reads it, in the newest release that has it


class ScriptPath(InventoryEntry, frozen=True, kw_only=True):
    """A file of the repository that users run."""

    path: str


class ConfigField(InventoryEntry, frozen=True, kw_only=True):
    """A field of a configuration class, or a member of an enumeration with its value as default."""

    owner: str
    field: str


class PackageRequirement(InventoryEntry, frozen=True, kw_only=True):
    """A package that a release asks for, with its version specifier in `wants`."""

    package: str
    file: str


class ProductReleases(msgspec.Struct, frozen=True, kw_only=True):
    """The releases of a product that were read, oldest first; none for a program described by hand."""

    product: str
    releases: tuple[str, ...]
    source: str = ""


Entry = TypeVar("Entry", bound=InventoryEntry)


@cache
def _read_entries(kind: str, entry_type: type[Entry]) -> tuple[Entry, ...]:
    data = resources.files("trtdx").joinpath(f"data/inventory/{kind}.json").read_bytes()
    rows: list[Entry] = msgspec.json.decode(data, type=list[entry_type])  # type: ignore[valid-type]
    return tuple(rows)


@cache
def _releases_by_product() -> dict[str, ProductReleases]:
    data = resources.files("trtdx").joinpath("data/inventory/releases.json").read_bytes()
    rows = msgspec.json.decode(data, type=tuple[ProductReleases, ...])
    return {row.product: row for row in rows}


@cache
def _flags_by_tool() -> dict[str, tuple[ToolFlag, ...]]:
    tools: dict[str, list[ToolFlag]] = defaultdict(list)
    for flag in _read_entries("flags", ToolFlag):
        tools[flag.tool].append(flag)
    return {tool: tuple(flags) for tool, flags in tools.items()}


@cache
def options_by_path() -> dict[str, ApiOption]:
    return {option.option: option for option in _read_entries("options", ApiOption)}


@cache
def _variables_by_name() -> dict[str, tuple[EnvironmentVariable, ...]]:
    names: dict[str, list[EnvironmentVariable]] = defaultdict(list)
    for variable in _read_entries("variables", EnvironmentVariable):
        names[variable.variable].append(variable)
    return {name: tuple(variables) for name, variables in names.items()}


@cache
def _paths_by_name() -> dict[str, ScriptPath]:
    return {path.path: path for path in _read_entries("paths", ScriptPath)}


def list_fields(owner: str) -> tuple[ConfigField, ...]:
    """Return the fields of a configuration class ("BuildConfig"), or the members of an enumeration ("QuantAlgo")."""
    return tuple(field for field in _read_entries("fields", ConfigField) if field.owner == owner)


# Which releases


def product_releases(product: str = TENSORRT_LLM) -> tuple[str, ...]:
    """Return the releases of a product that were read, oldest first."""
    row = _releases_by_product().get(product)
    return row.releases if row else ()


def documented_source(product: str) -> str:
    """Return the documentation that a product's flags were taken from by hand; "" where its sources were read."""
    row = _releases_by_product().get(product)
    return row.source if row else ""


@cache
def _positions(product: str) -> dict[str, int]:
    return {release: position for position, release in enumerate(product_releases(product))}


def releases_with(entry: InventoryEntry) -> tuple[str, ...]:
    """Return the releases that have something, oldest first."""
    releases, positions = product_releases(entry.product), _positions(entry.product)
    return tuple(
        release
        for era in entry.eras
        for release in releases[
            positions.get(era.since, 0) : positions[era.until] + 1 if era.until else len(releases)
        ]
    )


def nearest_release(release: str, product: str = TENSORRT_LLM) -> str:
    """Return the release that speaks for another: itself, else the last one before it, else the first."""
    releases = product_releases(product)
    version = parse_release(release)
    if release in _positions(product) or version is None or not releases:
        return release
    earlier = [name for name in releases if Version(name) <= version]
    return earlier[-1] if earlier else ""


def era_of_release(entry: InventoryEntry, release: str) -> ReleaseEra | None:
    """Return what a release says of something, or None where it does not have it; "" is the newest release."""
    releases, positions = product_releases(entry.product), _positions(entry.product)
    if not releases:
        return entry.eras[0]
    position = positions.get(nearest_release(release, entry.product) if release else releases[-1])
    if position is None:
        return None
    for era in entry.eras:
        last = positions[era.until] if era.until else len(releases) - 1
        if positions.get(era.since, 0) <= position <= last:
            return era
    return None


def eras_by_release(entry: InventoryEntry, releases: Iterable[str]) -> dict[str, ReleaseEra]:
    """Return those of some releases that have something, in order, with what each says of it."""
    positions = _positions(entry.product)
    newest = len(positions) - 1
    spans = [(positions[era.since], positions[era.until] if era.until else newest, era) for era in entry.eras]
    first, last = spans[0][0], spans[-1][1]
    return {
        release: era
        for release in releases
        if first <= (position := positions[release]) <= last
        for start, end, era in spans
        if start <= position <= end
    }


def describe_releases(entry: InventoryEntry) -> str:
    """Return in words which releases have something: "0.8.0 to 0.11.0, and since 1.0.0"."""
    releases, positions = product_releases(entry.product), _positions(entry.product)
    if not releases:
        return "every release"
    spans: list[list[str]] = []
    for era in entry.eras:
        last = era.until or releases[-1]
        if spans and positions[era.since] == positions[spans[-1][1]] + 1:
            spans[-1][1] = last
        else:
            spans.append([era.since, last])
    return ", ".join(_describe_span(first, last, releases) for first, last in spans)


def _describe_span(first: str, last: str, releases: tuple[str, ...]) -> str:
    if last == releases[-1]:
        return "every release" if first == releases[0] else f"since {first}"
    if first == last:
        return f"{first} only"
    return f"up to {last}" if first == releases[0] else f"{first} to {last}"


# Questions


def tool_name(program: str) -> str:
    """Return what a program is called in the inventory: "trtllm-build", or a script's folder and name."""
    parts = program.replace("\\", "/").strip("/").split("/")
    name = parts[-1]
    if name.endswith(".py"):
        return "/".join(parts[-2:])
    return SAME_PROGRAM.get(name, name)


def list_tool_flags(program: str) -> tuple[ToolFlag, ...]:
    """Return all flags of a program; a script named without its folder is every script of that name."""
    tools = _flags_by_tool()
    name = tool_name(program)
    if name in tools:
        return tools[name]
    script = name.rpartition("/")[2]
    if "/" in name and name.split("/")[0] not in ("", ".", "..", "examples"):
        return ()
    return tuple(flag for tool, flags in tools.items() if tool.endswith(f"/{script}") for flag in flags)


def find_flag(program: str, flag: str, subcommand: str | None = None) -> tuple[ToolFlag, ...]:
    """Return the entries of a flag: one for each subcommand, script or product that has it."""
    name = flag.partition("=")[0]
    return tuple(
        entry
        for entry in list_tool_flags(program)
        if entry.flag == name and (subcommand is None or entry.subcommand in ("", subcommand))
    )


def find_option(path: str) -> ApiOption | None:
    """Return a key of the LLM API such as "kv_cache_config.free_gpu_memory_fraction"."""
    return options_by_path().get(path)


def find_variable(name: str) -> tuple[EnvironmentVariable, ...]:
    """Return the entries of an environment variable: one for each product that reads it."""
    return _variables_by_name().get(name, ())


def find_path(path: str) -> ScriptPath | None:
    """Return a script by its path in the repository."""
    return _paths_by_name().get(path.removeprefix("./"))


def find_moved_paths(path: str) -> tuple[ScriptPath, ...]:
    """Return the scripts that have the same folder and name elsewhere, such as those that moved."""
    name = tool_name(path)
    return tuple(
        entry for known, entry in _paths_by_name().items() if tool_name(known) == name and known != path
    )


def find_field(owner: str, name: str) -> ConfigField | None:
    """Return a field of a configuration class, or a member of an enumeration by its name or value."""
    fields = list_fields(owner)
    named = (field for field in fields if field.field == name)
    valued = (field for field in fields if field.eras[-1].type == "value" and field.eras[-1].default == name)
    return next(named, None) or next(valued, None)


def find_requirement(package: str, file: str = "requirements.txt") -> PackageRequirement | None:
    """Return what releases ask of a package; "python" is the interpreter."""
    wanted = package.lower().replace("_", "-")
    place = "setup.py" if wanted == "python" else file
    entries = _read_entries("requirements", PackageRequirement)
    return next((entry for entry in entries if (entry.package, entry.file) == (wanted, place)), None)


def list_tools() -> tuple[str, ...]:
    return tuple(_flags_by_tool())


def list_variables() -> tuple[str, ...]:
    return tuple(_variables_by_name())


def list_paths() -> tuple[str, ...]:
    return tuple(_paths_by_name())


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Return the names most like one, best first; dashes, underscores and capitals do not matter."""
    plain: dict[str, str] = {}
    for known in names:
        plain.setdefault(_plain_name(known), known)
    close = difflib.get_close_matches(_plain_name(name), plain, n=count, cutoff=CLOSE)
    return tuple(plain[match] for match in close)


def _plain_name(name: str) -> str:
    return name.lower().replace("-", "_")


# Verdicts: "" where a release has it, else what to know about it


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
