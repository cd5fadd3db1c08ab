"""Weights an ONNX file keeps in other files: whether they are there, long enough and where they belong."""

from __future__ import annotations

import posixpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trtdx.formats.onnx.proto import OnnxWeight
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import FactCollector

MAX_DATA_FILES = 10_000  # that are looked for; an exporter may write one for each tensor
MAX_LISTED_PROBLEMS = 50


class RequiredLength(NamedTuple):
    """How long a file must be, and for which tensor."""

    bytes: int
    tensor: str


def put_external_data(host: Host, path: str, weights: list[OnnxWeight], facts: FactCollector) -> None:
    """Put the facts about external data; only names and lengths of files are looked at, never their bytes."""
    where = f"{path}: graph.initializer.external_data"
    needs: dict[str, RequiredLength] = {}
    for weight in weights:
        location, need, problem = _required_length(weight)
        if problem:
            _add_problem(facts, "onnx.external_wrong", problem, where)
        if location not in needs or needs[location].bytes < need.bytes:
            needs[location] = need
    facts.put("onnx.external_files", sorted(needs)[:MAX_DATA_FILES] or None, where)
    for location in sorted(needs)[:MAX_DATA_FILES]:
        _put_data_file(host, path, location, needs[location], facts)


def _add_problem(facts: FactCollector, name: str, item: str, where: str) -> None:
    if len(facts.get(name) or ()) < MAX_LISTED_PROBLEMS:
        facts.add(name, item, where)


def _required_length(weight: OnnxWeight) -> tuple[str, RequiredLength, str]:
    """Return the file of a weight, how long that must be, and what is wrong with the entry."""
    entry = weight.external or {}
    location = entry.get("location", "")
    offset, length = _parse_digits(entry.get("offset", "0")), _parse_digits(entry.get("length", ""))
    needs = weight.needed_bytes
    if offset is None or ("length" in entry and length is None):
        stated = f"offset {entry.get('offset', '0')!r:.40}, length {entry.get('length', '')!r:.40}"
        return location, RequiredLength(0, weight.name), f"{weight.name}: {stated}"
    problem = ""
    if length is not None and needs is not None and length != needs:
        problem = f"{weight.name}: its shape needs {needs:,} bytes, its entry says {length:,}"
    return location, RequiredLength(offset + (needs or 0 if length is None else length), weight.name), problem


def _parse_digits(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _put_data_file(host: Host, path: str, location: str, need: RequiredLength, facts: FactCollector) -> None:
    where = f"{path}: {need.tensor}"
    if leaves_folder(location):
        _add_problem(facts, "onnx.external_outside", location, where)
        return
    file = str(Path(path).parent / posixpath.normpath(location))  # as TensorRT: "a/../b" needs no folder a
    if host.kind(file) != "file":
        _add_problem(facts, "onnx.external_missing", location, where)
    elif _links_outside(path, file):
        _add_problem(facts, "onnx.external_outside", f"{location} (by a link)", where)
    else:
        _put_short_file(host, file, location, need, facts, where)


def _put_short_file(
    host: Host, file: str, location: str, need: RequiredLength, facts: FactCollector, where: str
) -> None:
    try:
        size = host.size(file)
    except OSError:  # it vanished since
        _add_problem(facts, "onnx.external_missing", location, where)
        return
    if size < need.bytes:
        short = f"{location}: has {size:,} bytes, but {need.tensor} ends at byte {need.bytes:,}"
        _add_problem(facts, "onnx.external_short", short, where)


def leaves_folder(location: str) -> bool:
    """Return whether a location is absolute or climbs out of the model's folder, on either system."""
    parts = PurePosixPath(location.replace("\\", "/")).parts
    if parts and (parts[0].startswith("/") or parts[0].endswith(":")):
        return True
    depth = 0
    for part in parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def _links_outside(path: str, file: str) -> bool:
    """Return whether links lead to somewhere else than the model's folder.

    A model that is a link itself, as all files in the Hugging Face cache are, may keep its data beside its target.
    """
    try:
        target = Path(file).resolve()
        folders = (Path(path).parent.resolve(), Path(path).resolve().parent)
    except (OSError, RuntimeError, ValueError):
        return True
    return not any(target.is_relative_to(folder) for folder in folders)
