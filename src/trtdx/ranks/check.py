"""`trtdx ranks check`: what every rank sees, judged before the job is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.model import Evidence, Report, Section, Severity, Summary, headline_from_findings
from trtdx.ranks.collect import ProbeRun, probe_ranks
from trtdx.ranks.judges.gpus import visible_gpus
from trtdx.ranks.judges.judge import finding_from_violation, judge_job
from trtdx.ranks.judges.mpi import library_text, mpi4py_problem
from trtdx.ranks.judges.table import JUDGES
from trtdx.ranks.launch_failure import findings_from_launch
from trtdx.ranks.nccl_interfaces import interfaces_for_nccl
from trtdx.ranks.nouns import UNLIMITED, RankProbe, RankViolation
from trtdx.words import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.host import Host
    from trtdx.model import Finding
    from trtdx.ranks.collect import RankQuestion
    from trtdx.ranks.nouns import ProbedJob
    from trtdx.rule import RuleBook


def check_ranks(
    host: Host, question: RankQuestion, book: RuleBook, mapping: Sequence[Finding] = ()
) -> tuple[Report, ProbeRun]:
    """Return what is wrong with the ranks that a launcher starts, and what they saw."""
    run = probe_ranks(host, question)
    return report_probes(run, book, mapping), run


def report_probes(run: ProbeRun, book: RuleBook, mapping: Sequence[Finding] = ()) -> Report:
    """Return what is wrong with ranks that were looked at."""
    failures = findings_from_launch(run.launches, book) if _is_incomplete(run) else []
    judged = judge_job(JUDGES, run.job, book) if run.job.probes else []
    missing = [] if failures else [finding_from_violation(violation, book) for violation in _absent_ranks(run)]
    findings = (*_by_severity([*mapping, *failures, *missing, *judged]),)
    sections = (ranks_section(run.job),) if run.job.probes else ()
    text = headline_from_findings(findings) if findings else _healthy_words(run.job)
    notes = tuple(_unjudged_notes(run))
    numbers = tuple(sorted({probe.rank for probe in run.job.probes if probe.rank is not None}))
    return Report(Summary(text, inputs=len(run.job.probes), ranks=numbers, partial=notes), findings, sections)


def _by_severity(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: -finding.severity.badness)


def _is_incomplete(run: ProbeRun) -> bool:
    return len(run.job.probes) < _started(run.job) or any(launch.is_failed for launch in run.launches)


def _started(job: ProbedJob) -> int:
    return job.world if job.is_launched else 1


def _absent_ranks(run: ProbeRun) -> Iterator[RankViolation]:
    """Ranks that were to start and said nothing, although the launcher complained of nothing known."""
    started, here = _started(run.job), len(run.job.probes)
    if not run.launches or here >= started or run.job.launcher[:1] == ("ssh",):
        return
    launch = run.launches[0]
    tail = [line for line in launch.output.splitlines() if line.strip() and "@trtdx-" not in line][-3:]
    ending = launch.problem or f"ended with status {launch.status}"
    yield RankViolation(
        "DX436",
        f"{here} of {started} ranks started: {' '.join(run.job.launcher)} {ending}",
        tuple(Evidence("launcher", line) for line in tail) or (Evidence("launcher", ending),),
        severity=Severity.ERROR,
        confidence=0.6,
    )


def _healthy_words(job: ProbedJob) -> str:
    hosts = format_count(len({probe.host for probe in job.probes}), "host")
    return (
        f"nothing is wrong with {format_count(len(job.probes), 'rank')} on {hosts}"
        if job.is_launched
        else f"nothing is wrong here for {format_count(max(1, job.world), 'rank')}"
    )


def _unjudged_notes(run: ProbeRun) -> Iterator[str]:
    """Yield what could not be judged, so that silence is not taken for health."""
    job = run.job
    if run.unreadable:
        yield f"{format_count(run.unreadable, 'probe')} could not be read"
    for probe in job.probes:
        yield from (
            f"{probe.title}: {part} could not be looked at: {problem}" for part, problem in probe.problems.items()
        )
    if job.probes and not any(visible_gpus(probe) for probe in job.probes):
        yield "no GPU was seen, so GPU visibility and peer access were not judged"
    silent = [probe for probe in job.probes if not library_text(probe)]
    if silent and "libmpi.so.12" not in mpi4py_problem(silent[0]):
        problem = mpi4py_problem(silent[0]).strip().splitlines()
        yield f"{silent[0].executable} on {silent[0].host} cannot load mpi4py ({problem[-1] if problem else 'not asked'}), so its MPI was not judged"
    if job.world > 1 and not job.is_launched:
        yield "one process was looked at; --launcher 'mpirun -n N' looks at every rank as it is started"


def ranks_section(job: ProbedJob) -> Section:
    """Return what each rank sees, as a table."""
    columns = ("rank", "host", "pid", "GPUs", "NCCL's interface", "/dev/shm free", "memlock", "open files", "MPI")
    return Section(
        "ranks", "Ranks", columns, tuple(_rank_row(probe) for probe in job.probes[:512]), after_findings=True
    )


def _rank_row(probe: RankProbe) -> tuple[str | int | None, ...]:
    chosen = interfaces_for_nccl(probe)
    gpus = visible_gpus(probe)
    library = library_text(probe).splitlines()
    return (
        probe.rank,
        probe.host,
        probe.pid,
        ",".join(gpus) if gpus is not None else "none",
        f"{chosen[0].name} {chosen[0].address}" if chosen else "none",
        format_bytes(probe.shm.free),
        _limit_words(probe, "memlock", is_bytes=True),
        _limit_words(probe, "nofile"),
        library[0].split(",")[0][:24] if library else "",
    )


def _limit_words(probe: RankProbe, name: str, *, is_bytes: bool = False) -> str:
    limit = probe.soft_limit(name)
    if limit == UNLIMITED:
        return "unlimited"
    return format_bytes(limit) if is_bytes else str(limit)
