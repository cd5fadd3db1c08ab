"""Gathers the facts of one environment: by its own interpreter where that runs, from outside where it does not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.check.facts.dead_interpreter import why_dead
from trtdx.check.facts.elf_reader import forget_objects, read_shared_object
from trtdx.check.facts.library_facts import collect_libraries
from trtdx.check.facts.loader import LibraryLoader, RootedFiles
from trtdx.check.facts.machine import collect_machine, read_machine_of_root
from trtdx.check.facts.root_file_system import read_prefix, read_python_of_root
from trtdx.check.facts.trials import PROBE, STARTER, run_trial, run_trials
from trtdx.check.nouns import ElfFacts, EnvironmentRecord, PythonEnvironment
from trtdx.errors import InputError
from trtdx.redact import redact_secrets
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.check.nouns import ImportTrial
    from trtdx.host import CommandResult, Host

MARK = b"\n\x1etrtdx "
LEAST_START_S = 5.0
RESTART_TIMEOUT_S = 5.0
# The one that imports most of the others comes first.
TRIED = (
    "tensorrt_llm", "torch", "transformers", "tensorrt", "mpi4py.MPI", "numpy", "triton", "torchvision", "tokenizers",
    "safetensors", "cuda.bindings.driver", "flashinfer", "xgrammar", "modelopt", "onnx", "onnxruntime", "pynvml",
)  # fmt: skip
SLOWEST_IMPORTS = 4  # of which the time for all imports is made


class CheckQuestion(NamedTuple):
    """What is to be checked, and how."""

    python: str = ""
    container: str = ""
    import_timeout_s: float = 20.0
    tries_imports: bool = True
    expects_gpu: bool = False


def collect_environment(host: Host, question: CheckQuestion) -> EnvironmentRecord:
    """Return the facts of the environment that was asked about."""
    forget_objects()
    if question.container:
        return _collect_root(host, question)
    variables = host.environment()
    named = choose_interpreter(question.python, variables)
    environment, done = run_probe(host, named, max(LEAST_START_S, question.import_timeout_s))
    problem = "" if environment else _start_problem(done)
    prefix = environment.interpreter.prefix if environment else _prefix_from_outside(named)
    if environment is None:
        environment = _with_variables(read_prefix(RootedFiles(), prefix), variables) if prefix else None
    restarts, stated = _restart(host, named, variables) if problem else ({}, "")
    facts = environment or _with_variables(PythonEnvironment(), variables)
    loader = _loader(facts, variables.get("LD_LIBRARY_PATH", ""), "")
    trials, untried = _try_imports(host, facts, named, question) if not problem and question.tries_imports else ((), ())
    libraries, providers, unread = collect_libraries(facts, trials, loader)
    return EnvironmentRecord(
        trtdx=__version__,
        taken_at=host.now(),
        python_path=named,
        start_problem=problem,
        start_reason=why_dead(named, problem, done.status) if problem else "",
        start_output=redact_secrets(done.stderr.decode("utf-8", "replace")[-6000:]),
        restarts=restarts,
        stated_version=stated,
        python=facts,
        trials=trials,
        libraries=libraries,
        providers=providers,
        preloads=tuple(_preloads(variables, loader)),
        machine=collect_machine(host, loader, prefix),
        unread=(*unread, *(f"import {name}: no time was left" for name in untried)),
        expects_gpu=question.expects_gpu,
    )


def _collect_root(host: Host, question: CheckQuestion) -> EnvironmentRecord:
    root = os.path.abspath(question.container)
    facts = read_python_of_root(root, question.python)
    problem = "" if facts.folders else "no Python with packages was found in it"
    libraries, providers, unread = collect_libraries(facts, (), _loader(facts, "", root))
    return EnvironmentRecord(
        trtdx=__version__,
        taken_at=host.now(),
        python_path=facts.interpreter.executable,
        root=root,
        start_problem=problem,
        python=facts,
        libraries=libraries,
        providers=providers,
        machine=read_machine_of_root(root),
        unread=(*unread, "imports: a root file system is read, nothing in it is run"),
        expects_gpu=question.expects_gpu,
    )


def choose_interpreter(named: str, variables: Mapping[str, str]) -> str:
    """Return the interpreter to look at: the one named, else that of the active environment."""
    if named and Path(named).is_dir():
        return str(Path(named) / "bin" / "python")
    if named:
        return named if "/" in named else shutil.which(named, path=variables.get("PATH")) or named
    active = variables.get("VIRTUAL_ENV")
    if active:
        return str(Path(active) / "bin" / "python")
    path = variables.get("PATH")
    return shutil.which("python3", path=path) or shutil.which("python", path=path) or "python3"


def run_probe(host: Host, interpreter: str, timeout_s: float) -> tuple[PythonEnvironment | None, CommandResult]:
    """Return what the probe tells, or nothing where the interpreter does not get that far."""
    done = host.run([interpreter, "-c", STARTER, str(PROBE)], timeout_s=timeout_s)
    _, mark, text = done.stdout.rpartition(MARK)
    if not mark:
        return None, done
    try:
        return _redacted(msgspec.json.decode(text.strip(), type=PythonEnvironment)), done
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, done


def _redacted(environment: PythonEnvironment) -> PythonEnvironment:
    variables = {
        name: redact_secrets(f"{name}={value}").partition("=")[2] for name, value in environment.variables.items()
    }
    return msgspec.structs.replace(environment, variables=variables)


def _with_variables(environment: PythonEnvironment, variables: Mapping[str, str]) -> PythonEnvironment:
    from trtdx.check.probe import VARIABLES

    chosen = {name: value for name, value in variables.items() if VARIABLES.match(name)}
    return _redacted(msgspec.structs.replace(environment, variables=chosen, cwd=os.getcwd()))


SUSPECTS = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")


def _restart(host: Host, interpreter: str, variables: Mapping[str, str]) -> tuple[dict[str, int | None], str]:
    """Return how an interpreter that does not start does under other conditions, and its version."""
    nothing = [interpreter, "-c", "pass"]
    ways = {"-I -S": [interpreter, "-I", "-S", "-c", "pass"], "-I": [interpreter, "-I", "-c", "pass"]}
    for name in SUSPECTS:
        if name in variables:
            ways[name] = ["env", "-u", name, *nothing]
    results = {way: host.run(argv, timeout_s=RESTART_TIMEOUT_S).status for way, argv in ways.items()}
    version = host.run([interpreter, "-V"], timeout_s=RESTART_TIMEOUT_S)
    return results, (version.stdout or version.stderr).decode("utf-8", "replace").strip()[:60]


def _start_problem(done: CommandResult) -> str:
    if done.status is None:
        return done.problem
    return f"ended with status {done.status}" if done.status >= 0 else f"was ended by signal {-done.status}"


def _prefix_from_outside(interpreter: str) -> str:
    """Return the prefix of an interpreter that does not start, from where it lies."""
    folder = Path(os.path.abspath(interpreter)).parent
    return str(folder.parent) if folder.name == "bin" else ""


def _loader(environment: PythonEnvironment, library_path: str, root: str) -> LibraryLoader:
    interpreter = environment.interpreter
    return LibraryLoader(interpreter.machine, library_path, root, interpreter.executable)


def _preloads(variables: Mapping[str, str], loader: LibraryLoader) -> list[ElfFacts]:
    names = [name for name in variables.get("LD_PRELOAD", "").replace(":", " ").split() if name]
    paths = [name if "/" in name else loader.cache.get(name, name) for name in names]
    things = [read_shared_object(path) for path in paths]
    return [ElfFacts(path=thing.path, problem=thing.problem, machine=thing.machine) for thing in things]


def _try_imports(
    host: Host, environment: PythonEnvironment, interpreter: str, question: CheckQuestion
) -> tuple[tuple[ImportTrial, ...], tuple[str, ...]]:
    present = {origin.name for origin in environment.origins if origin.origin or origin.places}
    installed = {name for folder in environment.folders for copy in folder.distributions for name in copy.top_modules}
    modules = [name for name in TRIED if name.split(".")[0] in present & (installed | _not_namespaces(environment))]
    timeout = question.import_timeout_s
    trials, untried = run_trials(host, interpreter, modules, timeout, budget_s=SLOWEST_IMPORTS * timeout)
    return _without_suspects(host, interpreter, tuple(trials), environment, timeout), tuple(untried)


def _without_suspects(
    host: Host, interpreter: str, trials: tuple[ImportTrial, ...], environment: PythonEnvironment, timeout_s: float
) -> tuple[ImportTrial, ...]:
    """Return the trials; the first that fails says which variable, or folder, it works without."""
    number = next((number for number, trial in enumerate(trials) if trial.outcome in ("error", "crash", "hang")), None)
    if number is None:
        return trials
    module = trials[number].module
    ways = {name: ("env", "-u", name) for name in SUSPECTS if environment.variables.get(name)}
    if environment.folders and environment.folders[0].folder == environment.cwd and environment.folders[0].importable:
        ways["the current folder"] = ("env", "-C", "/")
    limit = min(timeout_s, 2 * trials[number].seconds + 5)
    free = tuple(
        name
        for name, prefix in ways.items()
        if run_trial(host, interpreter, module, limit, prefix=prefix)[0].outcome == "works"
    )
    return (*trials[:number], msgspec.structs.replace(trials[number], works_without=free), *trials[number + 1 :])


def _not_namespaces(environment: PythonEnvironment) -> set[str]:
    return {origin.name for origin in environment.origins if origin.origin}


def read_record(host: Host, path: str) -> EnvironmentRecord:
    """Return the facts that an earlier check saved.

    Raises:
        InputError: the file cannot be read, or is not what `--save` writes.
    """
    with host.open(path) as stream:
        data = stream.read() if path == "-" else _read_all(stream)
    try:
        record = msgspec.json.decode(data, type=EnvironmentRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise InputError(
            f"{path} is not a recorded check: {err}", fix="write one with: trtdx check --save FILE"
        ) from err
    if record.schema > EnvironmentRecord().schema:
        raise InputError(f"{path} was written by a later trtdx ({record.trtdx})", fix="upgrade trtdx")
    return record


def _read_all(stream: object) -> bytes:
    parts = []
    while part := stream.read(1 << 20):  # type: ignore[attr-defined]
        parts.append(part)
    return b"".join(parts)
