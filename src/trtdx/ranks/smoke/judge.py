"""Who is to blame in a smoke test that did not pass: the rank, the pair or the step at which it ended."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.judges.mpi import abi_violation
from trtdx.ranks.launchers import launcher_kind, mpi_family
from trtdx.ranks.nouns import RankProbe, RankViolation
from trtdx.words import abbreviate_list, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.model import Fix
    from trtdx.ranks.smoke.nouns import SmokeEvent, SmokeRun

SLOW_SHARE = 0.2  # of the median of its kind; busy machines halve a pair now and then
FEWEST_PAIRS = 4


def judge_smoke(run: SmokeRun) -> Iterator[RankViolation]:
    """Yield what went wrong, the cause first; nothing where every rank passed."""
    alone = run.of_kind("alone")
    if len(alone) > 1 or (alone and run.question.expected > 1):
        yield _lone_worlds(run, alone)
        return
    failed = sorted(run.of_kind("failed"), key=lambda entry: entry.number)
    stuck = sorted(run.of_kind("stuck"), key=lambda entry: entry.number)
    if failed:
        yield _failed_step(run, failed)
    elif stuck:
        yield _stuck_step(run, stuck)
    elif not _is_complete(run):
        yield _vanished(run)
    else:
        yield from _slow_pairs(run)


def _is_complete(run: SmokeRun) -> bool:
    return len(run.of_kind("done")) == run.question.expected


def _as_probes(run: SmokeRun, ranks: Sequence[int]) -> tuple[RankProbe, ...]:
    hosts = run.host_of_rank
    return tuple(RankProbe(host=hosts.get(rank, ""), environment={"RANK": str(rank)}) for rank in ranks)


def _lone_worlds(run: SmokeRun, alone: list[SmokeEvent]) -> RankViolation:
    """Processes that each found themselves alone: two MPIs are mixed, or Slurm told them nothing."""
    start = run.of_kind("start")[0]
    library = mpi_family(start.library) or "its MPI"
    words = run.question.launcher.words
    by_srun = launcher_kind(words) == "srun"
    message = f"{len(alone)} processes were started, and each is rank 0 of a world of one: "
    if by_srun:
        plugin = "pmix" if library == "Open MPI" else "pmi2"
        message += f"srun told {library} nothing it understands"
        fix = launch_fix(
            f"choose the plugin that {library} speaks", f"srun --mpi={plugin} -n {run.question.expected} COMMAND"
        )
    else:
        message += f"the launcher is of another MPI than the library, {library}"
        own = "mpirun.openmpi" if library == "Open MPI" else "mpiexec.hydra"
        fix = launch_fix(f"start with the launcher of {library}", f"{own} -n {run.question.expected} COMMAND")
    return RankViolation(
        "DX442" if by_srun else "DX435",
        message,
        (Evidence("MPI library", start.library), Evidence("launcher", " ".join(words))),
        (fix,),
        verify=f"trtdx ranks smoke -n {run.question.expected}",
    )


def _failed_step(run: SmokeRun, failed: list[SmokeEvent]) -> RankViolation:
    first = failed[0]
    same = [entry for entry in failed if entry.number == first.number]
    ranks = sorted({entry.rank for entry in same})
    host = run.host_of_rank.get(first.rank, "")
    where = f"rank {first.rank}{f' on {host}' if host else ''}"
    if first.is_data:
        peers = [peer for peer in first.peers if peer not in ranks] if first.is_pair else []
        sender = f" from rank {peers[0]}" if peers else ""
        return RankViolation(
            "DX1312",
            f"{where} received wrong data{sender} in {first.step_words}: {first.error.partition(': ')[2]}",
            tuple(Evidence(f"rank {entry.rank}: {entry.step_words}", entry.error) for entry in same[:4]),
            probes=_as_probes(run, ranks),
        )
    if violation := abi_violation(f"{where}: {first.step_words}", first.error, _as_probes(run, ranks)):
        return violation
    is_early = first.kind in ("start", "spawn", "")
    code = "DX441" if first.kind == "spawn" else "DX428" if is_early and run.question.backend != "mpi" else "DX1314"
    return RankViolation(
        code,
        f"{where} failed in {first.step_words}: {first.error.splitlines()[0][:200]}",
        tuple(Evidence(f"rank {entry.rank}: {entry.step_words}", entry.error) for entry in same[:4]),
        (_spawn_fix(),) if first.kind == "spawn" else _install_fix(first),
        _as_probes(run, ranks),
        confidence=0.9,
    )


def _spawn_fix() -> Fix:
    return launch_fix(
        "start the program under one mpirun, which spawns its workers", "mpirun -n 1 --oversubscribe COMMAND"
    )


def _install_fix(first: SmokeEvent) -> tuple[Fix, ...]:
    if "No module named 'mpi4py'" in first.error:
        return (
            launch_fix(
                "name the Python of the job, which has mpi4py", "trtdx ranks smoke -n 2 --python /opt/venv/bin/python"
            ),
            launch_fix("or test with torch instead", "trtdx ranks smoke -n 2 --backend gloo"),
        )
    return ()


def _stuck_step(run: SmokeRun, stuck: list[SmokeEvent]) -> RankViolation:
    """The earliest step at which somebody waits: between two ranks these two are named, else who did not come."""
    evidence = tuple(Evidence(f"rank {entry.rank}", f"no progress in {entry.step_words}") for entry in stuck[:6])
    pairs = broken_pairs(stuck)
    if pairs:
        return _broken_pairs(run, pairs, evidence)
    first = stuck[0]
    waiting = sorted({entry.rank for entry in stuck if entry.number == first.number})
    if first.kind in ("start", "spawn", "workers"):
        what = f"ranks {abbreviate_list(waiting)} did not get past {first.kind} within {run.question.start_s:g} s"
        code = "DX441" if first.kind in ("spawn", "workers") else "DX436"
        fixes = (_spawn_fix(),) if code == "DX441" else ()
        return RankViolation(code, what, evidence, fixes, _as_probes(run, waiting), confidence=0.85)
    heard = {entry.rank for entry in run.events if entry.event in ("stuck", "done", "failed")}
    missing = sorted(set(range(run.question.expected)) - heard)
    noun = "rank" if len(missing) == 1 else "ranks"
    who = f"{noun} {abbreviate_list(missing)} did not come to it" if missing else "no rank got on"
    return RankViolation(
        "DX416",
        f"{first.step_words} made no progress within {run.question.step_s:g} s: {who}",
        evidence,
        probes=_as_probes(run, missing or waiting),
        confidence=0.9,
    )


def broken_pairs(stuck: Sequence[SmokeEvent]) -> list[SmokeEvent]:
    """Return one event of each pair of which both wait for the other; who only waits for one of these is a victim."""
    waiting: dict[tuple[str, tuple[int, ...]], set[int]] = {}
    for entry in stuck:
        if entry.is_pair:
            waiting.setdefault((entry.kind, entry.peers), set()).add(entry.rank)
    return [
        next(entry for entry in stuck if (entry.kind, entry.peers) == key)
        for key, ranks in waiting.items()
        if ranks == set(key[1])
    ]


def _broken_pairs(run: SmokeRun, pairs: list[SmokeEvent], evidence: tuple[Evidence, ...]) -> RankViolation:
    hosts, (one, other) = run.host_of_rank, pairs[0].peers
    more = f", nor can {format_count(len(pairs) - 1, 'other pair')}" if len(pairs) > 1 else ""
    return RankViolation(
        "DX406",
        f"ranks {one} ({hosts.get(one, '?')}) and {other} ({hosts.get(other, '?')}) cannot exchange "
        f"{format_bytes(pairs[0].size)} within {run.question.step_s:g} s{more}",
        evidence,
        probes=_as_probes(run, sorted({rank for pair in pairs for rank in pair.peers})),
        confidence=0.9,
    )


def _vanished(run: SmokeRun) -> RankViolation:
    """Ranks that never started, or ended without a word."""
    started, done = set(run.host_of_rank), {entry.rank for entry in run.of_kind("done")}
    expected = run.question.expected
    ending = run.launch.problem or f"status {run.launch.status}"
    if not started:
        return RankViolation(
            "DX436",
            f"no rank started: the launcher ended with {ending}",
            (Evidence("launcher", " ".join(run.launch.argv[:8])),),
            confidence=0.6,
        )
    if len(started) < expected:
        absent = sorted(set(range(expected)) - started)
        return RankViolation(
            "DX436",
            f"{len(started)} of {expected} ranks started; ranks {abbreviate_list(absent)} did not",
            (Evidence("launcher", f"ended with {ending}"),),
            probes=_as_probes(run, absent),
            confidence=0.7,
        )
    lost = _ranks_in_launcher_words(run) or sorted(started - done)
    return RankViolation(
        "DX445",
        f"{'rank' if len(lost) == 1 else 'ranks'} {abbreviate_list(lost)} ended in the middle of the test without a word",
        (Evidence("launcher", f"ended with {ending}"),),
        probes=_as_probes(run, lost),
        confidence=0.8,
    )


# How launchers name the rank that ended first; the others they end themselves.
BLAMED = re.compile(
    r"process rank (\d+) with PID|task (\d+): (?:Killed|Exited|Segm|Abort|Bus|Terminated)|"
    r"failed \(exitcode: \S+\) local_rank: (\d+)"
)


def _ranks_in_launcher_words(run: SmokeRun) -> list[int]:
    match = BLAMED.search(run.launch.output)
    return [int(number) for number in match.groups() if number] if match else []


def _slow_pairs(run: SmokeRun) -> Iterator[RankViolation]:
    """Pairs that are far slower than the others of their kind: on one host, or between hosts."""
    hosts, crowded = run.host_of_rank, run.crowded_hosts
    kinds: dict[bool, list[SmokeEvent]] = {}
    for entry in run.of_kind("pair"):
        if crowded & {hosts.get(rank, "") for rank in entry.pair}:
            continue
        kinds.setdefault(hosts.get(entry.pair[0]) == hosts.get(entry.pair[1]), []).append(entry)
    for pairs in kinds.values():
        if len(pairs) < FEWEST_PAIRS:
            continue
        usual = statistics.median(entry.bytes_per_s for entry in pairs)
        slow = [entry for entry in pairs if entry.bytes_per_s < SLOW_SHARE * usual]
        if not slow or len(slow) > len(pairs) // 2:
            continue
        worst = min(slow, key=lambda entry: entry.bytes_per_s)
        yield RankViolation(
            "DX1313",
            f"ranks {worst.pair[0]} and {worst.pair[1]} exchange {format_bytes(worst.bytes_per_s)}/s, "
            f"others {format_bytes(usual)}/s ({format_count(len(slow), 'slow pair')})",
            tuple(
                Evidence(f"ranks {entry.pair[0]} - {entry.pair[1]}", f"{format_bytes(entry.bytes_per_s)}/s")
                for entry in slow[:4]
            ),
            probes=_as_probes(run, worst.pair),
            severity=Severity.WARNING,
            confidence=0.7,
        )
