"""Optimization profiles a user wrote down: JSON, YAML, or the shape options of trtexec or Polygraphy."""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING, Any

from trtdx.formats.documents import MAX_YAML_BYTES, Document, UnreadableError, parse_json, read_file_bytes
from trtdx.formats.tensorrt.nouns import OptimizationProfile, ShapeRange
from trtdx.formats.yaml_documents import YamlDocument, parse_yaml
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.onnx.profile_options import (
    MAX_DIMS,
    MAX_PROFILES,
    MAX_RANGES,
    SHAPE_KEYS,
    SHAPE_OPTION,
    profiles_from_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

LOG_LINE = re.compile(rb"^(?:\[[\d/:.-]+\] )?\[[VIWEFD]\] |^\[TensorRT|\[TRT(?:-LLM)?\]|^&&&& ", re.MULTILINE)
# What tells a mapping of profiles: the list's name, or all three names of shapes.
PROFILE_LIST = re.compile(rb"""^\{?\s*["']?profiles["']?\s*:""", re.MULTILINE)
SHAPE_KEY_PATTERNS = tuple(re.compile(rb"""(?<![\w-])["']?%b["']?\s*:""" % key.encode()) for key in SHAPE_KEYS)


def is_profile_file(_: Host, probe: PathProbe) -> bool:
    """Return whether a text gives min, opt and max shapes, as mappings or as options; a log of them does not."""
    if probe.is_directory or b"\0" in probe.start or LOG_LINE.search(probe.start):
        return False
    return _is_profile_document(probe.start) or bool(SHAPE_OPTION.search(probe.start.decode("utf-8", "replace")))


def _is_profile_document(data: bytes) -> bool:
    return bool(PROFILE_LIST.search(data)) or all(name.search(data) for name in SHAPE_KEY_PATTERNS)


def read_profile_file(host: Host, path: str) -> Artifact:
    """Return the profiles; what cannot be one becomes a fact, and the others are still returned."""
    facts = FactCollector()
    profiles: tuple[OptimizationProfile, ...] = ()
    unread: list[str] = []
    try:
        profiles = _parse_profiles(read_file_bytes(host, path, MAX_YAML_BYTES), path, facts)
        facts.put("profiles.shapes", [_profile_shapes(profile) for profile in profiles], f"{path}: profiles")
    except UnreadableError as err:
        facts.add("unparsed", f"{path}: {err}", path)
    if sum(len(profile.ranges) for profile in profiles) >= MAX_RANGES:
        unread.append(f"more than {MAX_RANGES} ranges or {MAX_PROFILES} profiles: the rest was left out")
    return Artifact("profiles", path, facts.to_dict(), profiles=profiles, unread=tuple(unread))


def _parse_profiles(data: bytes, path: str, facts: FactCollector) -> tuple[OptimizationProfile, ...]:
    text = data.decode("utf-8", "replace")
    if SHAPE_OPTION.search(text) and not _is_profile_document(data):
        return profiles_from_options(text, path, facts)
    document = _parse_profile_document(data, path)
    for duplicate in document.duplicates if isinstance(document, YamlDocument) else ():
        facts.add("malformed", f"{duplicate}: is written twice", path)
    return tuple(_profiles_from_document(document, facts))


def _parse_profile_document(data: bytes, path: str) -> Document:
    """Return the file as a mapping with the key "profiles", also where it is just the list."""
    start = data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"[":
        return Document(path, parse_json(b'{"profiles":' + data.removeprefix(b"\xef\xbb\xbf") + b"}"))
    if start == b"{":
        return Document(path, parse_json(data))
    if re.search(rb"\A(?:\s*(?:#[^\n]*)?\n|---[^\n]*\n)*-\s", data):
        document = parse_yaml(b"profiles:\n" + data.replace(b"---", b"", 1), path)
        document.lines = {key: line - 1 for key, line in document.lines.items()}
        return document
    return parse_yaml(data, path)


def _profiles_from_document(document: Document, facts: FactCollector) -> Iterator[OptimizationProfile]:
    listed = document.data.get("profiles")
    if listed is None and _is_profile(document.data):
        listed = [document.data]
    if not isinstance(listed, list):
        raise UnreadableError('has no list called "profiles"')
    left = MAX_RANGES
    for index, table in enumerate(listed[:MAX_PROFILES]):
        where = f"profiles[{index}]"
        if not isinstance(table, dict):
            _add_malformed(facts, document.place_of(where), table, "expected a table of inputs")
            continue
        ranges = tuple(_ranges_from_table(document, where, table, facts))[:left]
        left -= len(ranges)
        yield OptimizationProfile(index, ranges, f"written down in {document.path}")


def _is_profile(data: dict[str, Any]) -> bool:
    """Return whether a mapping is one profile itself, without a list around it."""
    return bool(data) and all(isinstance(shapes, dict) and set(SHAPE_KEYS) <= set(shapes) for shapes in data.values())


def _ranges_from_table(
    document: Document, where: str, table: dict[str, Any], facts: FactCollector
) -> Iterator[ShapeRange]:
    for tensor, shapes in table.items():
        place = document.place_of(f"{where}.{tensor}")
        if not isinstance(shapes, dict) or not set(SHAPE_KEYS) <= set(shapes):
            _add_malformed(facts, place, shapes, "expected min, opt and max")
            continue
        low, best, high = (_parse_shape(shapes[key]) for key in SHAPE_KEYS)
        if low is None or best is None or high is None:
            _add_malformed(facts, place, shapes, "expected shapes such as [1, 32]")
        else:
            yield ShapeRange(tensor, low, best, high)


def _parse_shape(value: Any) -> tuple[int, ...] | None:
    """Return a list of whole numbers (or "1x32") as a shape, None where it is anything else."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}(x\d{1,18}){0,15}", value):
        return tuple(map(int, value.split("x")))
    if not isinstance(value, list) or len(value) > MAX_DIMS:
        return None
    are_integers = all(type(dim) is int and abs(dim) < 2**63 for dim in value)
    return tuple(value) if are_integers else None


def _add_malformed(facts: FactCollector, where: str, value: Any, problem: str) -> None:
    facts.add("malformed", f"{where} = {reprlib.repr(value)}: {problem}", where)


def _profile_shapes(profile: OptimizationProfile) -> dict[str, Any]:
    return {
        span.tensor: {"min": list(span.min), "opt": list(span.opt), "max": list(span.max)} for span in profile.ranges
    }


READER = ArtifactReader(
    "profiles",
    "optimization profiles (JSON, YAML or shape options of trtexec or Polygraphy)",
    is_profile_file,
    read_profile_file,
)
