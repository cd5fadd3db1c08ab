"""Whether ranks of one node can meet in shared memory: large enough, free, writable, and the same for all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.nouns import RankProbe, RankViolation, name_hosts, name_ranks
from trtdx.words import abbreviate_list, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.model import Fix
    from trtdx.ranks.nouns import ProbedJob, ShmSegment

# One connection of NCCL through shared memory: buffers of 512 KiB (LL), 4.7 MiB (LL128) and 4 MiB (Simple), and its
# head (src/init.cc and src/transport/shm.cc, v2.28.9-1; "failed to extend ... to 9637892 bytes").
NCCL_SEGMENT_BYTES = 9_637_888
# Two channels of a ring and a tree are what ranks without peer-to-peer access have at least.
SEGMENTS_PER_RANK = 4
MPI_SEGMENT_BYTES = 4_194_312  # vader_segment of Open MPI 4.1, measured
LEFTOVER_NAMES = re.compile(
    r"nccl-\w{6}|vader_segment\.|sm_segment\.|mpich_shm_|psm_|psm2_|ucx_shm|torch_\d+|cuda\.shm\.|sem\.mp-"
)


def needed_bytes(ranks: int, *, has_peer_access: bool = False) -> int:
    """Return what the ranks of a node need of shared memory; custom all-reduce lies in GPU memory and needs none."""
    nccl = 0 if has_peer_access else SEGMENTS_PER_RANK * NCCL_SEGMENT_BYTES
    return ranks * (nccl + MPI_SEGMENT_BYTES)


def all_gpus_are_peers(probe: RankProbe) -> bool:
    """Whether every pair of GPUs is joined by NVLink, so that NCCL does not go through shared memory."""
    topology = str(probe.gpus.get("topology", ""))
    rows = [row.split() for row in re.findall(r"^\s*GPU\d+\s+(.*)$", topology, re.MULTILINE)]
    rows = [row for row in rows if "X" in row]  # not the head
    cells = [cell for row in rows for cell in row[: len(rows)] if cell != "X"]
    return bool(cells) and all(cell.startswith("NV") for cell in cells)


def judge_space(job: ProbedJob) -> Iterator[RankViolation]:
    """Shared memory is large enough for the ranks of each node."""
    for node, probes in job.nodes.items():
        ranks = job.ranks_on(node)
        probe = min(probes, key=lambda one: one.shm.free)
        if ranks < 2 or probe.shm.problem or not probe.shm.size:
            continue
        needed = needed_bytes(ranks, has_peer_access=all_gpus_are_peers(probe))
        if probe.shm.size < needed:
            yield _too_small(probe, ranks, needed)
        elif probe.shm.free < needed:
            yield _too_full(probe, ranks, needed)


def _too_small(probe: RankProbe, ranks: int, needed: int) -> RankViolation:
    return RankViolation(
        "DX400",
        f"/dev/shm on {probe.host} holds {format_bytes(probe.shm.size)}, but {ranks} ranks need "
        f"{format_bytes(needed)} of it",
        (
            Evidence(f"{probe.title}: statvfs /dev/shm", f"size {probe.shm.size}, free {probe.shm.free} bytes"),
            Evidence(
                "NCCL and Open MPI",
                f"{SEGMENTS_PER_RANK} connections of {NCCL_SEGMENT_BYTES} bytes and one segment of "
                f"{MPI_SEGMENT_BYTES} bytes for each of {ranks} ranks",
            ),
        ),
        (_larger_shm_fix(probe),),
        (probe,),
        verify="trtdx ranks check -n " + str(ranks),
    )


def _larger_shm_fix(probe: RankProbe) -> Fix:
    if probe.container == "kubernetes":
        return launch_fix("mount an emptyDir with medium: Memory (sizeLimit: 16Gi) at /dev/shm in the pod")
    if probe.container:
        return launch_fix(
            "start the container with the host's shared memory, or with more of its own",
            "docker run --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 IMAGE   # or --shm-size=16g",
        )
    return launch_fix("make the file system larger", "sudo mount -o remount,size=16G /dev/shm")


def _too_full(probe: RankProbe, ranks: int, needed: int) -> RankViolation:
    leftovers = [segment for segment in probe.shm.segments if is_leftover(segment)]
    freed = sum(segment.bytes for segment in leftovers)
    space = Evidence(f"{probe.title}: statvfs /dev/shm", f"{probe.shm.free} of {probe.shm.size} bytes are free")
    if probe.shm.free + freed < needed:
        largest = max(probe.shm.segments, key=lambda segment: segment.bytes, default=None)
        shown = (
            Evidence(f"{probe.host}: /dev/shm", f"largest: {largest.name}, {largest.bytes} bytes") if largest else space
        )
        return RankViolation(
            "DX400",
            f"only {format_bytes(probe.shm.free)} of /dev/shm on {probe.host} are free, but {ranks} ranks need "
            f"{format_bytes(needed)}",
            (space, shown),
            (launch_fix("see what fills it, and end that job", "ls -lhS /dev/shm | head; fuser -v /dev/shm/*"),),
            (probe,),
        )
    names = abbreviate_list([segment.name for segment in leftovers], 3)
    return RankViolation(
        "DX1300",
        f"{format_bytes(freed)} of /dev/shm on {probe.host} are held by {format_count(len(leftovers), 'segment')} "
        f"of jobs that are gone, and {ranks} ranks need {format_bytes(needed)} of the {format_bytes(probe.shm.free)} left",
        (space, Evidence(f"{probe.host}: /dev/shm", f"no process has these open: {names}")),
        (
            launch_fix(
                "remove the segments that no process has open",
                "cd /dev/shm && rm " + " ".join(segment.name for segment in leftovers[:20]),
            ),
        ),
        (probe,),
    )


def is_leftover(segment: ShmSegment) -> bool:
    """Whether a segment is of a kind that jobs leave behind, and no process has it open."""
    return segment.is_held is False and bool(LEFTOVER_NAMES.match(segment.name))


def judge_access(job: ProbedJob) -> Iterator[RankViolation]:
    """Every rank may create files in shared memory."""
    denied = [probe for probe in job.probes if probe.shm.problem or not probe.shm.writable]
    if denied:
        probe = denied[0]
        yield RankViolation(
            "DX640",
            f"{name_ranks(denied)} cannot create files in /dev/shm"
            + (f": {probe.shm.problem}" if probe.shm.problem else ""),
            (Evidence(f"{probe.title}: /dev/shm", probe.shm.problem or f"not writable for user {probe.uid}"),),
            (launch_fix("make it writable for everybody", "sudo chmod 1777 /dev/shm"),),
            tuple(denied),
        )


def judge_sharing(job: ProbedJob) -> Iterator[RankViolation]:
    """Ranks of one node see the same shared memory; else NCCL sends between them over the network (shmDev)."""
    if not job.is_launched:
        return
    for probes in job.nodes.values():
        devices = {probe.shm.device for probe in probes if not probe.shm.problem}
        if len(devices) < 2:
            continue
        yield RankViolation(
            "DX1301",
            f"the ranks on {name_hosts(probes)} see {len(devices)} different /dev/shm, so they cannot share memory",
            tuple(Evidence(f"{probe.title}: stat /dev/shm", f"device {probe.shm.device}") for probe in probes[:4]),
            (),
            tuple(probes),
            Severity.WARNING,
            0.9,
        )


JUDGES = (judge_space, judge_access, judge_sharing)
