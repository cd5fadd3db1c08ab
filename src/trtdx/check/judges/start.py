"""An interpreter that does not start, or starts with errors; variables that send it astray."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.check.nouns import Cause, MendingOrder
from trtdx.check.view import make_evidence
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.nouns import ElfFacts
    from trtdx.check.view import EnvironmentView

_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: (\S+): (.+)")
_TRACE_FILE = re.compile(r'^\s*File "([^"<]+)", line (\d+)', re.MULTILINE)
_PTH_ERROR = re.compile(r"Error processing line \d+ of (\S+\.pth):(.*?)(?=\nRemainder of file ignored|\Z)", re.DOTALL)
_CUSTOMIZE_ERROR = re.compile(r"Error in (sitecustomize|usercustomize); set PYTHONVERBOSE.*?\n(.*)")
_PRELOAD_ERROR = re.compile(r"ERROR: ld\.so: object '([^']+)' from LD_PRELOAD cannot be preloaded \(([^)]+)\)")
STARTUP_FILES = ("sitecustomize.py", "usercustomize.py")


def judge_start(view: EnvironmentView) -> Iterator[Cause]:
    """Yield why the interpreter does not start, or what goes wrong while it does."""
    record = view.record
    if record.root:
        yield from [_dead_interpreter(view)] if record.start_problem else []
        return
    yield from judge_preload(view)
    if record.start_problem:
        yield from _judge_failed_start(view)
        return
    yield from _judge_home(view)
    yield from _judge_startup_errors(view)
    yield from _judge_moved_environment(view)


def judge_preload(view: EnvironmentView) -> Iterator[Cause]:
    """Yield libraries of LD_PRELOAD that cannot be loaded."""
    refused = dict(_PRELOAD_ERROR.findall(view.record.start_output))
    machine = view.python.machine
    for thing in view.record.preloads:
        reason = (
            refused.get(thing.path) or refused.get(os.path.basename(thing.path)) or _preload_problem(thing, machine)
        )
        if reason:
            yield _variable_cause(
                view, "DX1103", thing.path, reason, Severity.ERROR if view.failing else Severity.WARNING
            )


def _preload_problem(thing: ElfFacts, machine: str) -> str:
    if thing.problem:
        return {"absent": "there is no such file", "dangling": "a link to nothing"}.get(thing.problem, thing.problem)
    return f"it is for {thing.machine}" if machine and thing.machine and thing.machine != machine else ""


def _variable_cause(view: EnvironmentView, code: str, path: str, reason: str, severity: Severity) -> Cause:
    value = view.record.python.variables.get("LD_PRELOAD", "")
    evidence = (make_evidence("LD_PRELOAD", f"{value} ({reason})"),)
    return Cause(
        code, Violation(evidence, {"file": path, "reason": reason}, severity), MendingOrder.VARIABLES, frozenset({path})
    )


def _judge_failed_start(view: EnvironmentView) -> Iterator[Cause]:
    record, text = view.record, view.record.start_output
    helpers = [
        name for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH") if record.restarts.get(name) == 0
    ]
    library = _MISSING_LIBRARY.search(text)
    if helpers:
        yield _judge_variable(view, helpers[0])
    elif library:
        yield _missing_library(view, library[1], library[2])
    elif record.stated_version and not re.match(r"Python 3\.(?:[89]|\d\d)", record.stated_version):
        yield _old_python(view)
    elif record.restarts.get("-I -S") == 0:
        yield _startup_file(view)
    else:
        yield _dead_interpreter(view)


def _judge_variable(view: EnvironmentView, name: str) -> Cause:
    """Return the cause of an interpreter that starts only without a variable."""
    value = view.record.python.variables.get(name, "")
    trouble = _last_line(view.record.start_output) or view.record.start_problem
    evidence = (make_evidence(name, value), make_evidence(view.record.python_path, trouble))
    if name == "PYTHONHOME":
        values = {"home": value, "python": view.record.python_path, "effect": "it does not start"}
        return Cause("DX1102", Violation(evidence, values), MendingOrder.START)
    if name == "LD_PRELOAD":
        values = {"file": value, "reason": f"the interpreter {view.record.start_problem} with it"}
        return Cause("DX1103", Violation(evidence, values), MendingOrder.START)
    file = _culprit_file(view) or value
    if name == "PYTHONPATH":
        effect = f"the interpreter does not start ({trouble})"
        return Cause(
            "DX1105",
            Violation(evidence, {"file": file, "folder": value, "effect": effect, "remedy": "unset PYTHONPATH"}),
            MendingOrder.START,
        )
    effect = f"the interpreter does not start: {trouble}"
    values = {"file": file, "folder": value, "effect": effect, "remedy": "unset LD_LIBRARY_PATH"}
    return Cause("DX1104", Violation(evidence, values), MendingOrder.START)


def _old_python(view: EnvironmentView) -> Cause:
    version = view.record.stated_version
    values = {"subject": view.record.python_path, "reason": f"it is {version}; TensorRT-LLM needs Python 3.10 or 3.12"}
    return Cause(
        "DX014", Violation((make_evidence(f"{view.record.python_path} -V", version),), values), MendingOrder.START
    )


def _missing_library(view: EnvironmentView, library: str, reason: str) -> Cause:
    code = "DX025" if library.startswith("libpython") else "DX711"
    values = {"library": library, "file": view.record.python_path, "owner": "this environment", "found": reason}
    evidence = (make_evidence(view.record.python_path, _last_line(view.record.start_output)),)
    return Cause(code, Violation(evidence, values), MendingOrder.START)


def _culprit_file(view: EnvironmentView) -> str:
    """Return the innermost file of a traceback that is not of the standard library."""
    files = [path for path, _ in _TRACE_FILE.findall(view.record.start_output)]
    alien = [path for path in files if "-packages" in path or "/lib/python3" not in path]
    return alien[-1] if alien else ""


def _startup_file(view: EnvironmentView) -> Cause:
    """Return the cause of an interpreter that starts only without its site module."""
    file = _culprit_file(view) or next(iter(_startup_candidates(view)), "the site module")
    trouble = _last_line(view.record.start_output) or view.record.start_problem
    values = {
        "file": file,
        "error": _last_line(view.record.start_output) or f"the interpreter {view.record.start_problem}",
    }
    return Cause("DX1118", Violation((make_evidence(file, trouble),), values), MendingOrder.START, frozenset({file}))


def _startup_candidates(view: EnvironmentView) -> Iterator[str]:
    for folder in view.folders:
        for name, _ in folder.importable:
            if name in STARTUP_FILES:
                yield f"{folder.folder}/{name}"
        usual = ("distutils-precedence.pth", "protobuf")
        yield from (pth.path for pth in folder.pth if pth.code and not os.path.basename(pth.path).startswith(usual))


def _dead_interpreter(view: EnvironmentView) -> Cause:
    record = view.record
    reason = record.start_reason or record.start_problem
    trouble = _last_line(record.start_output)
    if "No module named 'encodings'" in record.start_output or "platform independent libraries" in record.start_output:
        reason = "its standard library is gone (no module named encodings)"
    subject = record.python_path or record.root
    place = Path(subject).parent
    fresh = f"{place.parent}-new" if place.name == "bin" else ".venv"  # never the old folder: nothing is to be lost
    values = {"python": subject, "reason": reason, "fresh": fresh}
    if record.root:
        values = {"python": f"the Python of {record.root}", "reason": reason, "root": record.root}
    evidence = (make_evidence(subject, trouble or reason),)
    return Cause("DX1101", Violation(evidence, values), MendingOrder.START)


def _judge_home(view: EnvironmentView) -> Iterator[Cause]:
    home = view.record.python.variables.get("PYTHONHOME", "")
    executable = os.path.realpath(view.record.python_path) if home else ""
    if not home or (executable.startswith(os.path.realpath(home.split(":")[0]) + "/") and view.python.is_virtual):
        return
    natural = str(Path(os.path.abspath(view.record.python_path)).parent.parent)
    if natural == home.rstrip("/"):
        return
    effect = f"its packages are taken from {view.python.prefix}, not from {natural}"
    evidence = (make_evidence("PYTHONHOME", home), make_evidence("sys.prefix", view.python.prefix))
    values = {"home": home, "python": view.record.python_path, "effect": effect}
    yield Cause("DX1102", Violation(evidence, values), MendingOrder.VARIABLES, frozenset({"*"}))


def _judge_startup_errors(view: EnvironmentView) -> Iterator[Cause]:
    text = view.record.start_output
    for path, trouble in _PTH_ERROR.findall(text):
        last = _last_line(trouble)
        values = {"file": path, "error": f"{last} (the rest of the file is passed over)"}
        yield Cause("DX1118", Violation((make_evidence(path, last),), values), MendingOrder.SHADOWS, frozenset({path}))
    for name, trouble in _CUSTOMIZE_ERROR.findall(text):
        candidates = [path for path in _startup_candidates(view) if path.endswith(f"{name}.py")]
        file = candidates[0] if candidates else f"{name}.py"
        values = {"file": file, "error": trouble.strip()}
        yield Cause(
            "DX1118", Violation((make_evidence(file, trouble),), values), MendingOrder.SHADOWS, frozenset({file})
        )


def _judge_moved_environment(view: EnvironmentView) -> Iterator[Cause]:
    """Yield an environment whose packages were installed for another Python than its interpreter is now."""
    own = [folder for folder in view.record.python.site_folders if f"/python{view.python.minor}/" in folder]
    others = [folder for folder in view.record.python.site_folders if folder not in own]
    if not view.python.is_virtual or not others:
        return
    has_own = any(folder.distributions for folder in view.folders if folder.folder in own)
    if has_own:
        return
    stale = others[0]
    made_for = re.search(r"/python(3\.\d+)/", stale)
    values = {
        "prefix": view.python.prefix,
        "made_for": made_for[1] if made_for else "another version",
        "version": view.python.version,
        "folder": stale,
    }
    evidence = (
        make_evidence(stale, "the packages"),
        make_evidence(view.record.python_path, f"Python {view.python.version}"),
    )
    yield Cause("DX1125", Violation(evidence, values), MendingOrder.PLATFORM, frozenset({"*"}))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""
