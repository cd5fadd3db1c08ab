"""Declared requirements against what is installed, as `pip check` does, and TensorRT-LLM's own table beside them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from trtdx.check.judges.families import family_of_package
from trtdx.check.nouns import Cause, MendingOrder, canonical_name
from trtdx.check.view import make_evidence, version_or_none
from trtdx.knowledge.inventory import era_of_release, find_requirement, product_releases
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.nouns import InstalledDistribution
    from trtdx.check.view import EnvironmentView
    from trtdx.model import Evidence

# Packages whose wrong version has a page of its own.
PAGES = {"transformers": "DX041", "numpy": "DX040", "cuda-python": "DX039", "pynvml": "DX043", "nvidia-ml-py": "DX043"}
# What releases are paired with; a mismatch here is graver than that of a helper package.
PAIRED = (
    "torch",
    "tensorrt",
    "transformers",
    "numpy",
    "cuda-python",
    "nvidia-modelopt",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
DISTRIBUTORS = ("", "debian", "rpm", "apt")


class Conflict(NamedTuple):
    """A requirement that what is installed does not meet.

    Attributes:
        key: what is required, and not there or of a wrong version.
        declared: the requirement in the metadata of those that state it, with their names.
        table: what the release table says, where it speaks of the package.
        is_optional: only asked for through an extra.
    """

    key: str
    installed: InstalledDistribution | None
    declared: tuple[tuple[InstalledDistribution, str], ...]
    table: str = ""
    is_optional: bool = False


@lru_cache(maxsize=4)
def list_conflicts(view: EnvironmentView) -> tuple[Conflict, ...]:
    """Return the requirements that are not met, one for each package."""
    conflicts: dict[str, Conflict] = {}
    for distribution in view.in_force.values():
        for requirement in view.requirements(distribution):
            key = canonical_name(requirement.name)
            installed = view.in_force.get(key)
            if installed and meets(installed.version, str(requirement.specifier)):
                continue
            if installed is None and _is_provided_otherwise(view, key):
                continue
            known = conflicts.get(key, Conflict(key, installed, ()))
            conflicts[key] = known._replace(declared=(*known.declared, (distribution, str(requirement.specifier))))
    for key, specifier in table_requirements(view).items():
        installed = view.in_force.get(key)
        if key in conflicts:
            conflicts[key] = conflicts[key]._replace(table=specifier)
        elif installed and not meets(installed.version, specifier):
            conflicts[key] = Conflict(key, installed, (), specifier)
    return tuple(conflicts.values())


def meets(version: str, specifier: str) -> bool:
    """Whether a version, pre-releases included, is among those a specifier names."""
    try:
        return version_or_none(version) is None or SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def _is_provided_otherwise(view: EnvironmentView, key: str) -> bool:
    """Whether a package that has no metadata is there all the same, as in images that build their own."""
    module = key.replace("-", "_")
    return module in view.working_modules


def table_requirements(view: EnvironmentView) -> dict[str, str]:
    """Return what the installed release of TensorRT-LLM asks for by its own requirements file; none if unknown."""
    release, known = view.release, product_releases()
    if not release or release not in known:
        return {}
    wants: dict[str, str] = {}
    for package in view.in_force:
        entry = find_requirement(package)
        era = era_of_release(entry, release) if entry else None
        if era and era.wants and "@" not in era.wants:
            wants[package] = era.wants.partition(";")[0].strip()
    return wants


def judge_requirements(view: EnvironmentView) -> Iterator[Cause]:
    """Yield each package that is missing or of a wrong version."""
    for conflict in list_conflicts(view):
        yield (
            _missing_cause(view, conflict)
            if conflict.installed is None
            else _version_cause(view, conflict, conflict.installed)
        )


def _severity(view: EnvironmentView, conflict: Conflict) -> Severity:
    requirers = [distribution for distribution, _ in conflict.declared]
    if not requirers and conflict.key not in PAIRED:
        return Severity.NOTE
    if not requirers:  # only the table objects, and the wheel's own metadata does not
        return Severity.WARNING if _declared_by_release(view, conflict.key) else Severity.ERROR
    if any(distribution.key in view.relevant for distribution in requirers):
        return Severity.ERROR
    from_index = any(distribution.installer not in DISTRIBUTORS for distribution in requirers)
    return Severity.WARNING if from_index else Severity.NOTE


def _declared_by_release(view: EnvironmentView, key: str) -> str:
    """Return what the installed TensorRT-LLM's metadata says of a package; empty where it says nothing."""
    distribution = view.in_force.get("tensorrt-llm")
    for requirement in view.requirements(distribution) if distribution else ():
        if canonical_name(requirement.name) == key:
            return str(requirement.specifier) or "any version"
    return ""


def _table_evidence(view: EnvironmentView, conflict: Conflict) -> tuple[Evidence, ...]:
    if not conflict.table:
        return ()
    declared = _declared_by_release(view, conflict.key)
    words = f"{conflict.key}{conflict.table}"
    differs = f" (the wheel's own metadata says {declared})" if declared and not _same(declared, conflict.table) else ""
    return (make_evidence(f"TensorRT-LLM {view.release} requirements.txt", words + differs),)


def _same(one: str, other: str) -> bool:
    try:
        return SpecifierSet(one) == SpecifierSet(other)
    except InvalidSpecifier:
        return one == other


def _missing_cause(view: EnvironmentView, conflict: Conflict) -> Cause:
    requirer, specifier = conflict.declared[0]
    wish = f"{conflict.key}{conflict.table or specifier}"
    evidence = tuple(
        make_evidence(distribution.info_path, f"Requires-Dist: {conflict.key}{wanted_version}")
        for distribution, wanted_version in conflict.declared[:4]
    )
    values = {"package": conflict.key, "requirer": requirer.title, "wish": wish, "pip": view.pip}
    return Cause(
        "DX042",
        Violation((*evidence, *_table_evidence(view, conflict)), values, _severity(view, conflict)),
        MendingOrder.REQUIREMENTS,
        _names_of_missing(conflict.key, requirer),
        f"{conflict.key} is missing",
    )


def _names_of_missing(key: str, requirer: InstalledDistribution) -> frozenset[str]:
    """Return what fails without a package: its module, libraries of its family, and the one that consists of it."""
    names = {key, key.replace("-", "_"), family_of_package(key)}
    if not requirer.top_modules:  # a package of nothing but requirements, as `tensorrt` is
        names |= {requirer.key, requirer.key.replace("-", "_")}
    return frozenset(names)


def _version_cause(view: EnvironmentView, conflict: Conflict, installed: InstalledDistribution) -> Cause:
    requirers = [distribution for distribution, _ in conflict.declared]
    by_release = any(distribution.key == "tensorrt-llm" for distribution in requirers) or not requirers
    specifiers = ",".join(filter(None, dict.fromkeys(specifier for _, specifier in conflict.declared)))
    wish = (conflict.table or specifiers) if by_release else specifiers
    requirer = f"TensorRT-LLM {view.release}" if by_release and view.release else requirers[0].title
    evidence = (
        make_evidence(installed.info_path, f"{installed.title} is installed"),
        *(
            make_evidence(distribution.info_path, f"Requires-Dist: {conflict.key}{specifier} (of {distribution.title})")
            for distribution, specifier in conflict.declared[:4]
        ),
        *_table_evidence(view, conflict),
    )
    code = PAGES.get(conflict.key) if by_release else None
    paired = by_release and conflict.key in PAIRED
    values = {
        "package": installed.name,
        "version": installed.version,
        "requirer": requirer,
        "wish": f"{installed.name}{wish}",
        "specifier": wish,
        "others": _clash(conflict),
        "pip": view.pip,
        "target": _target(view, conflict, installed, wish, by_release=by_release),
    }
    return Cause(
        code or ("DX1100" if paired else "DX044"),
        Violation(evidence, values, _severity(view, conflict)),
        MendingOrder.PAIRING if paired else MendingOrder.REQUIREMENTS,
        frozenset({installed.key, *installed.top_modules[:8]}),
        f"{installed.title} is not what {requirer} requires",
    )


def _target(
    view: EnvironmentView, conflict: Conflict, installed: InstalledDistribution, wish: str, *, by_release: bool
) -> str:
    """Return what to install: another version of what is required, or of who requires it where the release fits as it is."""
    fits_release = conflict.table and meets(installed.version, conflict.table)
    if by_release or not fits_release:
        return f"{installed.name}{wish}"
    return f"{conflict.declared[0][0].name}' '{installed.name}=={installed.version}"


def _clash(conflict: Conflict) -> str:
    """Return words on requirements that no version meets at once."""
    specifiers = {specifier for _, specifier in conflict.declared if specifier}
    return f" ({len(specifiers)} packages ask for different versions)" if len(specifiers) > 1 else ""
