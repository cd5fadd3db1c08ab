"""Whether every rank has a GPU of its own and sees those of its peers, and whether these reach each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.nouns import CAP_SYS_PTRACE, RankProbe, RankViolation, name_hosts, name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.ranks.nouns import ProbedJob


def visible_gpus(probe: RankProbe) -> list[str] | None:
    """Return the GPUs a rank sees, in its order; None where neither a variable nor the machine tells."""
    named = probe.environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        words = [word.strip() for word in named.split(",")]
        stop = next((at for at, word in enumerate(words) if word in ("-1", "", "NoDevFiles")), len(words))
        return words[:stop]  # CUDA stops at the first it cannot read
    listed = probe.gpus.get("list")
    if listed:
        return [str(row[0]) for row in listed]
    devices = probe.gpus.get("devices")
    return [re.sub(r"\D", "", device) for device in devices] if devices else None


def has_gpus(probe: RankProbe) -> bool:
    """Whether the machine has GPUs, or somebody believes so."""
    return bool(probe.gpus.get("devices") or probe.gpus.get("list") or probe.environment.get("CUDA_VISIBLE_DEVICES"))


def judge_visibility(job: ProbedJob) -> Iterator[RankViolation]:
    """Every rank sees as many GPUs as its node has ranks, and takes one that no other takes."""
    blind = [
        probe
        for probe in job.probes
        if visible_gpus(probe) == [] and probe.environment.get("CUDA_VISIBLE_DEVICES") is not None
    ]
    if blind:
        yield RankViolation(
            "DX035",
            f"CUDA_VISIBLE_DEVICES hides every GPU from {name_ranks(blind)}",
            (
                Evidence(
                    f"{blind[0].title}: CUDA_VISIBLE_DEVICES", repr(blind[0].environment.get("CUDA_VISIBLE_DEVICES"))
                ),
            ),
            (launch_fix("let the ranks see the GPUs", "unset CUDA_VISIBLE_DEVICES"),),
            tuple(blind),
        )
    for node, probes in job.nodes.items():
        seeing = [probe for probe in probes if visible_gpus(probe)]
        ranks = job.ranks_on(node)
        if ranks < 2 or not seeing:
            continue
        yield from _hidden_peers(seeing) if len(seeing) > 1 else ()
        yield from _shared_gpus(seeing, ranks)


def _hidden_peers(probes: list[RankProbe]) -> Iterator[RankViolation]:
    lists = [visible_gpus(probe) or [] for probe in probes]
    if all(len(gpus) == 1 for gpus in lists) and len({gpus[0] for gpus in lists}) == len(lists):
        yield RankViolation(
            "DX457",
            f"each of {name_ranks(probes)} sees one GPU only, so none can reach its peers' memory directly",
            tuple(
                Evidence(f"{probe.title}: CUDA_VISIBLE_DEVICES", gpus[0])
                for probe, gpus in zip(probes[:4], lists, strict=False)
            ),
            (),
            tuple(probes),
            Severity.WARNING,
            0.85,
        )


def _shared_gpus(probes: list[RankProbe], ranks: int) -> Iterator[RankViolation]:
    """Ranks that would take the same GPU: each takes the one of its number among those it sees."""
    gpus = visible_gpus(probes[0]) or []
    alike = all(visible_gpus(probe) == gpus for probe in probes)
    if alike and len(gpus) < ranks:
        yield RankViolation(
            "DX413",
            f"{ranks} ranks on {name_hosts(probes)} see {len(gpus)} GPUs, so two ranks would share one",
            (Evidence(f"{probes[0].title}: GPUs", ", ".join(gpus)),),
            (
                launch_fix(
                    "start as many ranks as there are GPUs, or show them all",
                    f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(ranks)))}",
                ),
            ),
            tuple(probes),
        )
        return
    taken: dict[str, list[RankProbe]] = {}
    for probe in probes:
        own_gpus = visible_gpus(probe) or []
        local = probe.local_rank if probe.local_rank is not None else probe.rank or 0
        taken.setdefault(own_gpus[local % len(own_gpus)], []).append(probe)
    crowded = [(gpu, users) for gpu, users in taken.items() if len(users) > 1]
    if crowded and len(probes) > 1:
        gpu, users = crowded[0]
        yield RankViolation(
            "DX413",
            f"{name_ranks(users)} would all use GPU {gpu}",
            tuple(
                Evidence(
                    f"{probe.title}: CUDA_VISIBLE_DEVICES", probe.environment.get("CUDA_VISIBLE_DEVICES", "not set")
                )
                for probe in users[:4]
            ),
            (),
            tuple(users),
        )


def judge_peer_access(job: ProbedJob) -> Iterator[RankViolation]:
    """GPUs of a node reach each other, and nothing in between redirects what they send."""
    for probe in job.firsts:
        bridges = probe.gpus.get("acs") or []
        closed = _closed_pairs(str(probe.gpus.get("p2p", "")))
        if bridges and not closed and probe.environment.get("NCCL_P2P_DISABLE") != "1":
            yield RankViolation(
                "DX402",
                f"ACS is on at {len(bridges)} PCI bridges of {probe.host}, so traffic between GPUs takes the way by the CPU, or hangs",
                (Evidence(f"{probe.host}: lspci -vvv", "ACSCtl: SrcValid+ on " + ", ".join(bridges[:6])),),
                (
                    launch_fix(
                        "test without peer-to-peer first; then switch ACS off in the BIOS or for these bridges",
                        "NCCL_P2P_DISABLE=1 COMMAND",
                    ),
                ),
                (probe,),
                Severity.WARNING,
                0.75,
            )
        if closed and max(job.world, len(job.probes)) > 1:
            yield RankViolation(
                "DX418",
                f"{len(closed)} pairs of GPUs on {probe.host} have no peer access, so custom all-reduce is not used between them",
                (Evidence(f"{probe.host}: nvidia-smi topo -p2p r", ", ".join(closed[:6])),),
                (),
                (probe,),
                Severity.NOTE,
                0.9,
            )


def _closed_pairs(matrix: str) -> list[str]:
    """Return the pairs that `nvidia-smi topo -p2p r` calls anything but OK."""
    rows = re.findall(r"^\s*(GPU\d+)\s+(.*)$", matrix, re.MULTILINE)
    rows = [row for row in rows if "GPU" not in row[1]]
    return [
        f"{name}-GPU{column} {cell}"
        for number, (name, cells) in enumerate(rows)
        for column, cell in enumerate(cells.split()[: len(rows)])
        if column > number and cell in ("NS", "CNS", "GNS", "TNS", "DR")
    ]


def judge_container_rights(job: ProbedJob) -> Iterator[RankViolation]:
    """A container in which ranks hand memory to each other by file descriptor may do so (pidfd_getfd)."""
    bound = [
        probe
        for probe in job.probes
        if probe.container
        and has_gpus(probe)
        and not probe.has_capability(CAP_SYS_PTRACE)
        and "Fabric" in str(probe.gpus.get("topology", ""))
    ]
    if bound:
        yield RankViolation(
            "DX419",
            f"the container of {name_ranks(bound)} lacks SYS_PTRACE, which ranks need to share memory over NVLink between nodes",
            (Evidence(f"{bound[0].title}: CapEff", f"{bound[0].capabilities:016x}"),),
            (),
            tuple(bound),
            Severity.WARNING,
            0.7,
        )


JUDGES = (judge_visibility, judge_peer_access, judge_container_rights)
