"""`trtdx ranks smoke`: runs the collectives through a launcher and says what failed, where, and how fast the rest is."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.model import Report, Section, Summary, headline_from_findings
from trtdx.ranks.collect import MOST_RECORDED, Launch, launch_program
from trtdx.ranks.judges.judge import finding_from_violation
from trtdx.ranks.launch_failure import drop_marked_lines, findings_from_launch
from trtdx.ranks.launchers import RankLauncher, launcher_kind
from trtdx.ranks.programs import COLLECTIVES, python_argv
from trtdx.ranks.remote.marked_lines import SMOKE_MARK, parse_marked
from trtdx.ranks.smoke.judge import judge_smoke
from trtdx.ranks.smoke.nouns import SmokeEvent, SmokeQuestion, SmokeRun
from trtdx.redact import make_redactor
from trtdx.words import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

SURE = 0.7  # how sure a cause in the launcher's words must be to explain what the ranks said


def run_smoke(question: SmokeQuestion) -> SmokeRun:
    """Run the test to its end or its time limit."""
    asked_facts = {
        "backend": question.backend,
        "sizes": list(question.sizes),
        "step_s": question.step_s,
        "start_s": question.start_s,
        "expected": question.expected,
        "spawn": question.spawn,
        "master": list(question.master),
    }
    program = python_argv(question.python, COLLECTIVES, json.dumps(asked_facts))
    launch = launch_program(question.launcher.command_lines(program)[0], question.timeout_s)
    return SmokeRun(question, tuple(read_events(launch.output)), launch)


def read_events(output: str) -> Iterator[SmokeEvent]:
    """Return what ranks said in a launcher's output; what is no event is left out."""
    events = map(_read_event, parse_marked(SMOKE_MARK, output))
    return (event for event in events if event is not None)


def _read_event(facts: Any) -> SmokeEvent | None:
    try:
        return msgspec.convert(facts, SmokeEvent, strict=False)
    except (msgspec.ValidationError, TypeError, ValueError):
        return None


class SmokeRecording(msgspec.Struct, frozen=True):
    """What ranks said in a smoke test, as a file: how many were started, their events, how the launcher ended."""

    expected: int
    events: tuple[SmokeEvent, ...]
    launcher: tuple[str, ...] = ("mpirun",)
    status: int | None = 0
    output: str = ""


def read_recorded_smoke(host: Host, path: str) -> SmokeRun:
    """Return a smoke test that `--save` wrote.

    Raises:
        InputError: the file holds none.
    """
    with host.open(path) as file:
        data = file.read(MOST_RECORDED)
    try:
        kept = msgspec.json.decode(data, type=SmokeRecording)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise InputError(f"{path} is no recording of a smoke test: {err}", fix="trtdx ranks smoke --save FILE") from err
    launcher = RankLauncher(kept.launcher, launcher_kind(kept.launcher), kept.expected)
    launch = Launch(kept.launcher, kept.status, kept.output, "")
    return SmokeRun(SmokeQuestion(launcher, kept.expected), kept.events, launch)


def save_smoke(host: Host, run: SmokeRun, path: str) -> None:
    """Write what the ranks said to a file that `--from` reads."""
    output = make_redactor(hide_hosts=False)(drop_marked_lines(run.launch.output))
    words = run.question.launcher.words
    kept = SmokeRecording(run.question.expected, run.events, words, run.launch.status, output)
    host.write(path, msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def report_smoke(run: SmokeRun, book: RuleBook) -> Report:
    """Return what failed, or how fast every pair is."""
    violations = [finding_from_violation(violation, book) for violation in judge_smoke(run)]
    findings = _with_launcher_causes(run, violations, book)
    sections = tuple(_smoke_sections(run))
    text = headline_from_findings(findings) if findings else _healthy_words(run)
    ranks = tuple(sorted(run.host_of_rank))
    return Report(Summary(text, inputs=len(ranks), ranks=ranks, partial=tuple(_notes(run))), tuple(findings), sections)


def _with_launcher_causes(run: SmokeRun, violations: list[Finding], book: RuleBook) -> list[Finding]:
    """Return the findings, led by what the launcher itself names as the cause, where the test did not get to its end."""
    if not violations or not run.launch.is_failed or violations[0].code in ("DX435", "DX442"):
        return violations
    known = {finding.code for finding in violations}
    causes = [
        finding
        for finding in findings_from_launch([run.launch], book)
        if finding.confidence >= SURE and finding.code not in known and finding.code not in CONSEQUENCES
    ]
    if not causes:
        return violations
    named = next((finding for finding in violations if finding.ranks), None)
    lead = msgspec.structs.replace(causes[0], ranks=named.ranks if named else causes[0].ranks)
    return [lead, *causes[1:], *violations]


# What a launcher says when a rank ends itself, as ours do.
CONSEQUENCES = ("DX443", "DX445", "DX415", "DX451", "DX429", "DX440")


def _healthy_words(run: SmokeRun) -> str:
    pairs = [entry.bytes_per_s for entry in run.of_kind("pair")]
    speed = f", {format_bytes(statistics.median(pairs))}/s between two ranks" if pairs else ""
    ranks = format_count(len(run.of_kind("done")), "rank")
    return (
        f"{ranks} of {run.of_kind('start')[0].library.split(',')[0]} passed every step{speed}"
        if run.of_kind("start")
        else "nothing ran"
    )


def _smoke_sections(run: SmokeRun) -> Iterator[Section]:
    hosts = run.host_of_rank
    pairs = run.of_kind("pair")
    if pairs:
        rows = tuple(
            (
                f"{entry.pair[0]} - {entry.pair[1]}",
                f"{hosts.get(entry.pair[0], '')} - {hosts.get(entry.pair[1], '')}",
                f"{entry.latency_s * 1e6:.1f} us",
                f"{format_bytes(entry.bytes_per_s)}/s",
            )
            for entry in sorted(pairs, key=lambda entry: entry.pair)
        )
        yield Section("pairs", "Pairs of ranks", ("ranks", "hosts", "latency", "bandwidth"), rows, after_findings=True)
    times = [row for entry in run.of_kind("done") for row in entry.times]
    if times:
        cells = tuple((row["kind"], format_bytes(row["size"]), f"{row['seconds'] * 1e3:.2f} ms") for row in times)
        yield Section(
            "collectives", "Collectives, as rank 0 saw them", ("step", "size", "time"), cells, after_findings=True
        )


def _notes(run: SmokeRun) -> Iterator[str]:
    if run.launch.status is None and run.launch.problem:
        yield f"{run.launch.argv[0]} {run.launch.problem}"
    if run.crowded_hosts:
        hosts = ", ".join(sorted(run.crowded_hosts))
        yield f"{hosts} has more ranks than cores: times are those of processes that wait for a core"
    if not run.events:
        tail = drop_marked_lines(run.launch.output).strip().splitlines()[-3:]
        yield from (f"launcher: {line.strip()}" for line in tail)
