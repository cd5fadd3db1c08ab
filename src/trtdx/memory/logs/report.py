"""`trtdx memory log` and `trtdx memory calibrate`: what was read, as a report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.diagnose.calibrate import calibrated_confidence
from trtdx.diagnose.cause import findings_from
from trtdx.diagnose.matcher import Matcher
from trtdx.diagnose.memory_lines import HOST_MEMORY_CODES, OUT_OF_MEMORY_CODES
from trtdx.knowledge.load import load_book
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.memory.ledger.calibration import CalibrationConstants, load_constants, store_constants
from trtdx.memory.logs.calibrate import (
    Calibration,
    calibrate_factors,
    constants_from_log,
    find_several_servers,
    kv_token_mismatch,
    with_log_settings,
)
from trtdx.memory.logs.commands import make_pasteable
from trtdx.memory.logs.diagnose_numbers import add_verdicts, drop_temporary_warnings, finding_index
from trtdx.memory.logs.oom import PostMortem, explain_memory_failure
from trtdx.memory.logs.read import LogMemory, memory_from_facts, read_log_facts, read_memory_log
from trtdx.memory.nouns import COMPONENTS, GIB, MemoryLedger, RankLedger, Setup
from trtdx.model import Evidence, Finding, Report, Section, Summary, Symptom, headline_from_findings
from trtdx.redact import redact_secrets
from trtdx.words import abbreviate_list, format_bytes, format_count, group_digits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.diagnose.nouns import SourceFacts
    from trtdx.host import Host
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.logs.verdict import MemoryVerdict
    from trtdx.model import Cell
    from trtdx.rule import RuleBook

_FLAG = re.compile(r"--\w+")
_MEMORY_CODES = OUT_OF_MEMORY_CODES | HOST_MEMORY_CODES


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report for people, and the parts it was made from for `--json`."""

    report: Report
    log: LogMemory
    ranks: tuple[RankLedger, ...] = ()
    post_mortem: PostMortem | None = None
    setup: Setup | None = None  # with what the log prints of its settings
    planned: MemoryLedger | None = None
    calibration: Calibration | None = None


def report_log_memory(
    host: Host,
    paths: Sequence[str],
    setup: Setup | None = None,
    *,
    book: RuleBook | None = None,
    constants: CalibrationConstants | None = None,
) -> LogReport:
    """Return the ledger that logs tell, what failed, how much was missing, and the smallest change that fits.

    Args:
        host: where the logs are.
        paths: files, folders, cases, or `-`; all are of one run.
        setup: the set-up of that run, where the model is known; the log's own settings rule over its defaults.
        book: the rules in force.
        constants: what was calibrated before.
    """
    book = book or load_book(host)
    facts, problems = read_log_facts(host, paths, Matcher(book, redact_secrets))
    log = memory_from_facts(facts, problems)
    problems += [note for rank in log.ranks if (note := find_several_servers(log, rank))][:1]
    of_log = with_log_settings(setup, log) if setup is not None else None
    planned = _planner_with(constants)(of_log) if of_log is not None else None
    plan = None
    if of_log is not None:  # what a change would give is planned with what this log measured
        plan = _planner_with(constants_from_log(log, _planner_with(None)(of_log), constants))
    result = explain_memory_failure(log, of_log, plan)
    name = setup.model if setup is not None and not re.search(r"\s", setup.model) else ""
    findings, others = _memory_findings(facts, log, book, result.verdicts, name or "MODEL")
    findings += _extra_findings(log, planned, findings, book)
    text = _log_headline(log, result, findings, others)
    summary = Summary(
        text=text,
        inputs=len(facts),
        bytes_read=sum(source.bytes_read for source in facts),
        lines_read=log.lines,
        ranks=log.ranks if len(log.ranks) > 1 else (),
        partial=tuple(problems),
    )
    free = {rank.rank: _free_at_failure(log, result, rank) for rank in result.ranks}
    sections = (*_ledger_sections(result.ranks, planned, free), *_settings_section(log))
    return LogReport(
        report=Report(summary, tuple(findings), sections),
        log=log,
        ranks=result.ranks,
        post_mortem=result,
        setup=of_log,
        planned=planned,
    )


def _planner_with(constants: CalibrationConstants | None) -> Planner:
    def planned(setup: Setup) -> MemoryLedger:
        from trtdx.memory.ledger.plan import plan_memory

        return plan_memory(setup, constants)

    return planned


def _memory_findings(
    facts: Sequence[SourceFacts],
    log: LogMemory,
    book: RuleBook,
    verdicts: Sequence[MemoryVerdict],
    model: str,
) -> tuple[list[Finding], int]:
    """Return what the log's words and its numbers say about memory, and how many findings are about other things."""
    findings = drop_temporary_warnings(findings_from(facts, book)[0], log)
    memory = [
        finding
        for finding in findings
        if finding.code in _MEMORY_CODES or book.get(finding.code).front.area == "memory"
    ]
    others = len(findings) - len(memory)
    for verdict in verdicts:
        at = finding_index(memory, verdict)
        if at is not None and (memory[at].code == verdict.code or verdict.is_plain):
            memory = add_verdicts(memory, [verdict])
        else:
            replaced = memory.pop(at) if at is not None else None
            memory.insert(at or 0, _finding_from_verdict(verdict, replaced, book))
    own_fixes = {fix for verdict in verdicts for fix in verdict.fixes}
    return [
        replace(
            finding,
            confidence=calibrated_confidence(finding.confidence),
            fixes=tuple(make_pasteable(log, fix, model, is_own=fix in own_fixes) for fix in finding.fixes),
        )
        for finding in memory
    ], others


def _finding_from_verdict(verdict: MemoryVerdict, replaced: Finding | None, book: RuleBook) -> Finding:
    """Return a verdict as a finding in its page's words; what the log's words said is its symptom."""
    rule = book.get(verdict.code)
    flags = set(_FLAG.findall(" ".join(fix.command or "" for fix in verdict.fixes)))
    rest = [fix for fix in rule.front.fix if not flags.issuperset(_FLAG.findall(fix.command or "-")) or not flags]
    fixes = (*verdict.fixes, *rest, *((verdict.next_step,) if verdict.next_step else ()))
    symptoms = (Symptom(replaced.code, replaced.message, str(replaced.where)), *replaced.symptoms) if replaced else ()
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=rule.front.severity,
        message=verdict.message,
        why=f"{rule.why} {verdict.why}".strip(),
        fixes=fixes,
        verify=rule.front.verify,
        confidence=verdict.confidence,
        where=verdict.evidence[0].where if verdict.evidence else "",
        evidence=verdict.evidence,
        symptoms=symptoms,
    )


def _extra_findings(
    log: LogMemory, planned: MemoryLedger | None, findings: Sequence[Finding], book: RuleBook
) -> Iterator[Finding]:
    differs = kv_token_mismatch(log, planned) if planned is not None else None
    if planned is not None and differs is not None:
        measured, plan, source = differs
        values = {"measured": measured, "planned": plan, "model": planned.setup.model or "the model"}
        yield finding_from(book.get("DX882"), Violation((Evidence(source, f"{measured} bytes"),), values))
    if not log.statements and not findings:
        yield finding_from(
            book.get("DX917"),
            Violation((Evidence(abbreviate_list(log.names), format_count(log.lines, "line")),)),
        )


def _log_headline(log: LogMemory, result: PostMortem, findings: Sequence[Finding], others: int) -> str:
    more = f"; `trtdx diagnose` finds {format_count(others, 'other cause')} in it" if others else ""
    if findings:
        return headline_from_findings(findings) + more
    tokens = max((rank.kv_tokens.value for rank in result.ranks), default=0)
    pool = max((rank.component_bytes("kv_pool") for rank in result.ranks), default=0)
    cache_words = "no failure is told"
    if pool:
        cache_words = f"the KV cache holds {group_digits(tokens)} tokens in {format_bytes(pool)}"
    return f"{format_count(len(log.statements), 'statement')} about memory; {cache_words}{more}"


def _free_at_failure(log: LogMemory, result: PostMortem, rank: RankLedger) -> int | None:
    """Return what was free on a rank when it failed, or before its cache was made; None where the log does not say."""
    failed = next((failure.free for failure in result.failures if failure.rank == rank.rank and failure.free), None)
    if failed is not None:
        return failed.value
    available = log.last("kv.available", rank=rank.rank)
    return max(0, available.bytes("free") - rank.component_bytes("kv_pool")) if available else None


def _ledger_sections(
    ranks: Sequence[RankLedger], planned: MemoryLedger | None, free: Mapping[int, int | None]
) -> Iterator[Section]:
    columns = ("rank", "component", "size", "from") + (("planned",) if planned else ())
    rows: list[tuple[Cell, ...]] = []
    for rank in ranks:
        plan = planned.rank_like(rank.rank) if planned else None
        for component in rank.components:
            name, figure = component.name, component.bytes
            row: tuple[Cell, ...] = (rank.rank, COMPONENTS[name], format_bytes(figure.value), figure.source)
            rows.append((*row, format_bytes(plan.component_bytes(name))) if plan else row)
        total: tuple[Cell, ...] = (rank.rank, "together", format_bytes(rank.total_bytes.value), "")
        rows.append((*total, format_bytes(plan.total_bytes.value)) if plan else total)
    if any(rank.components for rank in ranks):
        notes = [note for rank in ranks if (note := _rank_note(rank, free.get(rank.rank)))]
        yield Section("memory-log", "Memory, as the log tells it", columns, tuple(rows), "; ".join(notes[:4]))


MOST_CONTEXT = 4 * GIB  # that the context and libraries of one process take


def _rank_note(rank: RankLedger, free: int | None) -> str:
    """Return what the parts add up to; what was free is not what nobody knows of."""
    clauses = [f"rank {rank.rank}:"]
    if rank.capacity and free is not None:
        clauses.append(f"{format_bytes(free)} of {format_bytes(rank.capacity)} were free")
    if rank.capacity:
        left = max(0, rank.capacity - rank.total_bytes.value - (free or 0))
        of_capacity = "" if free is not None else f" of {format_bytes(rank.capacity)}"
        if left > 0.01 * rank.capacity:
            clauses.append(f"{format_bytes(left)}{of_capacity} are not accounted for")
    before = rank.find_component("cuda_context")
    if before is not None and before.bytes.value > MOST_CONTEXT and "other processes" in before.why:
        clauses.append(
            f"{format_bytes(before.bytes.value)} were in use before the cache and are not named: "
            "more than a CUDA context takes, so look for other processes"
        )
    if rank.kv_tokens.value:
        clauses.append(f"{group_digits(rank.kv_tokens.value)} tokens of KV cache")
    if rank.kv_bytes_per_token.value:
        clauses.append(f"{group_digits(rank.kv_bytes_per_token.value)} bytes each")
    return clauses[0] + " " + ", ".join(clauses[1:]) if clauses[1:] else ""


def _settings_section(log: LogMemory) -> Iterator[Section]:
    if log.settings:
        settings = sorted(log.settings.values(), key=lambda setting: setting.name)
        rows = tuple((setting.name, setting.value, setting.where) for setting in settings)
        yield Section("memory-settings", "Settings that the log prints", ("setting", "value", "where"), rows)


def report_calibration(
    host: Host, paths: Sequence[str], setup: Setup, *, book: RuleBook | None = None, store: bool = True
) -> LogReport:
    """Re-fit the constants from logs of one set-up, keep them, and report what changed and from which lines."""
    book = book or load_book(host)
    constants = load_constants(host)
    logs = [read_memory_log(host, path) for path in paths]
    result = calibrate_factors([(log, setup) for log in logs], _planner_with(None), constants)
    path = store_constants(host, result.constants) if store and result.learnt else ""
    findings = [
        finding_from(
            book.get("DX883"),
            Violation(
                (Evidence(abbreviate_list(refusal.names), refusal.reason),),
                {"log": abbreviate_list(refusal.names), "reason": refusal.reason},
            ),
        )
        for refusal in result.refused
    ]
    rows = tuple(
        (
            *factor.key.split("/"),
            round(factor.old.value, 3) if factor.old else None,
            round(factor.new.value, 3),
            f"{factor.new.low:.3f} to {factor.new.high:.3f}",
            factor.new.logs,
            abbreviate_list(factor.new.lines, 4),
        )
        for factor in result.learnt
    )
    note = f"kept in {path}; `trtdx memory` uses them from now on" if path else ""
    section = Section(
        "memory-constants",
        "Factors on the plan's formulas",
        ("backend", "models", "factor", "before", "now", "band", "logs", "lines"),
        rows,
        note,
    )
    used = len(logs) - len(result.refused)
    text = f"{format_count(len(result.learnt), 'factor')} learnt from {format_count(used, 'log')}, {len(result.refused)} refused"
    summary = Summary(
        text=text,
        inputs=len(logs),
        bytes_read=sum(log.size for log in logs),
        lines_read=sum(log.lines for log in logs),
    )
    first_log = logs[0] if logs else LogMemory((), {})
    return LogReport(
        report=Report(summary, tuple(findings), (section,) if rows else ()),
        log=first_log,
        setup=setup,
        calibration=result,
    )
