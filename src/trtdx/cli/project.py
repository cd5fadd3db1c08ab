"""Defaults of a project: `trtdx.toml`, or `[tool.trtdx]` in pyproject.toml.

Looked for in the current folder and upwards to the root of the git checkout or the home folder; outside both, in the
current folder only. What stands on the command line wins.

    [tool.trtdx]
    rules = "ops/rules"          # or several; relative to this file
    runtime = "1.2.1"
    gpu = "H100"
    fail_on = "warning"

    [tool.trtdx.ignore]
    DX415 = "the old driver stays until March"
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.cli.output import FailOn
from trtdx.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

OWN_FILE, SHARED_FILE = "trtdx.toml", "pyproject.toml"
MOST_BYTES = 1 << 20


class ProjectDefaults(msgspec.Struct, frozen=True):
    """What a project says of itself, so that nobody has to repeat it."""

    rules: str | tuple[str, ...] = ()
    runtime: str = ""
    gpu: str = ""
    fail_on: FailOn = FailOn.ERROR
    ignore: dict[str, str] = {}  # codes, each with the reason


def load_project_defaults(host: Host, start: Path | None = None) -> ProjectDefaults:
    """Return the defaults of the project around a folder, by default the current one.

    Raises:
        InputError: the file cannot be read, or says something that is not understood.
    """
    for folder in _project_folders(start or Path.cwd()):
        for name in (OWN_FILE, SHARED_FILE):
            path = folder / name
            if host.kind(str(path)) != "file":
                continue
            table = _read_table(host, path)
            if table is not None:
                return _parse_defaults(table, path)
    return ProjectDefaults()


def _project_folders(start: Path) -> Iterator[Path]:
    """Yield the folders to look in; a file that anyone may put into /tmp is not a project's."""
    yield start
    home = _home_folder()
    roots = [folder for folder in (start, *start.parents) if folder == home or (folder / ".git").exists()]
    if roots:
        yield from (folder for folder in start.parents if folder.is_relative_to(roots[0]))


def _home_folder() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a container's user that nobody knows
        return None


def _read_table(host: Host, path: Path) -> dict[str, Any] | None:
    """Return the settings in a file; None where it has no table for trtdx."""
    if host.size(str(path)) > MOST_BYTES:
        raise InputError(f"{path} is too large for a settings file", fix=f"keep it below {MOST_BYTES} bytes")
    with host.open(str(path)) as stream:
        data = stream.read(MOST_BYTES + 1)
    try:
        document = msgspec.toml.decode(data.decode("utf-8"), type=dict[str, Any])
    except (ValueError, RecursionError) as err:  # msgspec's errors and bad UTF-8 are ValueErrors
        what = "it is nested too deeply" if isinstance(err, RecursionError) else str(err)
        raise InputError(f"{path} is not TOML: {what}", fix="mend that file; trtdx reads its defaults") from err
    if path.name == OWN_FILE:
        return document
    tools = document.get("tool", {})
    table = tools.get("trtdx") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise InputError(f"{path}: tool.trtdx is not a table", fix="write [tool.trtdx]")
    return table


def _parse_defaults(table: dict[str, Any], path: Path) -> ProjectDefaults:
    names = ProjectDefaults.__struct_fields__
    for name in table:
        if name not in names:
            unknown = UnknownNameError("setting", name, names)
            raise InputError(f"{path}: {unknown.message}", fix=unknown.fix)
    if "ignore" in table and not isinstance(table["ignore"], dict):
        raise InputError(f"{path}: ignore wants a reason for each code", fix='write: ignore = {DX012 = "why"}')
    try:
        defaults = msgspec.convert(table, type=ProjectDefaults)
    except msgspec.ValidationError as err:
        what, _, place = str(err).partition(" - at `$")
        choices = ", ".join(choice.value for choice in FailOn)
        fix = f"one of {choices}" if "fail_on" in place else ""
        raise InputError(f"{path}: {place.strip('.`')}: {what[:1].lower()}{what[1:]}", fix=fix) from err
    bare = [code for code, reason in defaults.ignore.items() if not reason.strip()]
    if bare:
        raise InputError(f"{path}: ignore.{bare[0]} has no reason", fix="say why it may be ignored")
    folders = (defaults.rules,) if isinstance(defaults.rules, str) else defaults.rules
    return msgspec.structs.replace(defaults, rules=tuple(str(path.parent / folder) for folder in folders if folder))
