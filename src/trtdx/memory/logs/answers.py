"""The reports of `--log` and `--calibrate`, with their JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.memory.ledger.calibration import load_constants
from trtdx.memory.logs.report import calibrate_report, memory_of_log
from trtdx.memory.model.source import HOW
from trtdx.memory.question.setup import Asked, setup_from
from trtdx.memory.report.plan import MemoryReport, figure_json, rank_json

if TYPE_CHECKING:
    from trtdx.host import Host
    from trtdx.memory.logs.report import LogReport
    from trtdx.memory.nouns import Setup
    from trtdx.model import Report
    from trtdx.rule import RuleBook


def log_report(host: Host, asked: Asked, book: RuleBook, logs: tuple[str, ...]) -> MemoryReport:
    """Return the ledger that logs tell, what failed, and the smallest change that fits."""
    constants = load_constants(host)
    result = memory_of_log(host, logs, _setup(host, asked), book=book, constants=constants)
    return _as_memory(result.report, _memory(result))


def calibration_report(host: Host, asked: Asked, logs: tuple[str, ...], book: RuleBook) -> MemoryReport:
    """Return what was learnt from logs of one set-up."""
    setup = _setup(host, asked)
    if setup is None:
        raise InputError("a calibration needs to know the model of the logs", fix=f"--model DIR, or {HOW}")
    result = calibrate_report(host, logs, setup, book=book)
    constants = msgspec.to_builtins(result.calibration.constants) if result.calibration else {}
    return _as_memory(result.report, {"constants": constants})


def _setup(host: Host, asked: Asked) -> Setup | None:
    """Return the set-up where enough was said of the model."""
    if not (asked.model or asked.dims or asked.commands or asked.options):
        return None
    return setup_from(host, asked).setup


def _as_memory(report: Report, memory: dict[str, Any]) -> MemoryReport:
    return MemoryReport(
        summary=report.summary, findings=report.findings, sections=report.sections, memory=memory
    )


def _memory(found: LogReport) -> dict[str, Any]:
    fits = [rank.fits for rank in found.ranks if rank.fits is not None]
    tokens = [rank.kv_tokens for rank in found.ranks if rank.kv_tokens.value]
    memory: dict[str, Any] = {
        "fits": all(fits) if fits else None,
        "kv_tokens": figure_json(min(tokens, key=lambda figure: figure.value)) if tokens else None,
        "ranks": [rank_json(rank) for rank in found.ranks],
        "settings": {name: msgspec.to_builtins(setting) for name, setting in found.log.settings.items()},
    }
    if found.setup is not None:
        memory["setup"] = msgspec.to_builtins(found.setup)
    return memory
