"""Which releases a page or a fix holds for: "<0.20", ">=1.0,<1.3.0rc21", or of another product "TensorRT <11"."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from trtdx.knowledge.inventory import TENSORRT_LLM, nearest_release, product_releases
from trtdx.knowledge.versions import parse_release, tensorrt_of

TENSORRT = "TensorRT"
_HOLDS_FOR = re.compile(r"(?:(?:(?P<product>[A-Za-z][\w -]*?) ?)?(?P<specifier>[<>=!~].*))?")


class ReleaseSpan(NamedTuple):
    """The releases of one product that something holds for."""

    product: str
    specifier: SpecifierSet

    def has_release(self, release: str) -> bool:
        version = parse_release(release)
        return version is not None and self.specifier.contains(version, prereleases=True)


@cache
def parse_holds_for(text: str) -> ReleaseSpan:
    """Return the span that `holds_for` states; raises InvalidSpecifier where it states none."""
    match = _HOLDS_FOR.fullmatch(text.strip())
    if match is None:
        raise InvalidSpecifier(f"{text!r} is no product and version specifier such as '<0.20' or 'TensorRT <11'")
    return ReleaseSpan(match["product"] or TENSORRT_LLM, SpecifierSet(match["specifier"] or ""))


def releases_to_hold(holds_for: str, product: str) -> tuple[str, ...]:
    """Return the releases of a product that a claim must be true of, oldest first.

    Those the claim says; where it says nothing the newest release and what is in use beside it.
    """
    span = parse_holds_for(holds_for)
    if holds_for and span.product == product:
        return tuple(release for release in _judged_releases(product) if span.has_release(release))
    if holds_for and product == TENSORRT and span.product == TENSORRT_LLM:
        return _tensorrt_releases(span)
    return _usual_releases(product)


@cache
def _judged_releases(product: str) -> tuple[str, ...]:
    """Return the releases that are held against a claim: candidates only of what has not come out."""
    versions = {release: Version(release) for release in product_releases(product)}
    newest = max((version for version in versions.values() if not version.is_prerelease), default=None)
    return tuple(
        name for name, version in versions.items() if not version.is_prerelease or newest is None or version > newest
    )


@cache
def _usual_releases(product: str) -> tuple[str, ...]:
    """Return the releases in use: the newest, and the last stable one, the last before a new major one, or its like."""
    releases = product_releases(product)
    if not releases:
        return ("",)
    newest = Version(releases[-1])
    if product == TENSORRT_LLM:
        stable = [release for release in releases if not Version(release).is_prerelease]
        return (stable[-1], releases[-1])
    if product == TENSORRT:
        return (nearest_release(tensorrt_of(_usual_releases(TENSORRT_LLM)[0]), TENSORRT), releases[-1])
    if product == "Open MPI":
        before = [release for release in releases if Version(release).major < newest.major]
        return (before[-1], releases[-1])
    return (releases[-1],)


def _tensorrt_releases(span: ReleaseSpan) -> tuple[str, ...]:
    """Return the releases of TensorRT that a span of TensorRT-LLM's was made with."""
    made_with = [tensorrt_of(release) for release in _judged_releases(TENSORRT_LLM) if span.has_release(release)]
    return tuple(
        dict.fromkeys(name for version in made_with if version and (name := nearest_release(version, TENSORRT)))
    )


def may_hold(holds_for: str, first: str, last: str) -> bool:
    """Return whether something may hold for a release of TensorRT-LLM that lies between two; unknown ones may."""
    return not holds_for or any(_verdicts(holds_for, first, last))


def holds_throughout(holds_for: str, first: str, last: str) -> bool:
    """Return whether something is known to hold for every release of TensorRT-LLM between two."""
    return bool(holds_for) and all(_verdicts(holds_for, first, last, unknown=False))


def _verdicts(holds_for: str, first: str, last: str, *, unknown: bool = True) -> list[bool]:
    """Return of each release between two whether it is in the span; `unknown` where that cannot be said."""
    span = parse_holds_for(holds_for)
    low, high = parse_release(first), parse_release(last)
    if low is None or high is None:
        return [unknown]
    between = (release for release in product_releases() if low <= Version(release) <= high)
    releases = dict.fromkeys((first, *between, last))
    if span.product == TENSORRT:
        return [span.has_release(made_with) if (made_with := tensorrt_of(release)) else unknown for release in releases]
    return [span.has_release(release) for release in releases] if span.product == TENSORRT_LLM else [unknown]
