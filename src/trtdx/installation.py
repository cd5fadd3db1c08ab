"""How this trtdx was installed, and the commands that add to it in the same way."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping


def install_extras(*extras: str) -> str:
    """Return the command that adds extras to this trtdx, in the way it was installed."""
    source, editable = _install_source()
    prefix = Path(sys.prefix)
    if (prefix / "uv-receipt.toml").is_file():  # tools are installed anew: what is there must be named again
        return f"uv tool install --force {_with_extras(source, {*extras, *_installed_extras()})}"
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx install --force {_with_extras(source, {*extras, *_installed_extras()})}"
    return install_packages(*(["-e"] if editable else []), f"{_with_extras(source, {*extras})}")


def install_packages(*words: str) -> str:
    """Return the command that installs packages beside this trtdx."""
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install" if _has_distribution("pip") else f"uv pip install --python {python}"
    return " ".join([pip, *words])


def _with_extras(source: str, extras: set[str]) -> str:
    name, at, url = source.partition(" @ ")
    return shlex.quote(f"{name}[{','.join(sorted(extras))}]{at}{url}")


def _install_source() -> tuple[str, bool]:
    """Return what this trtdx was installed from, as pip takes it, and whether the sources are used in place."""
    try:
        record = json.loads(metadata.distribution("trtdx").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        record = {}
    url, folder = record.get("url", ""), record.get("dir_info")
    if folder is not None:
        return unquote(urlsplit(url).path), bool(folder.get("editable"))
    if not url:
        return "trtdx", False
    version_control: Mapping[str, str] = record.get("vcs_info") or {}
    revision = version_control.get("requested_revision", "")
    scheme = f"{version_control['vcs']}+" if version_control else ""
    return f"trtdx @ {scheme}{url}{'@' if revision else ''}{revision}", False


def _installed_extras() -> set[str]:
    """Return the extras of which every package is here; tools such as uv forget what they are not told again."""
    try:
        requirements = [Requirement(line) for line in metadata.requires("trtdx") or ()]
        extras = metadata.metadata("trtdx").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return set()
    return {extra for extra in extras if _is_complete(extra, requirements)}


def _is_complete(extra: str, requirements: list[Requirement]) -> bool:
    names = [
        requirement.name
        for requirement in requirements
        if requirement.marker
        and requirement.name != "trtdx"  # an extra made of others
        and requirement.marker.evaluate({"extra": extra})
        and not requirement.marker.evaluate({"extra": ""})
    ]
    return bool(names) and all(_has_distribution(name) for name in names)


def _has_distribution(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
