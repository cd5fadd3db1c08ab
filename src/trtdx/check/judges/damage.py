"""Files that are not what they should be: for another machine or Python, cut off, pointers, or gone."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from trtdx.check.nouns import Cause, ElfFacts, MendingOrder
from trtdx.check.probe import COMPILED
from trtdx.check.view import make_evidence, version_or_none
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.nouns import InstalledDistribution
    from trtdx.check.view import EnvironmentView
    from trtdx.model import Evidence

# Files whose absence harms nobody: stripped by slim images, or written at run time.
UNNEEDED = re.compile(
    r"(?:^|/)(?:tests?|testing|docs?|examples?|benchmarks?|include|share)/|\.(?:h|hpp|cuh|a|pyi|txt|md|rst|html|c|pyx|pxd)$"
)
WORDS = {
    "empty": "is an empty file",
    "zeros": "holds nothing but zeros",
    "cut off": "is cut off: parts its header announces are missing",
    "damaged": "is damaged: its tables cannot be read",
    "not ELF": "is not a shared library at all",
    "dangling": "is a link to a file that is not there",
    "an archive of objects": "is a static archive, not a shared library",
}
_ABI_TAG = re.compile(r"\.(?:cpython-(\d)(\d+)\w*|pypy\w+)-(?:[\w-]+)\.so$|\.cp(\d)(\d+)-win\w+\.pyd$")


def judge_damage(view: EnvironmentView) -> Iterator[Cause]:
    """Yield every file or distribution that is damaged or made for something else."""
    reported = set()
    for thing in view.record.libraries:
        cause = _judge_library_file(view, thing)
        if cause and (cause.code, thing.owner) not in reported:
            reported.add((cause.code, thing.owner))
            yield cause
    for distribution in view.distributions:
        yield from _judge_distribution(view, distribution, reported)


def _judge_library_file(view: EnvironmentView, thing: ElfFacts) -> Cause | None:
    owner = view.owner_of_path(thing.path)
    title = owner.title if owner else thing.owner or "no distribution"
    evidence = (make_evidence(thing.path, f"file of {title}"),)
    about = frozenset(
        {thing.path, os.path.basename(thing.path), thing.owner, *(owner.top_modules[:5] if owner else ())} - {""}
    )
    values = {"file": thing.path, "owner": title, "pip": view.pip, "package": _reinstall(owner, thing.owner)}
    severity = _harm(view, owner)
    if thing.problem == "pointer":
        problem = f"{thing.path} of {title} is a Git LFS pointer, not the file itself"
        command = f"git lfs install && git lfs pull   # in the checkout it was installed from; then: {view.pip} --force-reinstall --no-deps '{values['package']}'"
        return Cause(
            "DX050", Violation(evidence, {"problem": problem, "command": command}, severity), MendingOrder.DAMAGE, about
        )
    if thing.problem in ("a Windows file", "a macOS file"):
        return _other_machine(view, values, evidence, about, severity, f"it is {thing.problem}")
    if thing.problem == "closed":
        return Cause("DX049", Violation(evidence, values, severity), MendingOrder.DAMAGE, about)
    if thing.problem in WORDS:
        damage = {**values, "damage": WORDS[thing.problem]}
        return Cause("DX1112", Violation(evidence, damage, severity), MendingOrder.DAMAGE, about)
    if thing.machine and view.python.machine and thing.machine != view.python.machine and owner is not None:
        reason = f"it is for {thing.machine}, and this Python is for {view.python.machine}"
        if view.works(owner) and not _is_mostly_foreign(view, owner):
            severity = Severity.NOTE  # some packages bring files for several machines
        return _other_machine(view, values, evidence, about, severity, reason)
    return None


def _other_machine(
    view: EnvironmentView,
    values: dict[str, str],
    evidence: tuple[Evidence, ...],
    about: frozenset[str],
    severity: Severity,
    reason: str,
) -> Cause:
    return Cause(
        "DX1111",
        Violation(evidence, {**values, "reason": reason}, severity),
        MendingOrder.PLATFORM,
        about,
    )


def _is_mostly_foreign(view: EnvironmentView, owner: InstalledDistribution) -> bool:
    foreign = [
        thing for thing in view.record.libraries if thing.owner == owner.key and thing.machine != view.python.machine
    ]
    return len(foreign) * 2 > len(owner.compiled)


def _reinstall(owner: InstalledDistribution | None, name: str) -> str:
    return f"{owner.name}=={owner.version}" if owner else name or "PACKAGE"


def _harm(view: EnvironmentView, owner: InstalledDistribution | None) -> Severity:
    """Return how grave a bad file is: an import that works outranks what it looks like."""
    if owner is not None and view.works(owner):
        return Severity.WARNING if owner.key in view.relevant else Severity.NOTE
    return Severity.ERROR if owner is None or owner.key in view.relevant else Severity.WARNING


def _judge_distribution(
    view: EnvironmentView, distribution: InstalledDistribution, reported: set[tuple[str, str]]
) -> Iterator[Cause]:
    if not distribution.has_metadata or (distribution.version and version_or_none(distribution.version) is None):
        yield _metadata_cause(view, distribution)
        return
    if view.in_force.get(distribution.key) is not distribution:
        return  # a copy that does not count is judged as a copy
    yield from _judge_wheel_tags(view, distribution, reported)
    yield from _judge_extensions(view, distribution, reported)
    yield from _judge_recorded_files(view, distribution, reported)


def _metadata_cause(view: EnvironmentView, distribution: InstalledDistribution) -> Cause:
    what = "has no METADATA" if not distribution.has_metadata else f"states no valid version ({distribution.version!r})"
    values = {"info": distribution.info_path, "what": what, "package": distribution.name, "pip": view.pip}
    relevant = distribution.key in view.relevant or bool(view.failing)
    severity = Severity.ERROR if relevant else Severity.WARNING
    return Cause(
        "DX1119",
        Violation((make_evidence(distribution.info_path, what),), values, severity),
        MendingOrder.DAMAGE,
        frozenset({distribution.key, *distribution.top_modules}),
    )


def _judge_wheel_tags(
    view: EnvironmentView, distribution: InstalledDistribution, reported: set[tuple[str, str]]
) -> Iterator[Cause]:
    """Yield a wheel none of whose tags fits this machine or this Python."""
    platforms = {tag.split("-")[-1] for tag in distribution.tags}
    machine = view.python.machine
    if not platforms or not machine or ("DX1111", distribution.key) in reported:
        return
    if not any(platform == "any" or _fits_platform(platform, machine) for platform in platforms):
        reported.add(("DX1111", distribution.key))
        tag = distribution.tags[0]
        values = {
            "file": distribution.info_path, "owner": distribution.title, "pip": view.pip,
            "reason": f"its wheel is for {tag.split('-')[-1]}, and this Python is for {view.python.platform or machine}",
            "package": _reinstall(distribution, ""),
        }  # fmt: skip
        evidence = (make_evidence(f"{distribution.info_path}/WHEEL", f"Tag: {tag}"),)
        about = frozenset({distribution.key, *distribution.top_modules})
        yield Cause("DX1111", Violation(evidence, values, _harm(view, distribution)), MendingOrder.PLATFORM, about)
        return
    yield from _judge_python_tags(view, distribution, reported)


def _fits_platform(platform: str, machine: str) -> bool:
    return platform.endswith(machine) and platform.startswith(("linux", "manylinux"))


def _judge_python_tags(
    view: EnvironmentView, distribution: InstalledDistribution, reported: set[tuple[str, str]]
) -> Iterator[Cause]:
    own = "cp" + view.python.minor.replace(".", "")
    pythons = {name for tag in distribution.tags for name in tag.split("-")[0].split(".")}
    stable = any("-abi3-" in tag for tag in distribution.tags)
    compiled = {name for name in pythons if re.fullmatch(r"cp3\d+", name)}
    if not compiled or own in pythons or pythons - compiled or (stable and min(map(_number, compiled)) <= _number(own)):
        return
    reported.add(("DX014", distribution.key))
    reason = f"its wheel is for {', '.join(sorted(compiled))}, and this is Python {view.python.version}"
    evidence = (make_evidence(f"{distribution.info_path}/WHEEL", f"Tag: {distribution.tags[0]}"),)
    yield _python_cause(view, distribution, reason, evidence)


def _number(tag: str) -> int:
    return int(tag.removeprefix("cp3") or 0)


def _python_cause(
    view: EnvironmentView, distribution: InstalledDistribution, reason: str, evidence: tuple[Evidence, ...]
) -> Cause:
    values = {"subject": distribution.title, "reason": reason, "pip": view.pip, "package": _reinstall(distribution, "")}
    about = frozenset({distribution.key, *distribution.top_modules})
    return Cause("DX014", Violation(evidence, values, _harm(view, distribution)), MendingOrder.PLATFORM, about)


def _judge_extensions(
    view: EnvironmentView, distribution: InstalledDistribution, reported: set[tuple[str, str]]
) -> Iterator[Cause]:
    """Yield a distribution whose extension modules are all for other Python versions."""
    if ("DX014", distribution.key) in reported:
        return
    own = view.python.minor.replace(".", "")
    stems: dict[str, set[str]] = {}
    for name in distribution.compiled:
        match = _ABI_TAG.search(name)
        if match:
            stems.setdefault(name[: match.start()], set()).add(
                (match[1] or match[3] or "") + (match[2] or match[4] or "")
            )
    wrong = sorted(stem for stem, tags in stems.items() if own and own not in tags)
    requires = distribution.requires_python
    if wrong and len(wrong) == len(stems):
        tag = next(iter(stems[wrong[0]]))
        file = next(name for name in distribution.compiled if name.startswith(wrong[0]))
        made_for = f"Python {tag[0]}.{tag[1:]}" if tag else "another Python"
        reason = f"its compiled modules are for {made_for}, and this is Python {view.python.version}"
        reported.add(("DX014", distribution.key))
        yield _python_cause(
            view, distribution, reason, (make_evidence(f"{distribution.folder}/{file}", "compiled module"),)
        )
    elif requires and not _accepts_python(requires, view.python.version):
        reported.add(("DX014", distribution.key))
        reason = f"it requires Python {requires}, and this is Python {view.python.version}"
        yield _python_cause(
            view, distribution, reason, (make_evidence(distribution.info_path, f"Requires-Python: {requires}"),)
        )


def _accepts_python(requires: str, version: str) -> bool:
    from trtdx.check.judges.requirements import meets

    return not version or meets(version if version.count(".") > 1 else f"{version}.99", requires)


def _judge_recorded_files(
    view: EnvironmentView, distribution: InstalledDistribution, reported: set[tuple[str, str]]
) -> Iterator[Cause]:
    """Yield a distribution whose listed files are gone, or have another length."""
    missing = [
        name
        for name in distribution.missing
        if (not UNNEEDED.search(name) and name.endswith((".py", ".so", ".pyd"))) or COMPILED.search(name)
    ]
    missing = [name for name in missing if not name.startswith("..")]
    about = frozenset({distribution.key, *distribution.top_modules, *(os.path.basename(name) for name in missing)})
    severity = _harm(view, distribution)
    if view.works(distribution) and (
        not any(map(COMPILED.search, missing)) or distribution.missing_count * 5 > distribution.files
    ):
        severity = Severity.NOTE  # stripped on purpose, as slim images do
    if missing:
        count = max(len(missing), distribution.missing_count if len(distribution.missing) >= 40 else 0)
        what = (
            "all of its files are"
            if distribution.missing_count >= max(12, distribution.files - 12)
            else f"{count} of its files {'is' if count == 1 else 'are'}"
        )
        values = {
            "package": distribution.title, "what": f"{what} missing ({missing[0]}{' and others' if count > 1 else ''})",
            "reinstall": _reinstall(distribution, ""), "pip": view.pip,
        }  # fmt: skip
        evidence = tuple(
            make_evidence(f"{distribution.info_path}/RECORD", f"{name} is listed, and not there")
            for name in missing[:4]
        )
        yield Cause("DX061", Violation(evidence, values, severity), MendingOrder.DAMAGE, about)
        return
    changed = [
        row
        for row in distribution.wrong_size
        if COMPILED.search(row[0]) and ("DX1112", distribution.key) not in reported
    ]
    changed = [row for row in changed if ("DX050", distribution.key) not in reported and row[2] < row[1] // 2]
    if changed:
        name, expected, actual = changed[0]
        damage = f"has {format_bytes(actual)} where {format_bytes(expected)} were installed"
        values = {
            "file": f"{distribution.folder}/{name}", "owner": distribution.title, "damage": damage, "pip": view.pip,
            "package": _reinstall(distribution, ""),
        }  # fmt: skip
        evidence = (make_evidence(f"{distribution.info_path}/RECORD", f"{name}: {expected} bytes; on disk: {actual}"),)
        yield Cause(
            "DX1112",
            Violation(evidence, values, severity),
            MendingOrder.DAMAGE,
            about | {f"{distribution.folder}/{name}"},
        )
