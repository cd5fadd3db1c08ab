"""Distributions that are there twice, in name only, or point to a folder that is gone."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import TYPE_CHECKING
from urllib.parse import unquote

from trtdx.check.judges.requirements import list_conflicts
from trtdx.check.nouns import Cause, InstalledDistribution, MendingOrder, canonical_name
from trtdx.check.probe import place_of_file
from trtdx.check.view import make_evidence
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.view import EnvironmentView

PLACEHOLDER = re.compile(
    r"place[- ]?holder|fake (?:package|wheel)|dummy package|stub (?:package|wheel)|nvidia-pyindex|"
    r"this package is (?:intentionally )?empty|reserved? (?:the )?name|not the real",
    re.IGNORECASE,
)
# Distributions that consist of the module named; without it there is nothing but metadata.
MODULE_OF = {
    "torch": "torch", "tensorrt-llm": "tensorrt_llm", "transformers": "transformers", "numpy": "numpy", "mpi4py": "mpi4py",
    "tokenizers": "tokenizers", "safetensors": "safetensors", "onnx": "onnx", "onnxruntime": "onnxruntime",
}  # fmt: skip
# Distributions that write the same module under different names.
SAME_MODULE = (
    ("pynvml", "nvidia-ml-py"), ("onnxruntime", "onnxruntime-gpu"), ("triton", "pytorch-triton", "triton-nightly"),
    ("opencv-python", "opencv-python-headless", "opencv-contrib-python"), ("flashinfer", "flashinfer-python"),
    ("tensorrt-cu11", "tensorrt-cu12", "tensorrt-cu13"), ("tensorrt-cu11-libs", "tensorrt-cu12-libs", "tensorrt-cu13-libs", "tensorrt-libs"),
    ("tensorrt-cu11-bindings", "tensorrt-cu12-bindings", "tensorrt-cu13-bindings", "tensorrt-bindings"),
    ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"), ("nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)  # fmt: skip


def judge_copies(view: EnvironmentView) -> Iterator[Cause]:
    """Yield duplicates, packages that overwrite each other, stubs and editable leftovers."""
    yield from _judge_duplicates(view)
    yield from _judge_overlaps(view)
    for distribution in view.in_force.values():
        yield from _judge_stub(view, distribution)
        yield from _judge_editable(view, distribution)
    yield from _judge_links(view)
    yield from _judge_leftovers(view)


def _judge_duplicates(view: EnvironmentView) -> Iterator[Cause]:
    """Yield distributions with two sets of metadata in one folder."""
    for folder in view.folders:
        copies: dict[str, list[InstalledDistribution]] = defaultdict(list)
        for distribution in folder.distributions:
            copies[distribution.key].append(distribution)
        for key, group in copies.items():
            if len({copy.info for copy in group}) > 1:
                yield _duplicate_cause(view, key, group)


def _duplicate_cause(view: EnvironmentView, key: str, group: list[InstalledDistribution]) -> Cause:
    versions = join_words(dict.fromkeys(copy.version or copy.version_in_name for copy in group))
    evidence = tuple(make_evidence(copy.info_path, f"{copy.title} ({_completeness(copy)})") for copy in group)
    stale = _stale_copy(view, group)
    values = {
        "package": group[0].name, "versions": versions, "folder": group[0].folder, "stale": stale.info_path,
        "version": next((copy.version for copy in group if copy is not stale), ""), "pip": view.pip,
    }  # fmt: skip
    same = len({copy.version for copy in group}) == 1
    severity = Severity.WARNING if same or key not in view.relevant else Severity.ERROR
    about = frozenset({key, *(module for copy in group for module in copy.top_modules)})
    return Cause("DX1107", Violation(evidence, values, severity), MendingOrder.COPIES, about)


def _completeness(copy: InstalledDistribution) -> str:
    if not copy.has_record:
        return "no list of files"
    faults = copy.missing_count + len(copy.wrong_size)
    return f"{faults} of its {copy.files} files are missing or differ" if faults else "its files are all there"


def _stale_copy(view: EnvironmentView, group: list[InstalledDistribution]) -> InstalledDistribution:
    """Return the copy whose files are not the ones that are there."""
    stated = next(
        (
            trial.versions[name][0]
            for trial in view.record.trials
            for name in group[0].top_modules
            if name in trial.versions
        ),
        "",
    )
    others = [copy for copy in group if stated and copy.version != stated]
    if others and len(others) < len(group):
        return others[0]
    return max(group, key=lambda copy: (not copy.has_record, copy.missing_count + len(copy.wrong_size)))


def _judge_overlaps(view: EnvironmentView) -> Iterator[Cause]:
    """Yield distributions of different names that write the same module."""
    groups = [[view.in_force[name] for name in names if name in view.in_force] for names in SAME_MODULE]
    known = {copy.key for group in groups if len(group) > 1 for copy in group}
    for group in (*groups, *_overwritten_groups(view, known)):
        shared = set.intersection(*(set(copy.top_modules) for copy in group)) if len(group) > 1 else set()
        shared -= {"nvidia"}
        places = set.intersection(*(set(copy.places) for copy in group)) if len(group) > 1 else set()
        if not shared and not {place for place in places if "/" in place and not place.endswith("__init__.py")}:
            continue
        module = next(iter(sorted(shared)), next(iter(sorted(places)), ""))
        evidence = tuple(
            make_evidence(copy.info_path, f"{copy.title} writes {module} ({_completeness(copy)})") for copy in group
        )
        damaged = any(copy.missing or copy.wrong_size for copy in group) or len({copy.version for copy in group}) > 1
        severity = Severity.ERROR if damaged or (not view.works(group[0]) and view.failing) else Severity.WARNING
        values = {
            "packages": join_words(copy.title for copy in group), "module": module, "pip": view.pip,
            "uninstall": " ".join(copy.name for copy in group), "keep": _kept_copy(view, group), "remove": view.uninstall,
        }  # fmt: skip
        about = frozenset({*shared, *(copy.key for copy in group)})
        yield Cause("DX1108", Violation(evidence, values, severity), MendingOrder.COPIES, about)


def _overwritten_groups(view: EnvironmentView, known: set[str]) -> Iterator[list[InstalledDistribution]]:
    """Yield a distribution whose files have other sizes than it installed, with the one that writes them too."""
    for copy in view.in_force.values():
        changed = {place_of_file(name) for name, _, _ in copy.wrong_size if name.endswith((".py", ".so"))}
        if not changed or copy.key in known or copy.key not in view.relevant:
            continue
        for other in view.in_force.values():
            touched = {place_of_file(name) for name, _, _ in other.wrong_size}
            if other is not copy and other.folder == copy.folder and changed & set(other.places) - touched:
                yield [copy, other]
                break


def _kept_copy(view: EnvironmentView, group: list[InstalledDistribution]) -> str:
    """Return the one that something installed requires, else the last."""
    required = {
        canonical_name(requirement.name) for copy in view.in_force.values() for requirement in view.requirements(copy)
    }
    kept = next((copy for copy in group if copy.key in required), group[-1])
    return f"{kept.name}=={kept.version}"


def _judge_stub(view: EnvironmentView, distribution: InstalledDistribution) -> Iterator[Cause]:
    words = f"{distribution.summary} {distribution.description}"
    claims = PLACEHOLDER.search(words)
    module = MODULE_OF.get(distribution.key)
    origin = view.origins.get(module or "")
    hollow = module is not None and origin is not None and not origin.origin and distribution.has_record
    lists_none = module is not None and module not in distribution.modules and distribution.has_record
    tiny = distribution.files <= 12 and not distribution.compiled and distribution.has_record
    early = distribution.version.startswith("0.0.") and distribution.key in (*MODULE_OF, "tensorrt", "nvidia-tensorrt")
    if not ((claims and tiny) or (early and tiny) or (hollow and lists_none and not distribution.direct_url)):
        return
    reason = f'it says of itself: "{claims[0]}"' if claims else "it brings no module" if hollow else "it holds no code"
    evidence = (make_evidence(distribution.info_path, f"{distribution.title}: {distribution.summary or reason}"),)
    about = frozenset({distribution.key, *distribution.top_modules, *([module] if module else [])})
    meant = {
        conflict.key for conflict in list_conflicts(view)
        if conflict.installed is None and re.fullmatch(rf"{distribution.key}-cu\d\d", conflict.key)
    }  # fmt: skip
    about |= meant
    values = {
        "package": distribution.title, "stub": distribution.name, "name": next(iter(meant), distribution.name),
        "reason": reason, "pip": view.pip, "remove": view.uninstall,
    }  # fmt: skip
    relevant = distribution.key in view.relevant or distribution.key in MODULE_OF or meant
    severity = Severity.ERROR if relevant else Severity.WARNING
    yield Cause("DX012", Violation(evidence, values, severity), MendingOrder.COPIES, about)


def _judge_editable(view: EnvironmentView, distribution: InstalledDistribution) -> Iterator[Cause]:
    match = re.search(r'"url":\s*"file://([^"]*)"', distribution.direct_url)
    if match and distribution.is_source_gone and not view.record.root and not view.works(distribution):
        target = unquote(match[1])
        yield _editable_cause(view, distribution.name, distribution.info_path, target, distribution.top_modules)


def _editable_cause(view: EnvironmentView, name: str, where: str, target: str, modules: tuple[str, ...]) -> Cause:
    values = {"package": name, "where": where, "target": target, "pip": view.pip, "remove": view.uninstall}
    about = frozenset({name.lower().replace("_", "-"), name.replace("-", "_"), *modules})
    evidence = (make_evidence(where, f"points to {target}, which is not there"),)
    return Cause("DX1110", Violation(evidence, values), MendingOrder.COPIES, about)


def _judge_links(view: EnvironmentView) -> Iterator[Cause]:
    """Yield .egg-link and .pth files of editable installs whose folder is gone."""
    named = set()
    for folder in view.folders:
        for link, target in folder.links if not view.record.root else ():
            named.add(target)
            yield _editable_cause(view, link.removesuffix(".egg-link"), f"{folder.folder}/{link}", target, ())
        for pth in folder.pth:
            for target in pth.absent:
                name = os.path.basename(pth.path)
                editable = (
                    name.startswith(("easy-install", "__editable__", "_", "conda"))
                    or name.count("-")
                    or target.startswith("/")
                )
                package = re.sub(r"^__editable__[._]|[-_]\d.*|\.pth$", "", name)
                known = view.in_force.get(package.replace("_", "-").lower())
                if not editable or target in named or (known and view.works(known)):
                    continue
                if known and known.direct_url:  # judged by its direct_url.json
                    continue
                guess = os.path.basename(target.rstrip("/")) if name.startswith("easy-install") else package
                cause = _editable_cause(view, guess, pth.path, target, ())
                severity = (
                    Severity.ERROR if known or name.startswith(("easy-install", "__editable__")) else Severity.NOTE
                )
                yield cause._replace(violation=cause.violation._replace(severity=severity))


def _judge_leftovers(view: EnvironmentView) -> Iterator[Cause]:
    """Yield folders that an interrupted pip left behind."""
    for folder in view.folders:
        for name in folder.leftovers:
            guess = "?" + name[1:].split("-")[0]
            gone = {
                conflict.key: conflict.declared[0][1] for conflict in list_conflicts(view) if conflict.installed is None
            }
            fits = [key for key in (*view.in_force, *gone) if key.replace("-", "_")[1:] == guess[1:].lower()]
            works = bool(fits) and fits[0] in view.in_force and view.works(view.in_force[fits[0]])
            values = {
                "package": fits[0] if fits else name,
                "what": f"pip was interrupted and left {folder.folder}/{name} behind",
                "reinstall": f"{fits[0]}{gone.get(fits[0], '')}" if fits else "PACKAGE", "pip": view.pip,
            }  # fmt: skip
            evidence = (
                make_evidence(f"{folder.folder}/{name}", "a folder that pip moved aside while it replaced a package"),
            )
            severity = Severity.NOTE if works or not (view.failing or fits) else Severity.WARNING
            severity = Severity.ERROR if fits and fits[0] in gone and fits[0] in view.relevant else severity
            yield Cause(
                "DX061",
                Violation(evidence, values, severity),
                MendingOrder.DAMAGE,
                frozenset(fits),
                "pip was interrupted",
            )
