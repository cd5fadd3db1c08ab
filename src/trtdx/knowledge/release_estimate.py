"""The release of TensorRT-LLM that a log comes from: stated by a line, or inferred from what its lines can be printed by."""

from __future__ import annotations

import re
from math import log2
from typing import TYPE_CHECKING

from trtdx.knowledge.versions import parse_release, release_of_image, stated_release, version_table
from trtdx.model import ReleaseEstimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtdx.knowledge.atlas import LocatedLine, MessageAtlas

PROJECT = "TensorRT-LLM"
BACKEND = "tensorrtllm_backend"  # has the same numbers
CONTAINER = "Triton core"  # its releases are those of images, which hold a release of TensorRT-LLM
LEAST_EVIDENCE = 0.4  # bits in all; less says nothing
PROGRAM_STATES, PACKAGE_STATES, IMAGE_STATES = 3, 2, 1  # how much a stated release counts
CONTAINER_TRUST = 0.6  # an image may hold another TensorRT-LLM than it came with

# What a running program prints of itself comes first; a package or an image may be another than the one that runs.
_RUNNING = re.compile(r"TensorRT[- ]LLM version: ?v?(?P<release>\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)*)")
_INSTALLED = re.compile(
    r"tensorrt[_-]llm(?:==|-| +|: *)v?(?P<release>\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)*)\b(?!\.\d)"
    r"|LLM/release-(?P<branch>\d+\.\d+)/"
)
_IMAGE = re.compile(r"nvcr\.io/nvidia/[\w./-]+:[\w.-]+")
# The logger's own form: Python names the rank since 0.19, and since 1.3.0rc13 the module.
_FORMS = (
    (re.compile(r"\[TRT-LLM\] \[RANK \d+\] \[[A-Z]\]"), "0.19.0rc0", "1.3.0rc12"),
    (re.compile(r"\[TRT-LLM\] \[[A-Z]\] ?\[[\w. -]{1,24}\] ?\[RANK \d+\]"), "1.3.0rc13", ""),
)


def stated_in_line(line: str) -> tuple[str, int]:
    """Return the release that a line states, and how much that counts; nothing and 0 where it states none."""
    if match := _RUNNING.search(line):
        return stated_release(match["release"]), PROGRAM_STATES
    if match := _INSTALLED.search(line):
        return stated_release(match["release"] or f"{match['branch']}.0"), PACKAGE_STATES
    for match in _IMAGE.finditer(line):
        if release := release_of_image(match[0]):
            return release, IMAGE_STATES
    return "", 0


def estimate_release(
    lines: Iterable[tuple[str, str]], located: Sequence[LocatedLine], atlas: MessageAtlas
) -> ReleaseEstimate | None:
    """Return the release that lines come from; None where they do not tell.

    Args:
        lines: where each line stands, and its text.
        located: what the atlas knows of them.
        atlas: the atlas it was asked of.
    """
    best: tuple[int, str, str] = (0, "", "")
    forms = []
    for where, text in lines:
        release, trust = stated_in_line(text)
        if release and trust > best[0]:
            best = (trust, release, where)
        forms += [form[1:] for form in _FORMS if form[0].search(text)]
    if best[0]:
        return ReleaseEstimate(project=PROJECT, first=best[1], last=best[1], where=best[2])
    return infer_release(located, atlas, forms[:1])


def infer_release(
    located: Sequence[LocatedLine], atlas: MessageAtlas, forms: Sequence[tuple[str, str]] = ()
) -> ReleaseEstimate | None:
    """Return the releases that can print most of the lines, each line counted by how few releases can print it."""
    releases = next((project.releases for project in atlas.projects if project.name == PROJECT), ())
    votes = [vote for line in located if (vote := _vote_of_line(line, atlas, releases))[0]]
    votes += [(_mask_between(releases, *form), 1.0) for form in forms]
    scores = [0.0] * len(releases)
    for mask, trust in set(votes):  # one message said often is one witness
        rarity = trust * log2(len(releases) / mask.bit_count())
        for number in range(len(releases)):
            scores[number] += rarity * (mask >> number & 1)
    top = max(scores, default=0.0)
    if top < LEAST_EVIDENCE:
        return None
    fitting = [release for release, score in zip(releases, scores, strict=True) if score >= top - 1e-6]
    return ReleaseEstimate(project=PROJECT, first=fitting[0], last=fitting[-1], lines=len(votes))


def _vote_of_line(line: LocatedLine, atlas: MessageAtlas, releases: Sequence[str]) -> tuple[int, float]:
    """Return the releases of TensorRT-LLM that can print a line, as bits, and how far to trust that."""
    mask = line.releases.get(PROJECT, 0)
    backend = _release_names(line, atlas, BACKEND)
    mask |= sum(1 << number for number, release in enumerate(releases) if release in backend)
    if mask:
        return mask, 1.0
    images = _release_names(line, atlas, CONTAINER) if line.source_line else ()
    inside = {parse_release(version_table().triton.get(image, "")) for image in images}
    bits = sum(1 << number for number, release in enumerate(releases) if parse_release(release) in inside)
    return bits, CONTAINER_TRUST


def _release_names(line: LocatedLine, atlas: MessageAtlas, name: str) -> tuple[str, ...]:
    mask = line.releases.get(name, 0)
    project = next((project for project in atlas.projects if project.name == name), None)
    if not mask or project is None:
        return ()
    return tuple(release for number, release in enumerate(project.releases) if mask >> number & 1)


def _mask_between(releases: Sequence[str], first: str, last: str) -> int:
    low, high = parse_release(first), parse_release(last or releases[-1])
    return sum(
        1 << number
        for number, release in enumerate(releases)
        if low and high and low <= (parse_release(release) or low) <= high
    )
