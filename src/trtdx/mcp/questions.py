"""The questions behind the tools: each takes plain values and a confined host, and returns a report or plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.host import RealHost, RecordedHost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.cases.nouns import SearchHit
    from trtdx.mcp.confined_host import ConfinedHost
    from trtdx.model import Report
    from trtdx.rule import RuleBook

MAX_TEXT = 4 << 20


def diagnose_logs(host: ConfinedHost, book: RuleBook, paths: Sequence[str], text: str) -> Report:
    """Return the root cause of logs."""
    from trtdx.diagnose.logs.sources import open_sources
    from trtdx.diagnose.run import diagnose_sources, source_from_text
    from trtdx.memory.logs.diagnose_hook import with_memory_figures

    if not paths and not text:
        raise InputError("there is nothing to diagnose", fix="give paths or text")
    sources, skipped = open_sources(host, [host.resolve(path) for path in paths]) if paths else ([], [])
    given_text = [source_from_text(text[:MAX_TEXT], "text")] if text else []
    notes = [f"{entry.name}: {entry.reason}" for entry in skipped]
    return diagnose_sources([*sources, *given_text], book, notes=notes, refine=with_memory_figures)


def inspect_paths(
    host: ConfinedHost,
    book: RuleBook,
    paths: Sequence[str],
    *,
    commands: Sequence[str],
    runtime: str,
    gpu: str,
    gpus: int,
    requests: Sequence[str],
) -> Report:
    """Return what is in artifacts and what disagrees."""
    from trtdx.inspect.facts.machine import machine_from_flags
    from trtdx.inspect.requests.requests import requests_from_flags
    from trtdx.inspect.run import InspectQuestion, inspect_artifacts

    question = InspectQuestion(
        paths=tuple(dict.fromkeys(host.resolve(path) for path in paths)),
        commands=tuple(commands),
        machine=machine_from_flags(runtime=runtime, gpu=gpu, gpus=gpus),
        requests=requests_from_flags(host, list(requests), ""),
    )
    return inspect_artifacts(host, question, book)


def plan_memory(
    host: ConfinedHost,
    book: RuleBook,
    model: str,
    *,
    gpu: str,
    runtime: str,
    dims: str,
    commands: Sequence[str],
    flags: Mapping[str, Any],
) -> Report:
    """Return what uses a GPU's memory; the model is a path below a root or a known name."""
    from trtdx.memory.question.flags import artifact_from_flags
    from trtdx.memory.question.setup import MemoryRequest
    from trtdx.memory.run import PlanRequest, report_memory_plan

    question = MemoryRequest(
        model=_path_or_name(host, model),
        dims=dims,
        commands=tuple(commands),
        flags=artifact_from_flags({name: str(value) for name, value in flags.items()}),
        version=runtime,
        gpu=gpu,
    )
    return report_memory_plan(host, question, book, PlanRequest())


def _path_or_name(host: ConfinedHost, model: str) -> str:
    """Return a path below a root where there is one; what lies elsewhere is refused, what lies nowhere is a name."""
    if not model or (not host.roots and RealHost().kind(model) == "absent"):
        return model
    if model.startswith(("/", "~", ".")):
        return host.resolve(model)
    try:
        path = host.resolve(model)
    except InputError:
        return model
    return path if host.kind(path) != "absent" else model


def compare_sides(host: ConfinedHost, book: RuleBook, reference: str, candidate: str, *, runs: bool) -> Report:
    """Return where two runs first differ; models are run only where that is allowed."""
    from trtdx.compare.sides.needed_packages import need_packages

    sides = [_side_text(host, side) for side in (reference, candidate)]
    need_packages(*sides)
    from trtdx.compare.run import ComparisonPlan, compare
    from trtdx.compare.sides.side import parse_side

    specs = tuple(parse_side(host, side) for side in sides)
    models = [spec.text for spec in specs if spec.kind not in ("capture", "dump")]
    if models and not runs:
        raise InputError(f"{models[0]} is a model, which would be run", fix="start the server with --allow-run")
    return compare(host, ComparisonPlan(reference=sides[0], candidate=sides[1], attribute=runs), book)


def _side_text(host: ConfinedHost, side: str) -> str:
    kind, colon, rest = side.partition(":")
    if colon and kind in ("hf", "onnx", "trt"):
        path, mark, query = rest.partition("?")
        return f"{kind}:{host.resolve(path)}{mark}{query}"
    if colon and kind == "command":
        raise InputError("a side that is a command is not run for an assistant")
    return host.resolve(side)


def check_python(
    host: ConfinedHost, book: RuleBook, *, recorded: str, container: str, python: str, runs: bool
) -> Report:
    """Return what is wrong with an environment: a recorded check, a root file system, or a live interpreter."""
    from trtdx.check.collect import CheckQuestion, read_record
    from trtdx.check.run import MendingWishes, check_environment, judge_record

    if recorded:
        return judge_record(read_record(host, host.resolve(recorded)), book)
    if container:
        question = CheckQuestion(container=host.resolve(container))
        return check_environment(host, question, book, MendingWishes(resolves=False))[0]
    if not runs:
        raise InputError(
            "to look at an interpreter is to run it",
            fix="give recorded (what trtdx check --save FILE wrote), or start the server with --allow-run",
        )
    question = CheckQuestion(python=python, tries_imports=False)
    return check_environment(RealHost(), question, book, MendingWishes(resolves=False))[0]


def search_past(host: ConfinedHost, book: RuleBook, question: str, paths: Sequence[str], limit: int) -> list[SearchHit]:
    """Return past cases and rule pages that are like words or logs; the store is opened for reading."""
    from contextlib import nullcontext

    from trtdx.cases.run import search_logs, search_store
    from trtdx.cases.store import has_store, opened_store

    with opened_store(RealHost(), writes=False) if has_store(RealHost()) else nullcontext() as store:
        if paths:
            return search_logs(host, store, book, [host.resolve(path) for path in paths], limit=limit)
        return search_store(RecordedHost(), store, lambda: book, question.split(), limit=limit)  # words name no file
