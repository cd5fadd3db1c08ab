"""Imports that failed, crashed or hung, and the package that is really at fault."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

from trtdx.check.judges.families import is_driver_library
from trtdx.check.judges.libraries import absent_version_cause, missing_library_cause, undefined_symbol_cause
from trtdx.check.judges.mpi_flavours import wrong_build_cause
from trtdx.check.nouns import Cause, ElfFacts, ErrorLink, ImportTrial, MendingOrder, NeededLibrary
from trtdx.check.view import make_evidence
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.view import EnvironmentView
    from trtdx.model import Evidence

_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\w.]*|[\w.+/-]+\.so[\w.]*): cannot open shared object file")
_SYMBOL = re.compile(r"(?:(\S+?): )?(?:undefined symbol|symbol lookup error): ?(?:\S+: undefined symbol: )?([\w.$@]+)")
_VERSION = re.compile(r"(\S+?): version [`']([\w.]+)' not found \(required by ([^)]+)\)")
_BAD_FILE = re.compile(
    r"(\S+?): (invalid ELF header|file too short|wrong ELF class\S*(?: \S+)?|ELF file\S*.*|only ET_DYN.*|cannot read file data.*|ELF load command.*)"
)
_NAME = re.compile(r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'(?: \(([^)]+)\))?")
_ATTRIBUTE = re.compile(r"(?:partially initialized )?module '([^']+)' has no attribute '([^']+)'")
_NUMPY = re.compile(
    r"compiled using NumPy|numpy\.dtype size changed|_ARRAY_API not found|numpy\.core\.multiarray failed|binary incompatibility",
    re.IGNORECASE,
)
_PACKAGE_PATH = re.compile(r"(?:site|dist)-packages/([^/]+)")


def judge_imports(view: EnvironmentView) -> Iterator[Cause]:
    """Yield one cause for each import that does not work."""
    for trial in view.record.trials:
        if trial.outcome in ("error", "crash", "hang", "unknown"):
            yield _judge_trial(view, trial)
        elif trial.outcome == "slow":
            yield _slow_cause(trial)


def _judge_trial(view: EnvironmentView, trial: ImportTrial) -> Cause:
    if trial.works_without:
        cause = _judge_obstacle(view, trial, trial.works_without[0])
        if cause:
            return cause
    if trial.outcome == "crash":
        return _crash_cause(view, trial)
    if trial.outcome == "hang":
        return _hang_cause(view, trial)
    return _judge_error(view, trial)


def _judge_obstacle(view: EnvironmentView, trial: ImportTrial, obstacle: str) -> Cause | None:
    """Return the cause of an import that works once a variable, or the current folder, is out of the way."""
    value = view.record.python.variables.get(obstacle, view.record.python.cwd)
    words = trial.chain[-1].text if trial.chain else f"import {trial.module}: {trial.outcome}"
    file = _file_below(trial, value.split(":")) or value
    evidence = (
        make_evidence(obstacle, value),
        make_evidence(f"import {trial.module}", f"{words} (works without {obstacle})"),
    )
    hides = f"the module that import {trial.module} needs"
    values = {
        "file": file, "folder": value, "reason": f"import {trial.module} fails with it and works without it",
        "effect": f"import {trial.module} fails with it and works without it: {words[:160]}", "home": value,
        "remedy": f"unset {obstacle}", "python": view.record.python_path, "module": os.path.basename(file).split(".")[0], "hides": hides,
    }  # fmt: skip
    code = {"LD_PRELOAD": "DX1103", "LD_LIBRARY_PATH": "DX1104", "PYTHONPATH": "DX1105", "PYTHONHOME": "DX1102"}.get(
        obstacle, "DX064"
    )
    about = frozenset({file, os.path.basename(file)})
    return Cause(
        code, Violation(evidence, values), MendingOrder.VARIABLES, about, f"import {trial.module} fails: {words[:120]}"
    )


def _file_below(trial: ImportTrial, folders: list[str]) -> str:
    """Return the innermost file of the failing import that lies in one of some folders, or the library it speaks of."""
    text = trial.chain[-1].text if trial.chain else ""
    named = re.findall(r"(/\S+?\.so[\w.]*)", text)
    places = [place[0] for link in reversed(trial.chain) for place in reversed(link.places)]
    files = [*named, *places, *(file for file, _ in trial.stack), *(file for _, file in reversed(trial.loading))]
    return next(
        (file for file in files if any(folder and file.startswith(f"{folder.rstrip('/')}/") for folder in folders)), ""
    )


def _culprit(view: EnvironmentView, files: list[str], fallback: str) -> tuple[str, str]:
    """Return the innermost file that is a package's, and that package's title."""
    for file in files:
        if file and not view.is_standard(file) and (view.owner_of_path(file) or "-packages/" in file):
            owner = view.owner_of_path(file)
            match = _PACKAGE_PATH.search(file)
            return file, owner.title if owner else match[1].split(".")[0] if match else fallback
    alien = next((file for file in files if file and not view.is_standard(file)), "")
    owner = view.owner_of_module(fallback)
    return alien, owner.title if owner else fallback


def _reinstall_values(view: EnvironmentView, file: str) -> dict[str, str]:
    """Return what a command needs that installs the owner of a file anew; without an owner there is none."""
    owner = view.owner_of_path(file) if file else None
    wish = {"wish": f"{owner.name}=={owner.version}"} if owner else {}
    return {"pip": view.pip, "python": view.record.python_path, **wish}


def _about(view: EnvironmentView, file: str, *names: str) -> frozenset[str]:
    owner = view.owner_of_path(file) if file else None
    return frozenset(
        {file, os.path.basename(file), *names, *([owner.key, *owner.top_modules[:3]] if owner else [])} - {""}
    )


def _library_at_work(trial: ImportTrial) -> list[str]:
    """Return the library that ctypes was loading when the process stopped."""
    return [trial.library] if trial.stack and "/ctypes/" in trial.stack[0][0] and "/" in trial.library else []


def _crash_cause(view: EnvironmentView, trial: ImportTrial) -> Cause:
    inner = [file for _, file in reversed(trial.loading)]
    files = [*inner[:1], *(file for file, _ in trial.stack), *inner[1:]]
    if inner and not inner[0].endswith(".so") and trial.stack:
        files = [*(file for file, _ in trial.stack), *inner]
    file, title = _culprit(view, [*map(os.path.normpath, _library_at_work(trial)), *files], trial.module)
    number = -trial.status if trial.status < 0 else trial.status - 128
    name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"exit status {trial.status}"
    module = next((name for name, path in reversed(trial.loading) if path == file), os.path.basename(file))
    library = f" while loading {trial.library}" if trial.library and trial.library.endswith((".so",)) else ""
    values = {
        "package": title,
        "file": file,
        "signal": name,
        "module": trial.module,
        "inner": module,
        "library": library,
        **_reinstall_values(view, file),
    }
    evidence = (make_evidence(f"import {trial.module}", f"{name}; innermost: {module} ({file}){library}"),)
    code = "DX072" if name == "SIGILL" else "DX1113"
    about = _about(view, file, module.split(".")[0], os.path.basename(trial.library))
    return Cause(
        code, Violation(evidence, values), MendingOrder.IMPORTS, about, f"import {trial.module} ends with {name}"
    )


def _hang_cause(view: EnvironmentView, trial: ImportTrial) -> Cause:
    inner = [file for _, file in reversed(trial.loading)]
    files = (
        [*inner[:1], *(file for file, _ in trial.stack)]
        if inner and ".so" in inner[0]
        else [*(file for file, _ in trial.stack), *inner]
    )
    file, title = _culprit(view, [*map(os.path.normpath, _library_at_work(trial)), *files], trial.module)
    line = next((line for path, line in trial.stack if path == file), 0)
    module = next((name for name, path in reversed(trial.loading) if path == file), trial.module)
    deepest = f"{trial.stack[0][0]}:{trial.stack[0][1]}" if trial.stack else file
    values = {
        "package": title, "file": f"{file}:{line}" if line else file, "seconds": f"{trial.seconds:g}", "module": trial.module,
        "inner": module, **_reinstall_values(view, file),
    }  # fmt: skip
    evidence = (
        make_evidence(
            f"import {trial.module}",
            f"did not end in {trial.seconds:g} s; it stands at {deepest}, called from {file}:{line}",
        ),
    )
    about = _about(view, file, module.split(".")[0])
    return Cause("DX1114", Violation(evidence, values), MendingOrder.IMPORTS, about, f"import {trial.module} hangs")


def _slow_cause(trial: ImportTrial) -> Cause:
    values = {"module": trial.module, "seconds": f"{trial.seconds:g}"}
    evidence = (make_evidence(f"import {trial.module}", f"was still loading modules after {trial.seconds:g} s"),)
    return Cause("DX1126", Violation(evidence, values, Severity.NOTE), MendingOrder.IMPORTS)


def _judge_error(view: EnvironmentView, trial: ImportTrial) -> Cause:
    link = (
        trial.chain[-1]
        if trial.chain
        else ErrorLink(kind="SystemExit", text=f"the process ended with status {trial.status}")
    )
    files = [place[0] for place in reversed(link.places)]
    for judge in (
        _judge_library,
        _judge_symbol,
        _judge_absent_version,
        _judge_bad_file,
        _judge_module,
        _judge_name,
        _judge_source,
    ):
        cause = judge(view, trial, link, files)
        if cause is not None:
            return cause
    return _other_error(view, trial, link, files)


def _loaded_file(view: EnvironmentView, link: ErrorLink, trial: ImportTrial, files: list[str]) -> str:
    """Return the compiled file whose loading failed."""
    failed = [path for _, path, failure in trial.failures if failure.text == link.text and ".so" in path]
    return next(
        iter([link.file] * bool(link.file) + failed + ([trial.library] if "/" in trial.library else []) + files), ""
    )


def _judge_library(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause | None:
    match = _LIBRARY.search(link.text)
    if not match:
        return None
    name = os.path.basename(match[1])
    file = _loaded_file(view, link, trial, files)
    needing = [
        thing for thing in view.record.libraries if any(need.name == name and not need.path for need in thing.needs)
    ]
    nearest = next((thing for thing in needing if thing.path == file), None) or next(
        iter(_reached(view, file, needing)), None
    )
    place = nearest.path if nearest else file
    if is_driver_library(name):
        return driver_library_cause(view, name, place, trial)
    wrong_build = wrong_build_cause(view, name, nearest) if nearest and name.startswith("libmpi") else None
    cause = wrong_build or missing_library_cause(view, name, place, nearest)
    return cause._replace(symptom=f"import {trial.module} fails: {name} is not found")


def _reached(view: EnvironmentView, file: str, needing: list[ElfFacts]) -> list[ElfFacts]:
    """Return those of some libraries that a file loads, directly or through others; else all of them."""
    by_path = {thing.path: thing for thing in view.record.libraries}
    queue, reached = [file], {file}
    while queue:
        thing = by_path.get(queue.pop())
        for need in thing.needs if thing else ():
            if need.path and need.path not in reached:
                reached.add(need.path)
                queue.append(need.path)
    return [thing for thing in needing if thing.path in reached] or needing


def driver_library_cause(view: EnvironmentView, name: str, file: str, trial: ImportTrial) -> Cause:
    """Return the note, or on a machine that should have a GPU the error, that the driver's library is not there."""
    grave = view.has_gpu or view.record.expects_gpu
    owner = view.title_of_path(file) or trial.module
    values = {
        "library": name,
        "owner": owner,
        "reason": f"{name} of the NVIDIA driver is not here, which {owner} needs",
    }
    evidence = (make_evidence(f"import {trial.module}", f"{name}: cannot open shared object file"),)
    severity = Severity.ERROR if grave else Severity.NOTE
    return Cause("DX035", Violation(evidence, values, severity), MendingOrder.MACHINE, frozenset({name}))


def _judge_symbol(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause | None:
    match = _SYMBOL.search(link.text)
    if not match:
        return None
    file = match[1] if match[1] and "/" in match[1] else _loaded_file(view, link, trial, files)
    cause = undefined_symbol_cause(view, match[2], file)
    return cause._replace(symptom=f"import {trial.module} fails: undefined symbol {match[2]}")


def _judge_absent_version(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause | None:
    match = _VERSION.search(link.text)
    if not match:
        return None
    thing = next((thing for thing in view.record.libraries if thing.path == match[3]), None)
    need = next((need for need in thing.needs if os.path.basename(match[1]) == need.name), None) if thing else None
    need = need or NeededLibrary(name=os.path.basename(match[1]), path=match[1])
    return absent_version_cause(view, match[2], match[3], need)


def _judge_bad_file(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause | None:
    match = _BAD_FILE.search(link.text)
    closed = re.search(r"(/\S+): (?:cannot open shared object file: )?.*Permission denied", link.text)
    if not match and not (closed or link.kind == "PermissionError"):
        return None
    file = match[1] if match else closed[1] if closed else re.findall(r"'([^']+)'", link.text + "''")[0]
    owner = view.owner_of_path(file)
    values = {
        "file": file, "owner": owner.title if owner else trial.module, "damage": f"cannot be loaded: {match[2] if match else ''}",
        "pip": view.pip, "package": f"{owner.name}=={owner.version}" if owner else "PACKAGE", "reason": match[2] if match else "",
    }  # fmt: skip
    code = "DX049" if not match else "DX1111" if "ELF class" in match[2] else "DX1112"
    evidence = (make_evidence(f"import {trial.module}", link.text),)
    return Cause(
        code,
        Violation(evidence, values),
        MendingOrder.DAMAGE,
        _about(view, file),
        f"import {trial.module} fails: {link.text[:120]}",
    )


def _judge_module(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause | None:
    """Return the cause of a module that is not there: its package is missing, incomplete, or for another Python."""
    match = re.search(r"No module named '?([\w.]+)'?", link.text)
    if link.kind not in ("ModuleNotFoundError", "ImportError") or not match:
        return None
    module = match[1]
    top = module.split(".")[0]
    file, title = _culprit(view, files, trial.module)
    installed = view.owner_of_module(top) if "." in module or view.origins.get(top) else None
    key = view.distribution_name(top)
    evidence = (make_evidence(file or f"import {trial.module}", f"{link.kind}: {link.text}"),)
    about = frozenset({module, top, key, *([installed.key] if installed else [])})
    symptom = f"import {trial.module} fails: no module named {module}"
    if module.startswith("tensorrt_llm.bindings"):
        values = {"package": installed.title if installed else "tensorrt_llm", "file": file, "pip": view.pip}
        return Cause("DX015", Violation(evidence, values), MendingOrder.DAMAGE, about, symptom)
    if installed is not None and module != top:
        values = {
            "package": installed.title, "what": f"its module {module} is not there, which {title} imports",
            "reinstall": f"{installed.name}=={installed.version}", "pip": view.pip,
        }  # fmt: skip
        return Cause("DX061", Violation(evidence, values), MendingOrder.DAMAGE, about, symptom)
    values = {"package": key, "requirer": title, "wish": key, "pip": view.pip}
    return Cause("DX042", Violation(evidence, values), MendingOrder.REQUIREMENTS, about, symptom)


def _judge_name(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause | None:
    """Return the cause of a package that lacks a name which another one uses."""
    match, attribute = _NAME.search(link.text), _ATTRIBUTE.search(link.text)
    if not match and not attribute:
        return None
    name, module = (match[1], match[2]) if match else (attribute[2], attribute[1]) if attribute else ("", "")
    origin = match[3] if match and match[3] else ""
    file, title = _culprit(view, files, trial.module)
    peer = view.owner_of_path(origin) if "/" in origin else None
    peer = peer or view.owner_of_module(module)
    user = view.owner_of_path(file)
    evidence = (make_evidence(file or f"import {trial.module}", f"{link.kind}: {link.text}"),)
    values = {
        "user": title,
        "name": f"{module}.{name}",
        "peer": peer.title if peer else module,
        "other": peer.name if peer else module,
        "file": file,
        **_reinstall_values(view, file),
    }
    about = frozenset(
        {module.split(".")[0], *([peer.key] if peer else []), *([user.key] if user and peer is user else [])}
    )
    return Cause(
        "DX712",
        Violation(evidence, values),
        MendingOrder.REQUIREMENTS,
        about,
        f"import {trial.module} fails: {link.text[:120]}",
    )


def _judge_source(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause | None:
    """Return the cause of a Python file that is no Python, or of an extension made for another NumPy."""
    if _NUMPY.search(link.text + trial.output) and "numpy" in view.in_force:
        return _numpy_cause(view, trial, link, files)
    damaged = (
        link.kind in ("SyntaxError", "IndentationError", "TabError", "UnicodeDecodeError") or "null bytes" in link.text
    )
    unnamed = [path for _, path, failure in trial.failures if failure.text == link.text and "null bytes" in link.text]
    if not damaged or not (unnamed or files):
        return None
    file = (unnamed or files)[0]
    owner = view.owner_of_path(file)
    values = {
        "file": file, "owner": owner.title if owner else trial.module, "damage": f"is no valid Python: {link.text[:120]}",
        "pip": view.pip, "package": f"{owner.name}=={owner.version}" if owner else "PACKAGE",
    }  # fmt: skip
    evidence = (make_evidence(file, f"{link.kind}: {link.text}"),)
    return Cause(
        "DX1112", Violation(evidence, values), MendingOrder.DAMAGE, _about(view, file), f"import {trial.module} fails"
    )


def _numpy_cause(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause:
    numpy = view.in_force["numpy"]
    file, title = _culprit(view, [file for file in files if "/numpy/" not in file], trial.module)
    evidence = (
        make_evidence(file or f"import {trial.module}", link.text),
        make_evidence(numpy.info_path, f"{numpy.title} is installed"),
    )
    values = {
        "package": "numpy", "version": numpy.version, "requirer": title, "wish": "numpy<2" if numpy.version.startswith("2") else "numpy>=2",
        "specifier": "of the major version it was compiled with", "others": "", "pip": view.pip,
    }  # fmt: skip
    return Cause(
        "DX040",
        Violation(evidence, values),
        MendingOrder.REQUIREMENTS,
        frozenset({"numpy"}),
        f"import {trial.module} fails",
    )


def _other_error(view: EnvironmentView, trial: ImportTrial, link: ErrorLink, files: list[str]) -> Cause:
    file, title = _culprit(view, files, trial.module)
    words = f"{link.kind}: {link.text}" if link.text else link.kind
    values = {"package": title, "file": file or "no file", "error": words[:300], "module": trial.module}
    values |= _reinstall_values(view, file)
    evidence: tuple[Evidence, ...] = (make_evidence(file or f"import {trial.module}", words),)
    if trial.output.strip():
        evidence = (*evidence, make_evidence("standard error", trial.output.strip().splitlines()[-1]))
    tops = {name.split(".")[0] for name, _, failure in trial.failures if failure.text == link.text}
    return Cause(
        "DX1115",
        Violation(evidence, values),
        MendingOrder.IMPORTS,
        _about(view, file, *tops),
        f"import {trial.module} fails: {words[:120]}",
    )
