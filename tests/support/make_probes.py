"""Probes as healthy ranks print them, to be changed one fact at a time."""

from __future__ import annotations

from typing import Any

from trtdx.ranks.nouns import InterfaceAddress, NetworkLink, ProbedJob, RankProbe, SharedMemory

UP = 1 | 2 | 64 | 4096  # up, broadcast, running, multicast
LOOPBACK = 1 | 8 | 64
OPEN_MPI = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"
MPICH = "MPICH Version:\t4.0.2"
MPIRUN = {"mpirun": {"path": "/usr/bin/orterun", "version": "mpirun (Open MPI) 4.1.4"}}


def make_address(name: str, address: str, prefix: int = 24, flags: int = UP) -> InterfaceAddress:
    return InterfaceAddress(name, flags, 6 if ":" in address else 4, address, prefix)


def make_probe(rank: int = 0, host: str = "n1", *, world: int = 2, **changes: Any) -> RankProbe:
    """Return a healthy rank of Open MPI; `environment` is added to what the launcher set."""
    number = int(host[1:])
    launched = {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(world),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % 8),
    }
    facts: dict[str, Any] = {
        "host": host,
        "boot_id": f"boot-{host}",
        "pid": 100 + rank,
        "uid": 1000,
        "time": 1000.5,
        "cpus": 64,
        "executable": "/usr/bin/python3",
        "limits": {"memlock": (-1, -1), "nofile": (65536, 65536), "nproc": (-1, -1), "stack": (8 << 20, -1), "as": (-1, -1)},
        "shm": SharedMemory(size=64 << 30, free=64 << 30, device=20),
        "addresses": (make_address("lo", "127.0.0.1", 8, LOOPBACK), make_address("eth0", f"10.0.0.{number}")),
        "links": (
            NetworkLink("lo", LOOPBACK, "unknown", 65536, kind="loopback"),
            NetworkLink("eth0", UP, "up", 1500, is_physical=True),
        ),
        "names": {host: [f"10.0.0.{number}"]},
        "mpi": {"launchers": MPIRUN, "mpi4py": {"version": "4.1.2", "library": OPEN_MPI}},
        "packages": {"mpi4py": "4.1.2", "torch": "2.13.0", "tensorrt-llm": "1.2.1"},
        "gpus": {"devices": [f"/dev/nvidia{at}" for at in range(8)]},
    }  # fmt: skip
    environment = launched | changes.pop("environment", {})
    return RankProbe(
        **(facts | changes), environment={name: value for name, value in environment.items() if value is not None}
    )


def make_job(*probes: RankProbe, launcher: str = "mpirun -n 2", **changes: Any) -> ProbedJob:
    """Return the job that some ranks make; two healthy ones on two hosts where none are named."""
    ranks = probes or (make_probe(0, "n1"), make_probe(1, "n2"))
    facts: dict[str, Any] = {
        "world": len(ranks),
        "started": 1000.0,
        "ended": 1001.0,
        "launcher": tuple(launcher.split()),
    }
    return ProbedJob(probes=ranks, **(facts | changes))


def make_pair(hosts: tuple[str, str] = ("n1", "n2"), **changes: Any) -> tuple[RankProbe, RankProbe]:
    """Return two ranks that both have some changes."""
    return make_probe(0, hosts[0], **changes), make_probe(1, hosts[1], **changes)
