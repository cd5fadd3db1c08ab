"""Facts of many releases folded into eras, and written one entry a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def fold_releases(
    releases: Sequence[str], facts_by_release: Mapping[str, Mapping[Any, dict[str, Any]]]
) -> dict[Any, list[dict[str, Any]]]:
    """Return each thing's eras: the longest runs of releases that say the same of it.

    `until` is the last release of the run, and is left out where that is the last release looked at.
    """
    eras: dict[Any, list[dict[str, Any]]] = {}
    last: dict[Any, tuple[int, dict[str, Any]]] = {}
    for position, release in enumerate(releases):
        for key, facts in facts_by_release.get(release, {}).items():
            previous = last.get(key)
            if previous is not None and previous[0] == position - 1 and previous[1] == facts:
                eras[key][-1]["until"] = release
            else:
                eras.setdefault(key, []).append({"since": release, "until": release, **facts})
            last[key] = (position, facts)
    for spans in eras.values():
        if spans[-1]["until"] == releases[-1]:
            del spans[-1]["until"]
    return eras


def write_entries(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write a JSON list with one entry a line, so that a change of one fact is a change of one line."""
    lines = [json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
