"""The nouns of this room: what one rank sees, the job its ranks make, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from trtdx.model import Evidence, Fix, Severity

UNLIMITED = -1
CAP_IPC_LOCK, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 14, 19, 21, 24
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 1, 8, 64
# What tells a process its rank and how many there are, in the order in which MPI programs trust them.
RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", ""),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("RANK", "WORLD_SIZE"),
)
LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK")


class InterfaceAddress(msgspec.Struct, frozen=True):
    """One address of one interface, in the order in which the system lists them."""

    name: str
    flags: int
    family: int
    address: str
    prefix: int


class NetworkLink(msgspec.Struct, frozen=True):
    """One interface, with or without an address."""

    name: str
    flags: int = 0
    state: str = ""
    mtu: int = 0
    speed: int = 0
    is_physical: bool = False
    kind: str = ""
    master: str = ""

    @property
    def is_running(self) -> bool:
        return bool(self.flags & IFF_UP and self.flags & IFF_RUNNING)


class ShmSegment(msgspec.Struct, frozen=True):
    """One file in shared memory."""

    name: str
    bytes: int = 0
    uid: int = 0
    is_held: bool | None = None


class SharedMemory(msgspec.Struct, frozen=True):
    """What a rank sees of /dev/shm."""

    size: int = 0
    free: int = 0
    device: int = 0
    writable: bool = True
    segments: tuple[ShmSegment, ...] = ()
    problem: str = ""


class RankProbe(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a job sees; the fields are those that `remote/probe.py` prints."""

    host: str = ""
    boot_id: str = ""
    pid: int = 0
    uid: int = 0
    time: float = 0.0
    kernel: str = ""
    python: str = ""
    executable: str = ""
    cpus: int = 0
    container: str = ""
    namespaces: dict[str, str] = {}
    environment: dict[str, str] = {}
    limits: dict[str, tuple[int, int]] = {}
    capabilities: int = 0
    seccomp: int = 0
    ptrace_scope: str = ""
    user_tasks: int = 0
    cgroup: dict[str, int] = {}
    shm: SharedMemory = SharedMemory()
    tmp: dict[str, Any] = {}
    addresses: tuple[InterfaceAddress, ...] = ()
    links: tuple[NetworkLink, ...] = ()
    names: dict[str, Any] = {}
    ports: dict[str, str] = {}
    rdma: dict[str, Any] = {}
    mpi: dict[str, Any] = {}
    slurm: dict[str, Any] = {}
    packages: dict[str, str] = {}
    gpus: dict[str, Any] = {}
    problems: dict[str, str] = {}
    nonce: str = ""

    @property
    def node(self) -> tuple[str, str]:
        """What tells nodes apart, as NCCL does: the host name and the boot of its kernel (getHostHash)."""
        return self.host, self.boot_id

    @property
    def rank(self) -> int | None:
        return _first_number(self.environment, [rank for rank, _ in RANK_VARIABLES])

    @property
    def stated_world(self) -> int | None:
        return _first_number(self.environment, [size for _, size in RANK_VARIABLES if size])

    @property
    def local_rank(self) -> int | None:
        return _first_number(self.environment, LOCAL_RANK_VARIABLES)

    @property
    def title(self) -> str:
        return f"rank {self.rank} on {self.host}" if self.rank is not None else self.host

    def has_capability(self, number: int) -> bool:
        return bool(self.capabilities >> number & 1)

    def soft_limit(self, name: str) -> int:
        """Return a resource limit; -1 where there is none or it was not read."""
        return self.limits.get(name, (UNLIMITED, UNLIMITED))[0]

    def find_link(self, name: str) -> NetworkLink | None:
        return next((link for link in self.links if link.name == name), None)


def _first_number(environment: dict[str, str], names: list[str] | tuple[str, ...]) -> int | None:
    texts = (environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdigit()), None)


class ProbedJob(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks that were looked at, how they were started, and what they are meant to run.

    Attributes:
        world: how many ranks the job is to have; 0 where nobody said.
        launcher: the words that started the probes; empty where one process was looked at without any.
        shell: the variables of the shell that the launcher was started from.
        started, ended: the launching machine's clock around the probes.
        is_own_launcher: whether the launcher was chosen by trtdx, so that it says nothing of how the job is started.
        command: what the ranks are to run, as its words.
    """

    probes: tuple[RankProbe, ...]
    world: int = 0
    launcher: tuple[str, ...] = ()
    is_own_launcher: bool = False
    shell: dict[str, str] = {}
    started: float = 0.0
    ended: float = 0.0
    command: tuple[str, ...] = ()
    runtime: str = ""

    @property
    def nodes(self) -> dict[tuple[str, str], list[RankProbe]]:
        groups: dict[tuple[str, str], list[RankProbe]] = {}
        for probe in self.probes:
            groups.setdefault(probe.node, []).append(probe)
        return groups

    @property
    def firsts(self) -> list[RankProbe]:
        """One probe of each node."""
        return [probes[0] for probes in self.nodes.values()]

    @property
    def spans_nodes(self) -> bool:
        return len(self.nodes) > 1

    @property
    def is_launched(self) -> bool:
        return bool(self.launcher)

    def ranks_on(self, node: tuple[str, str]) -> int:
        """Return how many ranks a node is to have."""
        here = len(self.nodes.get(node, ()))
        if self.is_launched and here > 1:
            return here
        return max(here, -(-self.world // max(1, len(self.nodes))))


class RankViolation(NamedTuple):
    """One thing that is wrong: the page that explains it, what is the matter here, where, and what to do about it."""

    code: str
    message: str
    evidence: tuple[Evidence, ...]
    fixes: tuple[Fix, ...] = ()  # before those of the page
    probes: tuple[RankProbe, ...] = ()  # whom it concerns
    severity: Severity | None = None
    confidence: float = 0.95
    why: str = ""
    verify: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({probe.rank for probe in self.probes if probe.rank is not None}))


def name_hosts(probes: list[RankProbe] | tuple[RankProbe, ...]) -> str:
    """Return the hosts of some ranks in words: "n1, n2 and 3 more"."""
    return abbreviate_list(dict.fromkeys(probe.host for probe in probes), 4)


def name_ranks(probes: list[RankProbe] | tuple[RankProbe, ...]) -> str:
    """Return some ranks in words: "rank 2 on n1", "ranks 0, 1 on n1", or the hosts where ranks have no number."""
    ranks = sorted({probe.rank for probe in probes if probe.rank is not None})
    if not ranks:
        return name_hosts(probes)
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {abbreviate_list(ranks, 8)} on {name_hosts(probes)}"
