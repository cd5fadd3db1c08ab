"""Runs the probe on every rank through a launcher, or reads what it printed earlier."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.errors import InputError
from trtdx.host import run_job
from trtdx.ranks.nouns import ProbedJob, RankProbe
from trtdx.ranks.programs import PROBE, python_argv
from trtdx.ranks.remote.marked_lines import PROBE_MARK, parse_marked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.host import CommandResult, Host
    from trtdx.ranks.launchers import RankLauncher

MOST_RECORDED = 64 << 20


class RankQuestion(NamedTuple):
    """What is asked about the ranks of a job."""

    launcher: RankLauncher
    world: int = 0
    python: str = "python3"
    command: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    peers: tuple[str, ...] = ()
    timeout_s: float = 60.0
    runtime: str = ""


class Launch(NamedTuple):
    """How one start of a launcher ended, and what it printed."""

    argv: tuple[str, ...]
    status: int | None
    output: str
    problem: str

    @property
    def is_failed(self) -> bool:
        return self.status != 0


class ProbeRun(NamedTuple):
    """The job that was looked at, and the launches that showed it."""

    job: ProbedJob
    launches: tuple[Launch, ...] = ()
    unreadable: int = 0


def launch_program(argv: Sequence[str], timeout_s: float) -> Launch:
    """Run a command of ranks to its end or its time limit."""
    done: CommandResult = run_job(argv, timeout_s=timeout_s)
    return Launch(done.argv, done.status, done.stdout.decode("utf-8", "replace"), done.problem)


def probe_ranks(host: Host, question: RankQuestion) -> ProbeRun:
    """Look at every rank that a launcher starts."""
    nonce = f"{os.getpid()}-{host.now():.3f}"
    asked_facts = {"nonce": nonce, "ports": list(question.ports), "peers": list(question.peers)}
    program = python_argv(question.python, PROBE, json.dumps(asked_facts))
    started = host.now()
    launches = tuple(launch_program(argv, question.timeout_s) for argv in question.launcher.command_lines(program))
    documents = [facts for launch in launches for facts in parse_marked(PROBE_MARK, launch.output)]
    probes = [probe for probe in map(_read_probe, documents) if probe is not None]
    job = ProbedJob(
        probes=tuple(sorted(probes, key=lambda probe: (probe.rank is None, probe.rank or 0, probe.host, probe.pid))),
        world=question.world or question.launcher.ranks,
        launcher=_launcher_words(question.launcher),
        is_own_launcher=question.launcher.is_own,
        shell=dict(host.environment()),
        started=started,
        ended=host.now(),
        command=question.command,
        runtime=question.runtime,
    )
    return ProbeRun(job, launches, len(documents) - len(probes))


def _launcher_words(launcher: RankLauncher) -> tuple[str, ...]:
    return ("ssh", *launcher.hosts) if launcher.kind == "ssh" else launcher.words


def _read_probe(facts: Any) -> RankProbe | None:
    try:
        return msgspec.convert(facts, RankProbe, strict=False)
    except (msgspec.ValidationError, TypeError, ValueError):
        return None


def save_probes(host: Host, run: ProbeRun, path: str) -> None:
    """Write what was seen to a file that `--from` reads; the shell keeps only what the probes show."""
    names = {name for probe in run.job.probes for name in probe.environment}
    shown = {name: value for name, value in run.job.shell.items() if name in names and "KEY" not in name}
    kept = msgspec.structs.replace(run.job, shell=shown)
    host.write(path, msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def read_recorded(host: Host, paths: Sequence[str], world: int) -> ProbeRun:
    """Return the job that was recorded: by `--save`, or as the output of a launcher that ran the probe.

    Raises:
        InputError: a file holds neither.
    """
    jobs = [_read_recording(host, path) for path in paths]
    probes = tuple(probe for job in jobs for probe in job.probes)
    job = msgspec.structs.replace(jobs[0], probes=probes)
    return ProbeRun(msgspec.structs.replace(job, world=world or job.world or len(probes)))


def _read_recording(host: Host, path: str) -> ProbedJob:
    with host.open(path) as file:
        data = file.read(MOST_RECORDED + 1)
    if len(data) > MOST_RECORDED:
        raise InputError(f"{path} is larger than a recording of probes can be")
    if data.lstrip()[:1] == b"{":
        try:
            return msgspec.json.decode(data, type=ProbedJob, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise InputError(f"{path} is no recording of probes: {err}", fix="trtdx ranks check --save FILE") from err
    documents = parse_marked(PROBE_MARK, data.decode("utf-8", "replace"))
    probes = tuple(probe for probe in map(_read_probe, documents) if probe is not None)
    if not probes:
        raise InputError(f"{path} holds no probe of a rank", fix="trtdx ranks check --save FILE")
    return ProbedJob(probes=probes, world=len(probes))
