"""Libraries that the loader does not find, finds twice, or that lack what is asked of them."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from trtdx.check.judges.families import (
    family_of_library,
    is_driver_library,
    library_stem,
    owner_of_symbol,
    package_with_library,
    page_of_library,
    page_of_symbol,
)
from trtdx.check.judges.mpi_flavours import judge_mpi, loadable_flavours
from trtdx.check.nouns import Cause, ElfFacts, MendingOrder, name_in_other_abi
from trtdx.check.probe import COMPILED
from trtdx.check.view import make_evidence
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.nouns import InstalledDistribution, NeededLibrary
    from trtdx.check.view import EnvironmentView
    from trtdx.model import Evidence

# Only what these load for certain is judged by its files alone; plug-ins of others are optional.
LOADED = re.compile(r"torch$|torchvision$|tensorrt(?!-rtx)|mpi4py$")
# Libraries of which one process should have one.
ONE_OF_A_KIND = re.compile(
    r"lib(?:nvinfer|nvonnxparser|cudnn|nccl|mpi|cudart|cublas|cublasLt|torch\w*|c10\w*|tensorrt_llm|stdc\+\+|nvrtc|protobuf)$"
)
TOOLKIT = re.compile(r"/cuda(?:-\d+(?:\.\d+)?)?/.*lib(?:cudart|cublas|cublasLt|nvrtc)\.so")


def judge_libraries(view: EnvironmentView) -> Iterator[Cause]:
    """Yield what is wrong with the libraries that the parts of a deployment load."""
    if not view.record.trials:
        yield from _judge_missing(view)
        yield from _judge_undefined(view)
    yield from _judge_versions(view)
    yield from _judge_twice(view)
    yield from _judge_library_path(view)
    yield from judge_mpi(view)


def loaded_files(view: EnvironmentView) -> tuple[ElfFacts, ...]:
    """Return the libraries that a deployment's parts load, and what these need in turn."""
    by_path = {thing.path: thing for thing in view.record.libraries}
    queue = [thing for thing in view.record.libraries if LOADED.match(thing.owner)]
    reached = {thing.path: thing for thing in queue}
    while queue:
        for need in queue.pop().needs:
            if need.path in by_path and need.path not in reached:
                reached[need.path] = by_path[need.path]
                queue.append(by_path[need.path])
    return tuple(reached.values())


def _judge_missing(view: EnvironmentView) -> Iterator[Cause]:
    """Yield libraries nobody has, where nothing was imported that could tell."""
    present = {os.path.basename(thing.path) for thing in view.record.libraries}
    present |= {os.path.basename(name) for distribution in view.distributions for name in distribution.compiled}
    reported: set[str] = set()
    for thing in loaded_files(view):
        if thing.owner == "mpi4py" and loadable_flavours(view, thing):
            continue
        for need in thing.needs:
            if need.path or need.name in present | reported or is_driver_library(need.name):
                continue
            reported.add(need.name)
            yield missing_library_cause(view, need.name, thing.path, thing)


def missing_library_cause(view: EnvironmentView, name: str, file: str, thing: ElfFacts | None) -> Cause:
    """Return the cause that a library is found nowhere, or not where the loader looks."""
    owner = view.owner_of_path(file)
    title = owner.title if owner else thing.owner if thing else "a file of no package"
    copies = [path for path in _paths_named(view, name) if path != file]
    where = f"it is at {copies[0]}, where the loader does not look" if copies else _nearest(view, name)
    values = {
        "library": name, "file": file, "owner": title, "found": where, "pip": view.pip,
        "package": f"{owner.name}=={owner.version}" if owner else "PACKAGE",
    }  # fmt: skip
    brings = package_with_library(name, view.release)
    values |= {"folder": os.path.dirname(copies[0])} if copies else {"brings": brings} if brings else {}
    if owner and owner.key == "mpi4py" and where.startswith("only "):
        values["rebuild"] = owner.name
    evidence = [make_evidence(file, f"NEEDED {name} (file of {title})")]
    if thing and thing.search:
        evidence.append(make_evidence(f"{file}: search path", ":".join(thing.search)))
    about = frozenset({name, file, family_of_library(name), *([owner.key] if owner else [])} - {""})
    return Cause(
        page_of_library(name), Violation(tuple(evidence), values), MendingOrder.LIBRARIES, about, f"{name} is not found"
    )


def _paths_named(view: EnvironmentView, name: str) -> list[str]:
    listed = [
        f"{distribution.folder}/{file}"
        for distribution in view.distributions
        for file in distribution.compiled
        if os.path.basename(file) == name and file not in distribution.missing
    ]
    return [*listed, *(thing.path for thing in view.record.libraries if os.path.basename(thing.path) == name)]


def _nearest(view: EnvironmentView, name: str) -> str:
    """Return words on another version of a library that is there."""
    stem = library_stem(name)
    others = {
        os.path.basename(path)
        for thing in view.record.libraries
        for path in (thing.path, *(need.path for need in thing.needs))
        if path and library_stem(os.path.basename(path)) == stem
    } - {name}
    listed = {
        os.path.basename(file) for distribution in view.distributions for file in distribution.compiled
        if library_stem(os.path.basename(file)) == stem
    } - {name}  # fmt: skip
    nearest = sorted(others | listed)
    return f"only {nearest[0]} is there" if nearest else "no installed package has it"


def _judge_undefined(view: EnvironmentView) -> Iterator[Cause]:
    for thing in loaded_files(view):
        if thing.undefined and view.owner_of_path(thing.path):
            yield undefined_symbol_cause(view, thing.undefined[0], thing.path)


def undefined_symbol_cause(view: EnvironmentView, symbol: str, file: str) -> Cause:
    """Return the cause that a symbol is defined nowhere the loader looks, with whose it would be."""
    owner = view.owner_of_path(file)
    title = owner.title if owner else os.path.basename(file)
    providers = [provider for provider in view.record.providers if provider.symbol == symbol and provider.path != file]
    usual = owner_of_symbol(symbol)
    peer = next((view.in_force[key] for key in view.in_force if usual and key.startswith(usual)), None)
    whose = (
        f"{providers[0].path} ({view.title_of_path(providers[0].path)}) defines it, and is not what is loaded"
        if providers
        else _other_abi(view, symbol)
        or (f"the installed {peer.title} does not define it" if peer else "no installed library defines it")
    )
    values = {
        "symbol": symbol, "file": file, "owner": title, "provider": whose, "pip": view.pip,
        "package": f"{owner.name}=={owner.version}" if owner else "PACKAGE", "peer": peer.title if peer else usual or "a library",
    }  # fmt: skip
    if owner and not LOADED.match(owner.key):
        values["rebuild"] = owner.name
    evidence = (
        make_evidence(file, f"undefined symbol: {symbol}"),
        *(make_evidence(provider.path, f"defines {symbol}") for provider in providers[:2]),
    )
    evidence = (*evidence, *_replaced_files(peer or owner))
    names = {file, os.path.basename(file), *([owner.key] if owner else []), *([peer.key] if peer else [])}
    code = page_of_symbol(symbol)
    if code == "DX026" and owner is not None and owner is peer:
        code = "DX1117"
    return Cause(code, Violation(evidence, values), MendingOrder.LIBRARIES, frozenset(names), f"{symbol} is undefined")


def _other_abi(view: EnvironmentView, symbol: str) -> str:
    """Return words on a library that defines a symbol in the other C++ ABI; empty where none does."""
    twin = name_in_other_abi(symbol)
    provider = next((provider for provider in view.record.providers if twin and provider.symbol == twin), None)
    if provider is None:
        return ""
    mine, other = ("new", "old") if len(symbol) > len(twin) else ("old", "new")
    title = view.title_of_path(provider.path) or provider.path
    return f"it is built with the {mine} C++ ABI, and the installed {title} with the {other} one"


def _replaced_files(owner: InstalledDistribution | None) -> tuple[Evidence, ...]:
    """Return evidence of libraries that are not those which were installed."""
    rows = [row for row in owner.wrong_size if COMPILED.search(row[0])] if owner else []
    return tuple(
        make_evidence(f"{owner.folder}/{name}", f"{actual} bytes, {expected} were installed")
        for name, expected, actual in rows[:2]
        if owner
    )


def _judge_versions(view: EnvironmentView) -> Iterator[Cause]:
    """Yield libraries that are older than a file asks for: GLIBC_2.38, GLIBCXX_3.4.32."""
    reported = set()
    for thing in view.record.libraries:
        owner = view.owner_of_path(thing.path)
        if not owner or view.works(owner) or not (LOADED.match(owner.key) or owner.key in view.relevant):
            continue
        for library, version in thing.versions:
            need = next((need for need in thing.needs if need.name == library), None)
            if need and (library, version.split("_")[0], owner.key) not in reported:
                reported.add((library, version.split("_")[0], owner.key))
                yield absent_version_cause(view, version, thing.path, need)


def absent_version_cause(view: EnvironmentView, version: str, file: str, need: NeededLibrary) -> Cause:
    owner = view.owner_of_path(file)
    title = owner.title if owner else os.path.basename(file)
    place = f"{need.path or need.name}{f' (taken from {need.via})' if need.via else ''}"
    values = {
        "version": version, "library": place, "file": file, "owner": title, "pip": view.pip,
        "package": owner.name if owner else "PACKAGE",
    }  # fmt: skip
    evidence = (
        make_evidence(file, f"asks for {version} of {need.name}"),
        make_evidence(need.path or need.name, "does not have it"),
    )
    system = version.startswith(("GLIBC", "CXXABI", "GCC"))
    code = "DX1104" if need.via == "LD_LIBRARY_PATH" else "DX028" if system else "DX1117"
    folder = os.path.dirname(need.path)
    values |= {"folder": folder, "effect": f"{title} needs {version} of it", "symbol": version}
    values |= {"remedy": view.without("LD_LIBRARY_PATH", folder)}
    values |= {"provider": f"{place} does not define it", "peer": need.name}
    about = frozenset({file, need.name, *([owner.key] if owner else [])})
    order = MendingOrder.VARIABLES if code == "DX1104" else MendingOrder.LIBRARIES
    return Cause(
        code,
        Violation(evidence, {**values, "file": need.path if code == "DX1104" else file}),
        order,
        about,
        f"{version} is not there",
    )


def _judge_twice(view: EnvironmentView) -> Iterator[Cause]:
    """Yield libraries that two parts of a deployment would load in different versions."""
    digests = {thing.path: thing.digest for thing in view.record.libraries}
    users: dict[str, dict[str, list[ElfFacts]]] = defaultdict(lambda: defaultdict(list))
    for thing in loaded_files(view):
        for need in thing.needs:
            if need.path and ONE_OF_A_KIND.match(library_stem(need.name)):
                users[need.name][need.path].append(thing)
    for name, places in users.items():
        distinct = {digests.get(path) or path: path for path in places}
        if len(distinct) > 1:
            yield _twice_cause(view, name, {path: places[path] for path in distinct.values()})


def _twice_cause(view: EnvironmentView, name: str, places: dict[str, list[ElfFacts]]) -> Cause:
    rows = [
        (path, view.title_of_path(things[0].path) or things[0].owner or things[0].path)
        for path, things in places.items()
    ]
    targets = {thing.path: thing.target for thing in view.record.libraries}
    evidence = tuple(
        make_evidence(
            path, f"{targets.get(path) or name}, loaded by {title} ({os.path.basename(places[path][0].path)})"
        )
        for path, title in rows
    )
    values = {"library": name, "places": join_words(f"{path} (for {title})" for path, title in rows), "pip": view.pip}
    owners = {owner.key for path in places if (owner := view.owner_of_path(path))}
    outside = [things[0] for path, things in places.items() if not view.owner_of_path(path)]
    user = view.owner_of_path(outside[0].path) if owners and outside else None
    values |= {"wish": f"{user.name}=={user.version}"} if user else {}
    about = frozenset({name, *places, *owners})
    tame = (
        sum(not TOOLKIT.search(path) for path in places) < 2
    )  # a toolkit's serve every release of their major version
    severity = Severity.NOTE if tame else Severity.WARNING  # graver where it explains an import that fails
    violation = Violation(evidence, values, severity)
    return Cause("DX1116", violation, MendingOrder.LIBRARIES, about, f"{name} is there twice")


def _judge_library_path(view: EnvironmentView) -> Iterator[Cause]:
    """Yield LD_LIBRARY_PATH folders whose library is taken in place of the one a package brings."""
    reported = set()
    digests = {thing.path: thing.digest for thing in view.record.libraries}
    for thing in loaded_files(view):
        for need in thing.needs:
            if need.via != "LD_LIBRARY_PATH" or need.path in reported:
                continue
            rivals = [path for path in _paths_named(view, need.name) if not _is_same(digests, path, need.path)]
            is_stub = "/stubs/" in need.path
            if not is_stub and (not rivals or not ONE_OF_A_KIND.match(library_stem(need.name))):
                continue
            reported.add(need.path)
            yield _library_path_cause(view, thing, need, rivals, is_stub=is_stub)


def _is_same(digests: dict[str, str], one: str, other: str) -> bool:
    """Whether two paths lead to the same contents."""
    return one == other or (bool(digests.get(one)) and digests.get(one) == digests.get(other))


def _library_path_cause(
    view: EnvironmentView, thing: ElfFacts, need: NeededLibrary, rivals: list[str], *, is_stub: bool
) -> Cause:
    title = view.title_of_path(thing.path) or thing.owner
    rival = f"{rivals[0]} ({view.title_of_path(rivals[0])})" if rivals else "the driver's own"
    effect = f"{title} loads it as {need.name} in place of {rival}"
    evidence = (
        make_evidence("LD_LIBRARY_PATH", os.path.dirname(need.path)),
        make_evidence(thing.path, f"{need.name} => {need.path}"),
    )
    folder = os.path.dirname(need.path)
    values = {"file": need.path, "folder": folder, "effect": effect, "remedy": view.without("LD_LIBRARY_PATH", folder)}
    about = {need.name, need.path}
    if _stands_in_the_way(view):
        about |= {thing.path, thing.owner, *(owner.key for path in rivals[:1] if (owner := view.owner_of_path(path)))}
    severity = Severity.ERROR if _stands_in_the_way(view) or is_stub else Severity.WARNING
    if severity is Severity.WARNING and TOOLKIT.search(need.path):
        severity = Severity.NOTE  # runtime libraries of a toolkit serve every release of their major version
    return Cause("DX1104", Violation(evidence, values, severity), MendingOrder.VARIABLES, frozenset(about))


def _stands_in_the_way(view: EnvironmentView) -> bool:
    """Whether an import that fails was seen to work without LD_LIBRARY_PATH."""
    return any("LD_LIBRARY_PATH" in trial.works_without for trial in view.failing)
