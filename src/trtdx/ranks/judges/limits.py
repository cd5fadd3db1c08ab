"""Whether the limits of the launched process leave room for what ranks do; what a capability overrides is no limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.nouns import (
    CAP_IPC_LOCK,
    CAP_SYS_ADMIN,
    CAP_SYS_RESOURCE,
    UNLIMITED,
    RankProbe,
    RankViolation,
    name_ranks,
)
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.ranks.nouns import ProbedJob

# RDMA registers every buffer: anything finite ends in ENOMEM sooner or later, a gigabyte is what small models get by on.
RDMA_LOCKED_BYTES = 1 << 30
KERNEL_DEFAULT_LOCKED_BYTES = 8 << 20  # since Linux 5.16; less is an old default (64 KiB), or set by somebody
# A process keeps libraries, devices and weights open, and some sockets to every other rank.
FILES_PER_PROCESS, FILES_PER_PEER = 256, 24
# Threads of one rank: CUDA, NCCL's proxies, OpenMP, ZMQ and Python's pools.
THREADS_PER_RANK = 64
LEAST_STACK_BYTES = 1 << 20


def judge_locked_memory(job: ProbedJob) -> Iterator[RankViolation]:
    """Ranks may lock the memory that RDMA needs; CAP_IPC_LOCK makes the limit moot."""
    for has_rdma, least in ((True, RDMA_LOCKED_BYTES), (False, KERNEL_DEFAULT_LOCKED_BYTES)):
        low = [
            probe
            for probe in job.probes
            if bool(probe.rdma.get("devices")) is has_rdma and _is_below(probe, "memlock", least)
            if not probe.has_capability(CAP_IPC_LOCK)
        ]
        if not low:
            continue
        limit = format_bytes(low[0].soft_limit("memlock"))
        purpose = "and these hosts have RDMA devices" if has_rdma else "less than the kernel's own default"
        yield RankViolation(
            "DX401",
            f"{name_ranks(low)} may lock {limit} of memory, {purpose}",
            _limit_evidence(low, "memlock", "CAP_IPC_LOCK is not set"),
            (),
            tuple(low),
            None if has_rdma else Severity.WARNING,
            0.9 if has_rdma else 0.7,
            verify=_verify_limit(job, "-l"),
        )


def _is_below(probe: RankProbe, name: str, least: int) -> bool:
    limit = probe.soft_limit(name)
    return limit != UNLIMITED and limit < least


def _limit_evidence(probes: list[RankProbe], name: str, note: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"{probe.title}: getrlimit({name})", "soft {}, hard {}; {}".format(*probe.limits[name], note))
        for probe in probes[:4]
    )


def _verify_limit(job: ProbedJob, flag: str) -> str:
    launcher = " ".join(job.launcher) if job.is_launched and job.launcher[0] != "ssh" else "mpirun -n 2"
    return f"{launcher} bash -c 'ulimit {flag}'"


def judge_other_limits(job: ProbedJob) -> Iterator[RankViolation]:
    """Files, processes, stack and address space are enough for this many ranks."""
    world = max(job.world, len(job.probes))
    files = FILES_PER_PROCESS + FILES_PER_PEER * world
    yield from _low_limit(
        job,
        [probe for probe in job.probes if _is_below(probe, "nofile", files)],
        "nofile",
        "may open {limit} files, and a rank of {world} needs about {least}",
        {"world": world, "least": files},
        ("-n", "ulimit -n 65536"),
    )
    yield from _low_limit(
        job,
        [probe for probe in job.probes if _is_below(probe, "stack", LEAST_STACK_BYTES)],
        "stack",
        "have a stack of {limit} bytes",
        {},
        ("-s", "ulimit -s 65536"),
    )
    yield from _low_limit(
        job,
        [probe for probe in job.probes if probe.soft_limit("as") != UNLIMITED],
        "as",
        "may map {limit} bytes of address space, and CUDA reserves as much as all GPUs and the host have",
        {},
        ("-v", "ulimit -v unlimited"),
    )
    yield from _few_processes(job)


def _low_limit(
    job: ProbedJob,
    low: list[RankProbe],
    name: str,
    words: str,
    values: dict[str, int],
    remedy: tuple[str, str],
) -> Iterator[RankViolation]:
    if not low:
        return
    limit = low[0].soft_limit(name)
    flag, command = remedy
    yield RankViolation(
        "DX1302",
        f"{name_ranks(low)} {words.format(limit=limit, **values)}",
        _limit_evidence(low, name, "as the launched process sees it"),
        (launch_fix("raise it before the launcher starts; a soft limit can go up to the hard one", command),),
        tuple(low),
        Severity.WARNING if name == "nofile" and limit >= FILES_PER_PROCESS else None,
        0.85,
        verify=_verify_limit(job, flag),
    )


def _few_processes(job: ProbedJob) -> Iterator[RankViolation]:
    """Each rank can start its threads: under RLIMIT_NPROC, which root does not feel, and under pids.max."""
    for node, probes in job.nodes.items():
        probe, needed = probes[0], THREADS_PER_RANK * job.ranks_on(node)
        is_exempt = probe.uid == 0 or probe.has_capability(CAP_SYS_RESOURCE) or probe.has_capability(CAP_SYS_ADMIN)
        limits = [("getrlimit(nproc)", "ulimit -u 65536", probe.soft_limit("nproc"), probe.user_tasks, is_exempt)]
        most = probe.cgroup.get("pids_max", UNLIMITED)
        raise_pids = "docker run --pids-limit=-1 IMAGE"
        limits.append(("cgroup pids.max", raise_pids, most, probe.cgroup.get("pids_current", 0), False))
        for where, command, limit, used, exempt in limits:
            if exempt or limit == UNLIMITED or limit - used >= needed:
                continue
            yield RankViolation(
                "DX1302",
                f"{probe.host} leaves room for {max(0, limit - used)} more processes and threads, and "
                f"{job.ranks_on(node)} ranks start about {needed}",
                (Evidence(f"{probe.title}: {where}", f"{limit} allowed, {used} in use"),),
                (launch_fix("allow more processes", command),),
                (probe,),
                confidence=0.85,
            )


JUDGES = (judge_locked_memory, judge_other_limits)
