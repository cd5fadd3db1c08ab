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
    type: str = ""  # flag (takes no value), bool, int, float, str, list, dict, table (has keys of its own), any
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
    """Return the documentation that a product's flags were taken from by hand; "" if its sources were read."""
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
        for release in releases[positions.get(era.since, 0) : positions[era.until] + 1 if era.until else len(releases)]
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
    return tuple(entry for known, entry in _paths_by_name().items() if tool_name(known) == name and known != path)


def find_field(owner: str, name: str) -> ConfigField | None:
    """Return a field of a configuration class, or a member of an enumeration by its name or value."""
    fields = list_fields(owner)
    named = (field for field in fields if field.field == name)
    valued = (field for field in fields if field.eras[-1].type == "value" and field.eras[-1].default == name)
    return next(named, None) or next(valued, None)


def find_requirement(package: str, file: str = "requirements.txt") -> PackageRequirement | None:
    """Return what releases ask of a package; "python" is the interpreter."""
    name = package.lower().replace("_", "-")
    place = "setup.py" if name == "python" else file
    entries = _read_entries("requirements", PackageRequirement)
    return next((entry for entry in entries if (entry.package, entry.file) == (name, place)), None)


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
