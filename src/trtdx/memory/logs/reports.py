"""The reports of `--log` and `--calibrate`, with their JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.memory.ledger.calibration import load_constants
from trtdx.memory.logs.report import report_calibration, report_log_memory
from trtdx.memory.model.source import MODEL_HINT
from trtdx.memory.question.setup import MemoryRequest, resolve_setup
from trtdx.memory.report.plan import MemoryReport, figure_json, rank_json

if TYPE_CHECKING:
    from trtdx.host import Host
    from trtdx.memory.logs.report import LogReport
    from trtdx.memory.nouns import Setup
    from trtdx.model import Report
    from trtdx.rule import RuleBook


def log_report(host: Host, request: MemoryRequest, book: RuleBook, logs: tuple[str, ...]) -> MemoryReport:
    """Return the ledger that logs tell, what failed, and the smallest change that fits."""
    constants = load_constants(host)
    result = report_log_memory(host, logs, _requested_setup(host, request), book=book, constants=constants)
    return _memory_report(result.report, _log_memory_json(result))


def calibration_report(host: Host, request: MemoryRequest, logs: tuple[str, ...], book: RuleBook) -> MemoryReport:
    """Return what was learnt from logs of one set-up."""
    setup = _requested_setup(host, request)
    if setup is None:
        raise InputError("a calibration needs to know the model of the logs", fix=f"--model DIR, or {MODEL_HINT}")
    result = report_calibration(host, logs, setup, book=book)
    constants = msgspec.to_builtins(result.calibration.constants) if result.calibration else {}
    return _memory_report(result.report, {"constants": constants})


def _requested_setup(host: Host, request: MemoryRequest) -> Setup | None:
    """Return the set-up where enough was said of the model."""
    if not (request.model or request.dims or request.commands or request.options):
        return None
    return resolve_setup(host, request).setup


def _memory_report(report: Report, memory: dict[str, Any]) -> MemoryReport:
    return MemoryReport(summary=report.summary, findings=report.findings, sections=report.sections, memory=memory)


def _log_memory_json(result: LogReport) -> dict[str, Any]:
    fits = [rank.fits for rank in result.ranks if rank.fits is not None]
    tokens = [rank.kv_tokens for rank in result.ranks if rank.kv_tokens.value]
    memory: dict[str, Any] = {
        "fits": all(fits) if fits else None,
        "kv_tokens": figure_json(min(tokens, key=lambda figure: figure.value)) if tokens else None,
        "ranks": [rank_json(rank) for rank in result.ranks],
        "settings": {name: msgspec.to_builtins(setting) for name, setting in result.log.settings.items()},
    }
    if result.setup is not None:
        memory["setup"] = msgspec.to_builtins(result.setup)
    return memory
