"""`trtdx memory log` and `trtdx memory calibrate`: what was read, as a report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.calibrate import calibrated
from trtdx.diagnose.cause import findings_from
from trtdx.diagnose.match import Matcher
from trtdx.diagnose.memory_lines import HOST_MEMORY, OUT_OF_MEMORY
from trtdx.knowledge.load import load_book
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.memory.ledger.calibration import Constants, load_constants, store_constants
from trtdx.memory.logs.calibrate import (
    Calibration,
    calibrate,
    constants_of,
    kv_differs,
    several_servers,
    with_log_settings,
)
from trtdx.memory.logs.commands import pasteable
from trtdx.memory.logs.diagnose_numbers import explained, index_of, without_temporary
from trtdx.memory.logs.oom import PostMortem, post_mortem
from trtdx.memory.logs.read import LogMemory, facts_of, memory_in, read_log
from trtdx.memory.nouns import COMPONENTS, GIB, Ledger, RankLedger, Setup
from trtdx.model import Evidence, Finding, Report, Section, Summary, Symptom, headline
from trtdx.redact import redacted
from trtdx.words import counted, listed, size_in_words, thousands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtdx.diagnose.facts import SourceFacts
    from trtdx.host import Host
    from trtdx.memory.logs.verdict import Verdict
    from trtdx.model import Cell
    from trtdx.rule import RuleBook

_FLAG = re.compile(r"--\w+")
_MEMORY = OUT_OF_MEMORY | HOST_MEMORY


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report for people, and the parts it was made from for `--json`."""

    report: Report
    log: LogMemory
    ranks: tuple[RankLedger, ...] = ()
    post_mortem: PostMortem | None = None
    setup: Setup | None = None  # with what the log prints of its settings
    planned: Ledger | None = None
    calibration: Calibration | None = None


def memory_of_log(
    host: Host,
    paths: Sequence[str],
    setup: Setup | None = None,
    *,
    book: RuleBook | None = None,
    constants: Constants | None = None,
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
    facts, problems = facts_of(host, paths, Matcher(book, redacted))
    log = memory_in(facts, problems)
    problems += [note for rank in log.ranks if (note := several_servers(log, rank))][:1]
    of_log = with_log_settings(setup, log) if setup is not None else None
    planned = _planner(constants)(of_log) if of_log is not None else None
    plan = None
    if of_log is not None:  # what a change would give is planned with what this log measured
        plan = _planner(constants_of(log, _planner(None)(of_log), constants))
    result = post_mortem(log, of_log, plan)
    name = setup.model if setup is not None and not re.search(r"\s", setup.model) else ""
    findings, others = _findings(facts, log, book, result.verdicts, name or "MODEL")
    findings += _checks(log, planned, findings, book)
    text = _headline(log, result, findings, others)
    summary = Summary(
        text=text,
        inputs=len(facts),
        bytes_read=sum(each.bytes_read for each in facts),
        lines_read=log.lines,
        ranks=log.ranks if len(log.ranks) > 1 else (),
        partial=tuple(problems),
    )
    free = {rank.rank: _free_then(log, result, rank) for rank in result.ranks}
    sections = (*_ledger_sections(result.ranks, planned, free), *_settings_section(log))
    return LogReport(
        report=Report(summary, tuple(findings), sections),
        log=log,
        ranks=result.ranks,
        post_mortem=result,
        setup=of_log,
        planned=planned,
    )


def _planner(constants: Constants | None) -> Callable[[Setup], Ledger]:
    def planned(setup: Setup) -> Ledger:
        from trtdx.memory.ledger.plan import plan

        return plan(setup, constants)

    return planned


def _findings(
    facts: Sequence[SourceFacts], log: LogMemory, book: RuleBook, verdicts: Sequence[Verdict], model: str
) -> tuple[list[Finding], int]:
    """Return what the log's words and its numbers say about memory, and how many findings are about other things."""
    found = without_temporary(findings_from(facts, book)[0], log)
    memory = [each for each in found if each.code in _MEMORY or book.get(each.code).front.area == "memory"]
    others = len(found) - len(memory)
    for verdict in verdicts:
        at = index_of(memory, verdict)
        if at is not None and (memory[at].code == verdict.code or verdict.plain):
            memory = explained(memory, [verdict])
        else:
            told = memory.pop(at) if at is not None else None
            memory.insert(at or 0, _finding(verdict, told, book))
    made = {fix for verdict in verdicts for fix in verdict.fixes}
    return [
        msgspec.structs.replace(
            each,
            confidence=calibrated(each.confidence),
            fixes=tuple(pasteable(log, fix, model, own=fix in made) for fix in each.fixes),
        )
        for each in memory
    ], others


def _finding(verdict: Verdict, told: Finding | None, book: RuleBook) -> Finding:
    """Return a verdict as a finding in its page's words; what the log's words said is its symptom."""
    rule = book.get(verdict.code)
    said = set(_FLAG.findall(" ".join(each.command or "" for each in verdict.fixes)))
    rest = [
        each for each in rule.front.fix if not said.issuperset(_FLAG.findall(each.command or "-")) or not said
    ]
    own = (*verdict.fixes, *rest, *((verdict.next_step,) if verdict.next_step else ()))
    symptoms = (Symptom(told.code, told.message, str(told.where)), *told.symptoms) if told else ()
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=rule.front.severity,
        message=verdict.message,
        why=f"{rule.why} {verdict.why}".strip(),
        fixes=own,
        verify=rule.front.verify,
        confidence=verdict.confidence,
        where=verdict.evidence[0].where if verdict.evidence else "",
        evidence=verdict.evidence,
        symptoms=symptoms,
    )


def _checks(
    log: LogMemory, planned: Ledger | None, findings: Sequence[Finding], book: RuleBook
) -> Iterator[Finding]:
    differs = kv_differs(log, planned) if planned is not None else None
    if planned is not None and differs is not None:
        measured, plan, source = differs
        values = {"measured": measured, "planned": plan, "model": planned.setup.model or "the model"}
        yield finding_from(book.get("DX882"), Violation((Evidence(source, f"{measured} bytes"),), values))
    if not log.said and not findings:
        yield finding_from(
            book.get("DX917"), Violation((Evidence(listed(log.names), counted(log.lines, "line")),))
        )


def _headline(log: LogMemory, result: PostMortem, findings: Sequence[Finding], others: int) -> str:
    more = f"; `trtdx diagnose` finds {counted(others, 'other cause')} in it" if others else ""
    if findings:
        return headline(findings) + more
    tokens = max((each.kv_tokens.value for each in result.ranks), default=0)
    pool = max((each.bytes_of("kv_pool") for each in result.ranks), default=0)
    held = (
        f"the KV cache holds {thousands(tokens)} tokens in {size_in_words(pool)}"
        if pool
        else "no failure is told"
    )
    return f"{counted(len(log.said), 'statement')} about memory; {held}{more}"


def _free_then(log: LogMemory, result: PostMortem, rank: RankLedger) -> int | None:
    """Return what was free on a rank when it failed, or before its cache was made; None where the log does not say."""
    failed = next((each.free for each in result.failures if each.rank == rank.rank and each.free), None)
    if failed is not None:
        return failed.value
    said = log.last("kv.available", rank=rank.rank)
    return max(0, said.bytes("free") - rank.bytes_of("kv_pool")) if said else None


def _ledger_sections(
    ranks: Sequence[RankLedger], planned: Ledger | None, free: Mapping[int, int | None]
) -> Iterator[Section]:
    columns = ("rank", "component", "size", "from") + (("planned",) if planned else ())
    rows: list[tuple[Cell, ...]] = []
    for rank in ranks:
        plan = planned.ranks[min(rank.rank, len(planned.ranks) - 1)] if planned else None
        for each in rank.components:
            row: tuple[Cell, ...] = (
                rank.rank,
                COMPONENTS[each.name],
                size_in_words(each.bytes.value),
                each.bytes.source,
            )
            rows.append((*row, size_in_words(plan.bytes_of(each.name))) if plan else row)
        total: tuple[Cell, ...] = (rank.rank, "together", size_in_words(rank.total_bytes.value), "")
        rows.append((*total, size_in_words(plan.total_bytes.value)) if plan else total)
    if any(rank.components for rank in ranks):
        notes = [note for rank in ranks if (note := _rank_note(rank, free.get(rank.rank)))]
        yield Section("memory-log", "Memory, as the log tells it", columns, tuple(rows), "; ".join(notes[:4]))


MOST_CONTEXT = 4 * GIB  # that the context and libraries of one process take


def _rank_note(rank: RankLedger, free: int | None) -> str:
    """Return what the parts add up to; what was free is not what nobody knows of."""
    told = [f"rank {rank.rank}:"]
    if rank.capacity and free is not None:
        told.append(f"{size_in_words(free)} of {size_in_words(rank.capacity)} were free")
    if rank.capacity:
        left = max(0, rank.capacity - rank.total_bytes.value - (free or 0))
        whole = "" if free is not None else f" of {size_in_words(rank.capacity)}"
        told += [f"{size_in_words(left)}{whole} are not accounted for"] if left > 0.01 * rank.capacity else []
    before = rank.component("cuda_context")
    if before is not None and before.bytes.value > MOST_CONTEXT and "other processes" in before.why:
        told.append(
            f"{size_in_words(before.bytes.value)} were in use before the cache and are not named: "
            "more than a CUDA context takes, so look for other processes"
        )
    if rank.kv_tokens.value:
        told.append(f"{thousands(rank.kv_tokens.value)} tokens of KV cache")
    if rank.kv_bytes_per_token.value:
        told.append(f"{thousands(rank.kv_bytes_per_token.value)} bytes each")
    return told[0] + " " + ", ".join(told[1:]) if told[1:] else ""


def _settings_section(log: LogMemory) -> Iterator[Section]:
    if log.settings:
        rows = tuple(
            (each.name, each.value, each.where)
            for each in sorted(log.settings.values(), key=lambda s: s.name)
        )
        yield Section("memory-settings", "Settings that the log prints", ("setting", "value", "where"), rows)


def calibrate_report(
    host: Host,
    paths: Sequence[str],
    setup: Setup,
    *,
    book: RuleBook | None = None,
    store: bool = True,
) -> LogReport:
    """Re-fit the constants from logs of one set-up, keep them, and report what changed and from which lines."""
    book = book or load_book(host)
    known = load_constants(host)
    logs = [read_log(host, path) for path in paths]
    result = calibrate([(log, setup) for log in logs], _planner(None), known)
    path = store_constants(host, result.constants) if store and result.learnt else ""
    findings = [
        finding_from(
            book.get("DX883"),
            Violation(
                (Evidence(listed(each.names), each.reason),),
                {"log": listed(each.names), "reason": each.reason},
            ),
        )
        for each in result.refused
    ]
    rows = tuple(
        (
            *each.key.split("/"),
            round(each.old.value, 3) if each.old else None,
            round(each.new.value, 3),
            f"{each.new.low:.3f} to {each.new.high:.3f}",
            each.new.logs,
            listed(each.new.lines, 4),
        )
        for each in result.learnt
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
    text = f"{counted(len(result.learnt), 'factor')} learnt from {counted(used, 'log')}, {len(result.refused)} refused"
    summary = Summary(
        text=text,
        inputs=len(logs),
        bytes_read=sum(each.size for each in logs),
        lines_read=sum(each.lines for each in logs),
    )
    whole = logs[0] if logs else LogMemory((), {})
    return LogReport(
        report=Report(summary, tuple(findings), (section,) if rows else ()),
        log=whole,
        setup=setup,
        calibration=result,
    )
