"""The shared libraries of an environment, resolved as the loader would, within bounds."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.check.facts.elf_reader import (
    SharedObject,
    asked_versions,
    can_read_elf,
    defined_among,
    defined_versions,
    glance_at_object,
    read_shared_object,
    undefined_symbols,
)
from trtdx.check.nouns import ElfFacts, NeededLibrary, SymbolProvider, canonical_name, name_in_other_abi
from trtdx.check.probe import COMPILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.facts.loader import LibraryLoader, ResolvedLibrary
    from trtdx.check.nouns import ImportTrial, PythonEnvironment

# What a deployment of TensorRT-LLM is made of: always looked into, whether or not it imports.
KEY_DISTRIBUTION = re.compile(
    r"torch$|torchvision$|triton$|tensorrt(?!-rtx).*|mpi4py$|nvidia-(?!ml-py|modelopt).*|flashinfer.*|cuda-.*"
)
KEY_MODULES = ("torch", "tensorrt", "tensorrt_llm", "tensorrt_libs", "tensorrt_bindings", "mpi4py")
UNDEFINED = re.compile(r"undefined symbol: ([\w.$@]+)")
PYTHON_SYMBOL = re.compile(r"_?Py[A-Z_]|_?PyPy")
MOST_DEEP, MOST_WALKED, MOST_SEARCHED, MOST_UNDEFINED = 700, 400, 3000, 60
MOST_DIGESTED = 1 << 20
SYMBOLS_S = 2.0


def collect_libraries(
    environment: PythonEnvironment, trials: tuple[ImportTrial, ...], loader: LibraryLoader
) -> tuple[tuple[ElfFacts, ...], tuple[SymbolProvider, ...], tuple[str, ...]]:
    """Return the libraries, who defines the symbols that imports miss, and what was not looked at."""
    owners = _owners_by_path(environment)
    if not can_read_elf():
        reason = "shared libraries: the package pyelftools is not installed (pip install 'trtdx[check]')"
        return tuple(_shallow(path, owner) for path, owner in owners.items() if _is_odd(path, loader)), (), (reason,)
    working = _owners_by_outcome(environment, trials, works=True)
    failing = _owners_by_outcome(environment, trials, works=False) - working
    deep = [path for path, owner in owners.items() if owner in failing or KEY_DISTRIBUTION.match(owner)]
    facts = _walk_needs(deep[:MOST_DEEP], owners, working, loader)
    for path, owner in owners.items():
        if path not in facts and _is_odd(path, loader):
            facts[path] = _shallow(path, owner)
    if not trials:  # nothing was imported, so symbols are the only witnesses
        facts = _with_undefined(facts, owners, environment)
    facts = _with_digests(facts)
    unread = (f"{len(deep) - MOST_DEEP} more shared libraries",) if len(deep) > MOST_DEEP else ()
    symbols = {match for trial in trials for link in trial.chain for match in UNDEFINED.findall(link.text)}
    symbols |= {name for fact in facts.values() for name in fact.undefined}
    symbols |= {twin for name in symbols if (twin := name_in_other_abi(name))}
    return tuple(facts.values()), _providers(symbols, owners), unread


def _owners_by_path(environment: PythonEnvironment) -> dict[str, str]:
    """Return every compiled file, by the distribution that lists it or the key package it lies in."""
    owners: dict[str, str] = {}
    for folder in environment.folders:
        for distribution in folder.distributions:
            for name in distribution.compiled:
                path = os.path.normpath(f"{distribution.folder}/{name}")
                if os.path.lexists(path):
                    owners[path] = distribution.key
    for origin in environment.origins:
        if origin.name in KEY_MODULES:
            for place in origin.places:
                for path in _walk_compiled(place):
                    owners.setdefault(path, canonical_name(origin.name))
    return owners


def _walk_compiled(place: str) -> Iterator[str]:
    count = 0
    for folder, _, names in os.walk(place):
        for name in sorted(names):
            if COMPILED.search(name) and count < MOST_WALKED:
                count += 1
                yield f"{folder}/{name}"


def _owners_by_outcome(environment: PythonEnvironment, trials: tuple[ImportTrial, ...], *, works: bool) -> set[str]:
    """Return the distributions whose modules were imported, or were not."""
    modules = {trial.module.split(".")[0] for trial in trials if (trial.outcome == "works") == works}
    if not works:
        modules |= {name.split(".")[0] for trial in trials for name, _, _ in trial.failures}
        modules |= {name.split(".")[0] for trial in trials for name, _ in trial.loading}
    return {
        distribution.key
        for folder in environment.folders
        for distribution in folder.distributions
        if modules & set(distribution.top_modules)
    }


def _is_odd(path: str, loader: LibraryLoader) -> bool:
    thing = glance_at_object(path)
    return bool(thing.problem) or (thing.machine != loader.machine and bool(loader.machine))


def _shallow(path: str, owner: str) -> ElfFacts:
    thing = read_shared_object(path)
    return ElfFacts(path=path, owner=owner, problem=thing.problem, machine=thing.machine, bits=thing.bits)


def _walk_needs(
    paths: list[str], owners: dict[str, str], working: set[str], loader: LibraryLoader
) -> dict[str, ElfFacts]:
    facts: dict[str, ElfFacts] = {}
    queue, queued = deque(paths), set(paths)
    while queue and len(facts) < MOST_DEEP:
        path = queue.popleft()
        owner = owners.get(path) or owners.get(os.path.realpath(path), "")
        thing = read_shared_object(path)
        needs = [loader.resolve(thing, name) for name in thing.needed]
        facts[path] = _deep(thing, owner, needs, looks_at_versions=owner not in working)
        for need in needs:
            if need.path and need.path not in queued:
                queued.add(need.path)
                queue.append(need.path)
    return facts


def _deep(thing: SharedObject, owner: str, needs: list[ResolvedLibrary], *, looks_at_versions: bool) -> ElfFacts:
    libraries = tuple(NeededLibrary(name=need.name, path=need.path, via=need.via) for need in needs)
    return ElfFacts(
        path=thing.path,
        owner=owner,
        problem=thing.problem,
        machine=thing.machine,
        bits=thing.bits,
        soname=thing.soname,
        search=(*thing.rpath, *thing.runpath),
        needs=libraries,
        versions=tuple(_absent_versions(thing, libraries)) if looks_at_versions and owner else (),
        is_extension=bool(re.search(r"\.(?:cpython-|abi3\.)", Path(thing.path).name)),
    )


def _absent_versions(thing: SharedObject, libraries: tuple[NeededLibrary, ...]) -> Iterator[tuple[str, str]]:
    paths = {library.name: library.path for library in libraries}
    for library, version in dict.fromkeys(asked_versions(thing.path)):
        has = defined_versions(paths[library]) if paths.get(library) else frozenset()
        if has and version not in has:
            yield library, version


def _with_digests(facts: dict[str, ElfFacts]) -> dict[str, ElfFacts]:
    """Return the facts with digests of the files that could be taken for one library name, so that judges can tell copies apart."""
    import msgspec

    places: dict[str, set[str]] = {}
    for path, fact in facts.items():
        places.setdefault(os.path.basename(path), set()).add(path)
        for need in fact.needs:
            if need.path:
                places.setdefault(need.name, set()).add(need.path)
    rivals = {path for paths in places.values() if len(paths) > 1 for path in paths}
    return {
        path: msgspec.structs.replace(fact, digest=_digest(path), target=os.path.basename(os.path.realpath(path)))
        if path in rivals and not fact.problem
        else fact
        for path, fact in facts.items()
    }


def _digest(path: str) -> str:
    """Return a digest of a file's size, beginning and end."""
    import hashlib

    with Path(path).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(MOST_DIGESTED)
        stream.seek(max(0, size - MOST_DIGESTED))
        return hashlib.blake2b(str(size).encode() + head + stream.read(MOST_DIGESTED), digest_size=12).hexdigest()


def _with_undefined(
    facts: dict[str, ElfFacts], owners: dict[str, str], environment: PythonEnvironment
) -> dict[str, ElfFacts]:
    """Return the facts with the symbols that nothing in the whole environment defines."""
    import msgspec

    roots = [fact for path, fact in facts.items() if path in owners and KEY_DISTRIBUTION.match(fact.owner)]
    until = time.monotonic() + SYMBOLS_S
    wanted_by = {
        fact.path: {name for name in undefined_symbols(fact.path) if not PYTHON_SYMBOL.match(name)}
        for fact in sorted(roots, key=lambda fact: not fact.is_extension)[:MOST_UNDEFINED]
        if not fact.problem and all(need.path for need in fact.needs) and time.monotonic() < until
    }
    open_symbols = set().union(*wanted_by.values()) if wanted_by else set()
    for path in dict.fromkeys([*facts, *owners]):
        open_symbols -= defined_among(path, open_symbols) if open_symbols else set()
    interpreter = environment.interpreter.executable
    open_symbols -= defined_among(interpreter, open_symbols) if interpreter else set()
    return {
        path: msgspec.structs.replace(fact, undefined=tuple(sorted(wanted_by.get(path, set()) & open_symbols))[:10])
        for path, fact in facts.items()
    }


def _providers(symbols: set[str], owners: dict[str, str]) -> tuple[SymbolProvider, ...]:
    """Return the installed libraries that define symbols which an import missed."""
    if not symbols:
        return ()
    return tuple(
        SymbolProvider(symbol=symbol, path=path, owner=owner)
        for path, owner in list(owners.items())[:MOST_SEARCHED]
        for symbol in sorted(defined_among(path, symbols))
    )
