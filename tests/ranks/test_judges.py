"""Every judge on ranks that differ from healthy ones in one fact: it fires there, and is silent next door."""

from __future__ import annotations

import pytest

from support.make_probes import LOOPBACK, MPICH, MPIRUN, UP, make_address, make_job, make_pair, make_probe
from trtdx.ranks.judges.judge import judge_job
from trtdx.ranks.judges.table import JUDGES
from trtdx.ranks.nouns import NetworkLink, SharedMemory, ShmSegment

SMALL = SharedMemory(size=64 << 20, free=64 << 20, device=20)
GIB = 1 << 30


def full(*segments: ShmSegment) -> SharedMemory:
    return SharedMemory(size=GIB, free=10 << 20, device=20, segments=segments)


def on_one_host(**changes):
    return make_pair(("n1", "n1"), **changes)


def limits(**changed):
    return {"memlock": (-1, -1), "nofile": (65536, 65536), "stack": (8 << 20, -1), "as": (-1, -1)} | {
        name: (value, value) for name, value in changed.items()
    }


def with_interfaces(*addresses, extra=()):
    """Return the changes that give a host these addresses."""
    links = {entry.name: NetworkLink(entry.name, entry.flags, "up", 1500) for entry in addresses}
    return {"addresses": addresses, "links": (*links.values(), *extra)}


LO = make_address("lo", "127.0.0.1", 8, LOOPBACK)
RDMA = {
    "devices": [{"name": "mlx5_0", "ports": []}],
    "verbs": ["/dev/infiniband/uverbs0"],
    "usable": ["/dev/infiniband/uverbs0"],
}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "PMIX_RANK": "0"}
SLURM_TASK = {"OMPI_COMM_WORLD_RANK": None, "OMPI_COMM_WORLD_SIZE": None, "OMPI_COMM_WORLD_LOCAL_RANK": None}


def make_task(rank, **variables):
    """Return a task of srun."""
    return make_probe(
        rank,
        environment=SLURM_TASK
        | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_JOB_ID": "7"}
        | variables,
    )


# code, the job that has it, the nearest job that has not
CASES = [
    ("DX400", make_job(*on_one_host(shm=SMALL)), make_job(make_probe(shm=SMALL, world=1), world=1)),
    ("DX400", make_job(*on_one_host(shm=full(ShmSegment("nccl-aaaaaa", GIB, 0, True)))), make_job(*on_one_host())),
    ("DX1300", make_job(*on_one_host(shm=full(ShmSegment("nccl-aaaaaa", GIB, 0, False)))),
     make_job(*on_one_host(shm=SharedMemory(size=GIB, free=GIB // 2, device=20, segments=(ShmSegment("nccl-aaaaaa", GIB // 2, 0, False),))))),
    ("DX640", make_job(*on_one_host(shm=SharedMemory(size=GIB, free=GIB, writable=False))), make_job(*on_one_host())),
    ("DX1301", make_job(make_probe(0), make_probe(1, shm=SharedMemory(size=GIB, free=GIB, device=21))),
     make_job(make_probe(0), make_probe(1, "n2", shm=SharedMemory(size=GIB, free=GIB, device=21)))),
    ("DX401", make_job(*on_one_host(limits=limits(memlock=65536), rdma=RDMA)),
     make_job(*on_one_host(limits=limits(memlock=65536), rdma=RDMA, capabilities=1 << 14))),
    ("DX401", make_job(*on_one_host(limits=limits(memlock=65536))), make_job(*on_one_host(limits=limits(memlock=8 << 20)))),
    ("DX1302", make_job(*on_one_host(limits=limits(nofile=128))), make_job(*on_one_host(limits=limits(nofile=1024)))),
    ("DX1302", make_job(*on_one_host(limits={**limits(), "as": (1 << 34, -1)})), make_job(*on_one_host())),
    ("DX1302", make_job(*on_one_host(limits=limits(nproc=300), user_tasks=250)),
     make_job(*on_one_host(limits=limits(nproc=300), user_tasks=250, uid=0))),
    ("DX1302", make_job(*on_one_host(cgroup={"pids_max": 64, "pids_current": 10})),
     make_job(*on_one_host(cgroup={"pids_max": 4096, "pids_current": 10}))),
    ("DX405", make_job(*make_pair(environment={"NCCL_SOCKET_IFNAME": "ib0"})),
     make_job(*make_pair(environment={"NCCL_SOCKET_IFNAME": "eth"}))),
    ("DX405", make_job(*make_pair(**with_interfaces(LO, make_address("docker0", "172.17.0.1", 16)))),
     make_job(*on_one_host(**with_interfaces(LO, make_address("docker0", "172.17.0.1", 16))))),
    ("DX405", make_job(*make_pair(**with_interfaces(LO))), make_job(*on_one_host(**with_interfaces(LO)))),
    ("DX405", make_job(
        make_probe(0, "n1", **with_interfaces(LO, make_address("eno1", "192.168.5.1"), make_address("eth0", "10.0.0.1"))),
        make_probe(1, "n2")), make_job()),
    ("DX439", make_job(*make_pair(environment={"OMPI_MCA_btl_tcp_if_include": "eth7"})),
     make_job(*make_pair(environment={"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/24"}))),
    ("DX439", make_job(
        make_probe(0, "n1", **with_interfaces(LO, make_address("eth0", "10.0.0.1"), make_address("docker0", "172.17.0.1", 16))),
        make_probe(1, "n2", **with_interfaces(LO, make_address("eth0", "10.0.0.2"), make_address("docker0", "172.17.0.1", 16)))),
     make_job(*make_pair(("n1", "n1"), **with_interfaces(LO, make_address("docker0", "172.17.0.1", 16))))),
    ("DX1303", make_job(
        make_probe(0, "n1", **with_interfaces(LO, make_address("eth0", "10.0.0.1"), make_address("eth1", "10.0.0.101"))),
        make_probe(1, "n2")),
     make_job(make_probe(0, "n1", **with_interfaces(LO, make_address("eth0", "10.0.0.1"), make_address("eth1", "10.0.1.1"))),
              make_probe(1, "n2"))),
    ("DX1304", make_job(make_probe(0, "n1"), make_probe(1, "n2", links=(NetworkLink("eth0", UP, "up", 9000),))),
     make_job(make_probe(0, "n1"), make_probe(1, "n1", links=(NetworkLink("eth0", UP, "up", 9000),)))),
    ("DX404", make_job(*make_pair(rdma={**RDMA, "usable": []})), make_job(*make_pair(rdma=RDMA))),
    ("DX426", make_job(*make_pair(names={"n9": {"problem": "Name or service not known"}})), make_job()),
    ("DX427", make_job(make_probe(0, "n1", names={"n1": ["127.0.1.1"]}), make_probe(1, "n2")),
     make_job(*on_one_host(names={"n1": ["127.0.1.1"]}))),
    ("DX424", make_job(make_probe(0, ports={"8000": "Address already in use"}), make_probe(1)),
     make_job(make_probe(0, ports={"8000": "free"}), make_probe(1, ports={"8000": "Address already in use"}))),
    ("DX1305", make_job(make_probe(0, "n1"), make_probe(1, "n2", time=1010.0)), make_job()),
    ("DX1000", make_job(make_probe(0, "n1"), make_probe(1, "n2", packages={"mpi4py": "4.1.2", "torch": "2.13.0", "tensorrt-llm": "1.2.0"})), make_job()),
    ("DX1306", make_job(make_probe(0, "n1"), make_probe(1, "n2", packages={"mpi4py": "3.1.5", "torch": "2.13.0", "tensorrt-llm": "1.2.1"})), make_job()),
    ("DX447", make_job(*on_one_host(tmp={"path": "/tmp", "writable": False})), make_job(*on_one_host(tmp={"path": "/tmp", "writable": True}))),
    ("DX435", make_job(*on_one_host(mpi={"launchers": MPIRUN, "mpi4py": {"library": MPICH}})), make_job(*on_one_host())),
    ("DX023", make_job(*on_one_host(mpi={"launchers": {"mpirun": {"version": "HYDRA build details"}}, "mpi4py": {"library": MPICH}},
                                    environment={"OMPI_COMM_WORLD_RANK": None, "PMI_RANK": "0", "PMI_SIZE": "2"})), make_job()),
    ("DX023", make_job(*on_one_host(mpi={"launchers": MPIRUN, "mpi4py": {"problem": "ImportError: libmpi.so.12: cannot open shared object file"}})),
     make_job(*on_one_host(mpi={"launchers": MPIRUN, "mpi4py": {"problem": "ModuleNotFoundError: No module named 'mpi4py'"}}))),
    ("DX442", make_job(make_task(0), make_task(1), launcher="srun -n 2"),
     make_job(make_task(0, PMIX_RANK="0"), make_task(1, PMIX_RANK="1"), launcher="srun --mpi=pmix -n 2")),
    ("DX1307", make_job(make_probe(environment=SLURM_TASK | STEP), launcher="", world=2, shell=STEP),
     make_job(make_probe(environment=SLURM_TASK | {"SLURM_JOB_ID": "7"}), launcher="", world=2, shell={"SLURM_JOB_ID": "7"})),
    ("DX431", make_job(make_probe(environment=SLURM_TASK, cpus=2), launcher="", world=2),
     make_job(make_probe(environment=SLURM_TASK | {"OMPI_MCA_rmaps_base_oversubscribe": "1"}, cpus=2), launcher="", world=2)),
    ("DX1308", make_job(make_probe(0, environment={"SLURM_PROCID": "0"}), make_probe(1, environment={"SLURM_PROCID": "0"}),
                        command=("trtllm-llmapi-launch", "trtllm-serve", "m")),
     make_job(make_probe(0, environment={"SLURM_PROCID": "0"}), make_probe(1, environment={"SLURM_PROCID": "0"}), command=("trtllm-serve", "m"))),
    ("DX1308", make_job(make_probe(0, environment={"RANK": "0"}), make_probe(1, environment={"RANK": "0"})),
     make_job(make_probe(0, environment={"RANK": "0"}), make_probe(1, environment={"RANK": "1"}))),
    ("DX1308", make_job(*on_one_host(environment={"TLLM_DISABLE_MPI": "1"})), make_job(make_probe(environment={"TLLM_DISABLE_MPI": "1"}))),
    ("DX468", make_job(*on_one_host(environment={"TLLM_SPAWN_PROXY_PROCESS": "1"}), shell={"TLLM_SPAWN_PROXY_PROCESS": "1"}), make_job()),
    ("DX450", make_job(make_probe(0, "n1", environment={"NCCL_DEBUG": "INFO"}), make_probe(1, "n2"), shell={"NCCL_DEBUG": "INFO"}),
     make_job(*make_pair(environment={"NCCL_DEBUG": "INFO"}), shell={"NCCL_DEBUG": "INFO"})),
    ("DX450", make_job(*make_pair(environment={"UCX_TLS": "tcp"}), command=("trtllm-llmapi-launch", "x")),
     make_job(*make_pair(environment={"UCX_TLS": "tcp"}), command=("x",))),
    ("DX1309", make_job(make_probe(0, "n1", environment={"NCCL_ALGO": "Ring"}), make_probe(1, "n2")),
     make_job(*make_pair(environment={"NCCL_ALGO": "Ring"}))),
    ("DX740", make_job(*make_pair(environment={"NCCL_ALGO": "Rings"})), make_job(*make_pair(environment={"NCCL_ALGO": "allreduce:tree,ring"}))),
    ("DX740", make_job(*make_pair(environment={"NCCL_IB_DISABLE": "true"})), make_job(*make_pair(environment={"NCCL_IB_DISABLE": "1"}))),
    ("DX740", make_job(*make_pair(environment={"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"})), make_job(*make_pair(environment={"NCCL_NET": "IB"}))),
    ("DX1310", make_job(*make_pair(environment={"NCCL_SOCKET_IFNAMES": "eth0"})), make_job(*make_pair(environment={"NCCL_VERSION": "2.28"}))),
    ("DX1311", make_job(*make_pair(environment={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})),
     make_job(*make_pair(environment={"NCCL_P2P_DISABLE": "1"}))),
    ("DX746", make_job(*make_pair(environment={"OMPI_MCA_btl": "tcp,vader"})), make_job(*make_pair(environment={"OMPI_MCA_btl": "^openib"}))),
    ("DX035", make_job(*make_pair(environment={"CUDA_VISIBLE_DEVICES": ""})), make_job()),
    ("DX413", make_job(*on_one_host(environment={"CUDA_VISIBLE_DEVICES": "0"})), make_job(*on_one_host(environment={"CUDA_VISIBLE_DEVICES": "0,1"}))),
    ("DX413", make_job(make_probe(0, environment={"CUDA_VISIBLE_DEVICES": "0,1"}), make_probe(1, environment={"CUDA_VISIBLE_DEVICES": "1,0"})),
     make_job(make_probe(0, environment={"CUDA_VISIBLE_DEVICES": "0,1"}), make_probe(1, environment={"CUDA_VISIBLE_DEVICES": "0,1"}))),
    ("DX457", make_job(make_probe(0, environment={"CUDA_VISIBLE_DEVICES": "0"}), make_probe(1, environment={"CUDA_VISIBLE_DEVICES": "1"})), make_job()),
]  # fmt: skip


def codes_of(job, book):
    return [finding.code for finding in judge_job(JUDGES, job, book)]


def test_healthy_ranks_are_not_accused(book):
    assert codes_of(make_job(), book) == []
    assert codes_of(make_job(*on_one_host()), book) == []


@pytest.mark.parametrize(("code", "sick", "well"), CASES, ids=[f"{code}-{at}" for at, (code, *_) in enumerate(CASES)])
def test_a_judge_fires_on_the_fault_and_is_silent_beside_it(code, sick, well, book):
    assert codes_of(sick, book) == [code]
    assert code not in codes_of(well, book)


@pytest.mark.heavy
def test_every_page_of_this_room_has_a_case():
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book

    owned = {rule.code for rule in load_book(RealHost()) if rule.code.startswith("DX13") and len(rule.code) == 6}
    smoke = {"DX1312", "DX1313", "DX1314"}  # tests/ranks/test_smoke_judge.py
    assert owned - smoke == {code for code, *_ in CASES if code.startswith("DX13")}


def test_a_finding_names_its_rank_and_says_what_to_type(book):
    job = make_job(
        make_probe(0, "n1", environment={"NCCL_ALGO": "Ring"}), make_probe(1, "n2"), make_probe(2, "n2", world=3)
    )
    finding = judge_job(JUDGES, job, book)[0]
    assert finding.ranks == (0,)
    assert "rank 0 on n1" in finding.message
    assert finding.fixes[0].command == "mpirun -x NCCL_ALGO -n RANKS COMMAND"


# Recorded by hand from nvidia-smi's and lspci's documented output; no GPU was there to ask.
TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-47\nGPU1\tNV18\t X \t0-47\n"
P2P = " \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n"


def test_gpus_joined_by_nvlink_need_little_shared_memory(book):
    gpus = {"devices": ["/dev/nvidia0", "/dev/nvidia1"], "topology": TOPOLOGY}
    assert codes_of(make_job(*on_one_host(shm=SMALL, gpus=gpus)), book) == []


def test_acs_and_missing_peer_access_are_told(book):
    devices = ["/dev/nvidia0", "/dev/nvidia1"]
    acs = {"devices": devices, "acs": ["00:01.0", "00:03.0"]}
    assert codes_of(make_job(*on_one_host(gpus=acs)), book) == ["DX402"]
    assert codes_of(make_job(*on_one_host(gpus={"devices": devices, "p2p": P2P})), book) == ["DX418"]
