"""Optimization profiles in the shape options of trtexec and Polygraphy.

trtexec: `--profile=1 --minShapes=a:1x1,b:1x1 --optShapes=... --maxShapes=...`; opt shapes alone stand for all three.
Polygraphy: `--trt-min-shapes a:[1,1] b:[1,1] --trt-opt-shapes ...`; a second set of options is a second profile.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from trtdx.formats.tensorrt.nouns import OptimizationProfile, ShapeRange
from trtdx.inspect.facts.artifact import shorten_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import FactCollector

SHAPE_OPTION = re.compile(r"--(?:trt-)?(?:min|opt|max)-?shapes\b", re.IGNORECASE)
MAX_TEXT_CHARS = 256 << 10
MAX_PROFILES, MAX_RANGES, MAX_DIMS = 256, 4096, 16
SHAPE_KEYS = ("min", "opt", "max")
ProfileShape = tuple[int, ...]
ShapeTables = dict[int, dict[str, dict[str, ProfileShape]]]  # by profile, tensor and key


def profiles_from_options(text: str, path: str, facts: FactCollector) -> tuple[OptimizationProfile, ...]:
    """Return the profiles that options give; what is incomplete becomes the fact `malformed`."""
    words = _split_words(text[:MAX_TEXT_CHARS])
    polygraphy = any(word.lower().startswith("--trt-") for word in words)
    tables = _parse_polygraphy_options(words, path, facts) if polygraphy else _parse_trtexec_options(words, path, facts)
    source = f"{'Polygraphy' if polygraphy else 'trtexec'} options in {path}"
    return tuple(
        OptimizationProfile(index, tuple(_ranges_from_shapes(index, table, path, facts))[:MAX_RANGES], source)
        for index, table in sorted(tables.items())[:MAX_PROFILES]
    )


def _split_words(text: str) -> list[str]:
    """Return the words of a command as a shell would split them, or at blanks where quotes do not match."""
    text = re.sub(r"\\\r?\n", " ", text)
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _parse_trtexec_options(words: list[str], path: str, facts: FactCollector) -> ShapeTables:
    tables: ShapeTables = {}
    profile = 0
    for option, value in _iterate_options(words):
        if option == "profile" and value.isascii() and value.isdigit() and len(value) < 6:
            profile = int(value)
        shapes_option = re.fullmatch(r"(min|opt|max)?shapes", option)
        for part in value.split(",") if shapes_option and value else ():
            tensor, dims = _parse_named_shape(part, r"x")
            if dims is None:
                facts.add("malformed", f"{path}: --{option}: {shorten_value(part)}: expected name:1x2x3", path)
                continue
            keys = (shapes_option[1],) if shapes_option and shapes_option[1] else SHAPE_KEYS
            for key in keys:
                tables.setdefault(profile, {}).setdefault(tensor, {}).setdefault(key, dims)
    for table in tables.values():
        for shapes in table.values():
            if set(shapes) == {"opt"}:
                shapes |= {"min": shapes["opt"], "max": shapes["opt"]}
    return tables


def _iterate_options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values, written --name=value or --name value."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name.lower(), value if equals or after.startswith("--") else after


def _parse_polygraphy_options(words: list[str], path: str, facts: FactCollector) -> ShapeTables:
    tables: ShapeTables = {}
    profile_by_key = dict.fromkeys(SHAPE_KEYS, -1)
    key = ""
    for word in words:
        if word.startswith("-"):
            shapes_option = re.match(r"--trt-(min|opt|max)-shapes$", word)
            key = shapes_option[1] if shapes_option else ""
            if key:
                profile_by_key[key] += 1
        elif key:
            tensor, dims = _parse_named_shape(word, r"[,x]")
            if dims is None:
                problem = f"{path}: --trt-{key}-shapes: {shorten_value(word)}: expected name:[1,2,3]"
                facts.add("malformed", problem, path)
            else:
                tables.setdefault(profile_by_key[key], {}).setdefault(tensor, {})[key] = dims
    return tables


def _parse_named_shape(part: str, separator: str) -> tuple[str, ProfileShape | None]:
    """Return the name and shape of "name:1x2" or "name:[1,2]" (older Polygraphy: "name,1x2")."""
    named_shape = re.fullmatch(rf"\s*(.+?)\s*[:,]\s*\[?\s*((?:\d+(?:\s*{separator}\s*\d+)*)?)\s*\]?\s*", part)
    if not named_shape:
        return "", None
    numbers = re.findall(r"\d+", named_shape[2])
    if len(numbers) > MAX_DIMS or any(len(number) > 18 for number in numbers):
        return "", None
    return named_shape[1].strip("'\""), tuple(map(int, numbers))


def _ranges_from_shapes(
    index: int, table: dict[str, dict[str, ProfileShape]], path: str, facts: FactCollector
) -> Iterator[ShapeRange]:
    for tensor, shapes in table.items():
        lacking = [key for key in SHAPE_KEYS if key not in shapes]
        if lacking:
            problem = f"{path}: profile {index}: {tensor}: has no {' and no '.join(lacking)} shape"
            facts.add("malformed", problem, path)
        else:
            yield ShapeRange(tensor, shapes["min"], shapes["opt"], shapes["max"])
