"""Files that stand in front of the package that is meant: in the current folder, on PYTHONPATH, in the user's site."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from trtdx.check.nouns import Cause, MendingOrder
from trtdx.check.view import make_evidence
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.nouns import FolderFacts, ImportTrial, InstalledDistribution
    from trtdx.check.view import EnvironmentView

CWD, USER_SITE = "the current folder", "the user's own site folder"
LOADED_FIRST = ("sys", "builtins", "os", "site", "io", "abc", "codecs", "encodings", "stat", "posixpath", "genericpath")


def judge_shadows(view: EnvironmentView) -> Iterator[Cause]:
    """Yield what hides an installed package or a module of the standard library."""
    if view.record.root:
        return
    for folder in view.folders:
        place = _place_of(view, folder)
        if place:
            yield from _judge_folder(view, folder, place)


def _place_of(view: EnvironmentView, folder: FolderFacts) -> str:
    """Return how a folder came onto the path, where it is none of the interpreter's own."""
    added = view.record.python.variables.get("PYTHONPATH", "").split(":")
    if folder.folder in added or os.path.abspath(folder.folder) in map(os.path.abspath, filter(None, added)):
        return "PYTHONPATH"
    if folder.folder == view.record.python.cwd:
        return CWD
    if re.search(r"/\.local/lib/python3\.\d+/site-packages$", folder.folder):
        return USER_SITE
    return next((pth.path for later in view.folders for pth in later.pth if folder.folder in pth.added), "")


def _remedy(view: EnvironmentView, place: str, folder: str) -> str:
    """Return the command that takes a folder out of the path."""
    if place.endswith(".pth"):
        return f"sed -i '\\#^{folder}$#d' {place}"
    return "export PYTHONNOUSERSITE=1" if place == USER_SITE else view.without("PYTHONPATH", folder)


def _judge_folder(view: EnvironmentView, folder: FolderFacts, place: str) -> Iterator[Cause]:
    other = list(_judge_other_python(view, folder, place))
    if other:
        yield from other
        return
    own = {distribution.key for distribution in folder.distributions}
    for name, kind in folder.importable:
        module = name.split(".")[0]
        if kind == "folder" or module.startswith("_"):
            continue
        path = f"{folder.folder}/{name}"
        hidden = _hidden_distribution(view, module, folder)
        if (
            module in sys.stdlib_module_names
            and module not in LOADED_FIRST
            and place != USER_SITE
            and not place.endswith(".pth")
        ):
            yield from _standard_cause(view, module, path, place)
        elif hidden is not None and hidden.key not in own:
            yield from _package_cause(view, hidden, module, path, place)
        elif hidden is not None:
            yield from _copy_cause(view, folder, hidden, path, place)


def _hidden_distribution(view: EnvironmentView, module: str, folder: FolderFacts) -> InstalledDistribution | None:
    """Return the distribution, in another folder of the path, whose module this one stands in front of."""
    position = view.folders.index(folder)
    for later in view.folders[position + 1 :]:
        for distribution in later.distributions:
            if module in distribution.top_modules and _is_direct(distribution, module):
                return distribution
    return None


def _is_direct(distribution: InstalledDistribution, module: str) -> bool:
    """Whether a distribution's own package has this name; many list folders such as `tests` beside it."""
    return module not in ("tests", "test", "examples", "docs", "benchmarks", "scripts", "utils", "tools")


def _standard_cause(view: EnvironmentView, module: str, path: str, place: str) -> Iterator[Cause]:
    """Yield a file that hides a standard module, where an import fails with it and works without it."""
    guilty = [
        trial
        for trial in view.failing
        if place in trial.works_without or any(path_of.startswith(path) for path_of in _files_of(trial))
    ]
    if not guilty:
        return
    trial = guilty[0]
    words = trial.chain[-1].text if trial.chain else f"import {trial.module} does not end well"
    values = {"file": path, "module": module, "hides": f"the standard library's {module}"}
    evidence = (make_evidence(path, f"first on the path ({place})"), make_evidence(f"import {trial.module}", words))
    code = "DX064" if place == CWD else "DX1105"
    folder = os.path.dirname(path)
    more = {
        "folder": folder,
        "effect": f"it hides the standard library's {module}",
        "remedy": _remedy(view, place, folder),
    }
    yield Cause(
        code, Violation(evidence, {**values, **more}), MendingOrder.VARIABLES, frozenset({path, module, "*"}),
    )  # fmt: skip


def _files_of(trial: ImportTrial) -> list[str]:
    chain = [place[0] for link in trial.chain for place in link.places]
    return [*chain, *(file for file, _ in trial.stack), *(file for _, file in trial.loading)]


def _package_cause(
    view: EnvironmentView, hidden: InstalledDistribution, module: str, path: str, place: str
) -> Iterator[Cause]:
    """Yield a file that hides an installed package which a deployment needs."""
    if hidden.key not in view.relevant or not _is_in_force(view, module, path):
        return
    if os.path.realpath(path) in _editable_targets(hidden, module):
        return
    evidence = (
        make_evidence(path, f"is what `import {module}` takes ({place} comes first)"),
        make_evidence(f"{hidden.folder}/{module}", f"{hidden.title} is hidden"),
    )
    values = {"file": path, "module": module, "hides": f"the installed {hidden.title}"}
    folder = os.path.dirname(path)
    more = {
        "folder": folder,
        "effect": f"it hides the installed {hidden.title}",
        "remedy": _remedy(view, place, folder),
    }
    code = "DX064" if place == CWD else "DX1105"
    about = frozenset({path, module, hidden.key})
    yield Cause(code, Violation(evidence, {**values, **more}), MendingOrder.VARIABLES, about)


def _is_in_force(view: EnvironmentView, module: str, path: str) -> bool:
    origin = view.origins.get(module)
    return origin is None or origin.origin.startswith(path) or path in origin.places


def _editable_targets(hidden: InstalledDistribution, module: str) -> set[str]:
    match = re.search(r'"url":\s*"file://([^"]+)"', hidden.direct_url)
    return {os.path.realpath(f"{match[1]}/{inner}{module}") for inner in ("", "src/")} if match else set()


def _copy_cause(
    view: EnvironmentView, folder: FolderFacts, hidden: InstalledDistribution, path: str, place: str
) -> Iterator[Cause]:
    """Yield another copy of a distribution, in another version, in front of the environment's own."""
    first = next(copy for copy in folder.distributions if copy.key == hidden.key)
    if first.version == hidden.version or hidden.key not in view.relevant:
        return
    evidence = (
        make_evidence(first.info_path, f"{first.title}, taken first ({place})"),
        make_evidence(hidden.info_path, f"{hidden.title}, hidden by it"),
    )
    values = {
        "file": path,
        "folder": folder.folder,
        "effect": f"its {first.title} hides {hidden.title} of the environment",
        "remedy": _remedy(view, place, folder.folder),
    }
    severity = Severity.ERROR if view.failing or _is_required_otherwise(view, first) else Severity.WARNING
    about = frozenset({path, hidden.key, *first.top_modules[:5]})
    yield Cause("DX1105", Violation(evidence, values, severity), MendingOrder.VARIABLES, about)


def _is_required_otherwise(view: EnvironmentView, copy: InstalledDistribution) -> bool:
    from trtdx.check.judges.requirements import list_conflicts

    return any(conflict.key == copy.key for conflict in list_conflicts(view))


def _judge_other_python(view: EnvironmentView, folder: FolderFacts, place: str) -> Iterator[Cause]:
    """Yield a folder of packages that were made for another Python version."""
    match = re.search(r"/python(3\.\d+)/(?:site|dist)-packages/?$", folder.folder)
    made_for = match[1] if match else ""
    if not made_for or made_for == view.python.minor or not (folder.distributions or folder.importable):
        return
    evidence = (
        make_evidence(place, folder.folder),
        make_evidence(view.record.python_path, f"Python {view.python.version}"),
    )
    modules = [name for name, kind in folder.importable if kind == "package"]
    effect = f"its packages ({abbreviate_list(modules, 4)}) are for Python {made_for}, and this is Python {view.python.minor}"
    remedy = _remedy(view, place, folder.folder)
    values = {"file": folder.folder, "folder": folder.folder, "effect": effect, "remedy": remedy}
    names = {name.split(".")[0] for name, _ in folder.importable} | {copy.key for copy in folder.distributions}
    severity = Severity.ERROR if view.failing else Severity.WARNING
    yield Cause("DX1105", Violation(evidence, values, severity), MendingOrder.VARIABLES, frozenset(names))
