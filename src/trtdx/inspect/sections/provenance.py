"""What an artifact was built from, where a manifest of `trtdx build` lies beside or above it."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from trtdx.formats.documents import UnreadableError, read_json
from trtdx.model import Section
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.documents import Document
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact

MANIFEST = "manifest.json"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
MAX_LEVELS = 4
MAX_MANIFEST_BYTES = 64 << 20
COLUMNS = ("step", "command", "made from", "tools", "seconds")


def provenance_sections(host: Host, artifact: Artifact) -> Iterator[Section]:
    """Yield the steps that made an artifact, the last first."""
    path = host.real(artifact.path)
    document, name = _find_manifest(host, path)
    steps = _steps_of(document) if document else []
    rows = [_step_row(step) for step in _chain(steps, name)]
    if document and rows:
        note = f"as {document.path} says; trtdx build verify {posixpath.dirname(document.path)} checks it"
        yield Section("built-from", f"{artifact.path}: what it was built from", COLUMNS, tuple(rows), note)


def _find_manifest(host: Host, path: str) -> tuple[Document | None, str]:
    """Return the nearest manifest above a path, and what the path is called in it."""
    folder = path if host.kind(path) == "directory" else posixpath.dirname(path)
    for _ in range(MAX_LEVELS):
        file = posixpath.join(folder, MANIFEST)
        if host.kind(file) == "file":
            try:
                document = read_json(host, file, MAX_MANIFEST_BYTES)
            except UnreadableError:
                return None, ""
            if document.data.get("predicateType") == PREDICATE_TYPE:
                return document, posixpath.relpath(path, folder)
        folder = posixpath.dirname(folder)
    return None, ""


def _steps_of(document: Document) -> list[dict[str, Any]]:
    steps = document.value_at("predicate.buildDefinition.internalParameters.steps")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _chain(steps: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the steps that made a file or folder, and those that made what they read."""
    by_key = {str(step.get("step")): step for step in steps}
    waiting = [step for step in steps if _makes(step, name)]
    chain: dict[str, dict[str, Any]] = {}
    while waiting:
        step = waiting.pop(0)
        if str(step.get("step")) in chain:
            continue
        chain[str(step.get("step"))] = step
        keys = {text[1:].partition("/")[0] for text in _names(step, "inputs") if text.startswith("@")}
        waiting += [by_key[key] for key in sorted(keys) if key in by_key]
    return list(chain.values())


def _makes(step: dict[str, Any], name: str) -> bool:
    return name == "." or any(output == name or output.startswith(f"{name}/") for output in _names(step, "outputs"))


def _names(step: dict[str, Any], key: str) -> list[str]:
    value = step.get(key)
    return [str(name) for name in value] if isinstance(value, dict) else []


def _step_row(step: dict[str, Any]) -> tuple[str | float | None, ...]:
    tools = step.get("tools")
    versions = [f"{name} {version}" for name, version in tools.items()] if isinstance(tools, dict) else []
    seconds = step.get("seconds")
    return (
        str(step.get("step")),
        " ".join(str(step.get("command", "")).split())[:200],
        abbreviate_list(_names(step, "inputs"), 4),
        abbreviate_list(versions, 4),
        float(seconds) if isinstance(seconds, int | float) else None,
    )
