"""A real test of collectives and of every pair of ranks, over the job's own MPI or torch.distributed.

Run by the job's own Python, through the user's launcher (see `remote/__init__.py`). What is sent is known beforehand,
so what arrives is compared, byte by byte. Every step has a time limit: a rank that does not get on says in which step
it is and ends itself, so that nothing is left behind.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

from trtdx.ranks.remote.marked_lines import SMOKE_MARK, print_marked

STUCK, FAILED = 70, 71  # exit statuses of ours
LAST_WORDS_S = 3.0  # between saying where one is stuck and ending, so that the others can say so too
MOST_SINGLE_PAIRS = 8  # up to as many ranks pairs are tested one after the other, which measures best


class Step(NamedTuple):
    """One thing that ranks do together."""

    number: int
    kind: str
    peers: Tuple[int, ...]
    size: int
    limit_s: float


class Reporter:
    """Says what a rank does, and ends it when a step takes too long."""

    def __init__(self, rank: int) -> None:
        self.rank, self.count = rank, 0
        self.step: Step | None = None
        self.began = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def say(self, event: str, **facts: Any) -> None:
        self.count += 1
        print_marked(SMOKE_MARK, dict(facts, event=event, rank=self.rank), self.count)

    def enter(self, step: Step | None) -> None:
        self.began, self.step = time.monotonic(), step

    def _watch(self) -> None:
        while True:
            time.sleep(0.1)
            step = self.step
            if step is not None and time.monotonic() - self.began > step.limit_s:
                try:
                    self.say("stuck", **step._asdict())
                    time.sleep(LAST_WORDS_S)
                finally:
                    os._exit(STUCK)


# --- the worlds ------------------------------------------------------------------------------------------------------


class MpiWorld:
    """Ranks of an MPI communicator."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()

    def barrier(self) -> None:
        self.comm.Barrier()

    def all_reduce(self, values: Any) -> bytes:
        from mpi4py import MPI

        sums = array.array("q", bytes(len(values) * 8))
        self.comm.Allreduce([values, MPI.INT64_T], [sums, MPI.INT64_T])
        return sums.tobytes()

    def broadcast(self, data: bytearray, root: int) -> bytes:
        self.comm.Bcast(data, root)
        return bytes(data)

    def all_gather(self, data: bytes) -> bytes:
        parts = bytearray(len(data) * self.size)
        self.comm.Allgather(data, parts)
        return bytes(parts)

    def send(self, data: bytes, peer: int) -> None:
        self.comm.Send(data, peer, 7)

    def receive(self, buffer: bytearray, peer: int) -> None:
        self.comm.Recv(buffer, peer, 7)


class TorchWorld:
    """Ranks of torch.distributed, on gloo or NCCL."""

    def __init__(self, backend: str) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        is_nccl = backend == "nccl"
        self.device = (
            torch.device("cuda", local % max(1, torch.cuda.device_count())) if is_nccl else torch.device("cpu")
        )

    def _tensor(self, data: Any, kind: Any) -> Any:
        return self.torch.frombuffer(bytearray(data), dtype=kind).to(self.device)

    def barrier(self) -> None:
        self.dist.barrier()

    def all_reduce(self, values: Any) -> bytes:
        tensor = self._tensor(values.tobytes(), self.torch.int64)
        self.dist.all_reduce(tensor)
        return bytes(tensor.cpu().numpy().tobytes())

    def broadcast(self, data: bytearray, root: int) -> bytes:
        tensor = self._tensor(data, self.torch.uint8)
        self.dist.broadcast(tensor, root)
        return bytes(tensor.cpu().numpy().tobytes())

    def all_gather(self, data: bytes) -> bytes:
        own = self._tensor(data, self.torch.uint8)
        parts = [self.torch.empty_like(own) for _ in range(self.size)]
        self.dist.all_gather(parts, own)
        return b"".join(bytes(part.cpu().numpy().tobytes()) for part in parts)

    def send(self, data: bytes, peer: int) -> None:
        self.dist.send(self._tensor(data, self.torch.uint8), peer)

    def receive(self, buffer: bytearray, peer: int) -> None:
        tensor = self.torch.empty(len(buffer), dtype=self.torch.uint8, device=self.device)
        self.dist.recv(tensor, peer)
        buffer[:] = tensor.cpu().numpy().tobytes()


# --- what is sent ----------------------------------------------------------------------------------------------------


def pattern(seed: int, size: int) -> bytes:
    """Return bytes that only this sender sends in this step."""
    block = bytes((seed * 131 + at * 7) % 251 for at in range(min(size, 4096)))
    return (block * (size // len(block) + 1))[:size]


def numbers(rank: int, count: int) -> Any:
    """Return integers whose sums over all ranks are known."""
    block = array.array("q", [at * 3 + rank for at in range(min(count, 1024))])
    return (block * (count // len(block) + 1))[:count]


def summed(ranks: int, count: int) -> bytes:
    extra = ranks * (ranks - 1) // 2
    block = array.array("q", [ranks * at * 3 + extra for at in range(min(count, 1024))])
    return bytes((block * (count // len(block) + 1))[:count].tobytes())


def first_difference(got: bytes, due: bytes) -> int:
    return next((at for at, (one, other) in enumerate(zip(got, due)) if one != other), min(len(got), len(due)))


# --- the test --------------------------------------------------------------------------------------------------------


class WrongDataError(Exception):
    """What arrived is not what was sent."""


def require_equal(got: bytes, due: bytes) -> None:
    if got != due:
        raise WrongDataError("byte %d of %d differs" % (first_difference(got, due), len(due)))


def timed(collective: Callable[[], bytes], due: bytes) -> float:
    """Return how long a collective took, after its result was compared."""
    began = time.perf_counter()
    got = collective()
    seconds = time.perf_counter() - began
    require_equal(got, due)
    return seconds


def list_rounds(size: int) -> List[List[Tuple[int, int]]]:
    """Return all pairs of ranks in rounds: one pair at a time where ranks are few, else as a tournament."""
    rounds = list_tournament(size)
    return [[pair] for pairs in rounds for pair in pairs] if size <= MOST_SINGLE_PAIRS else rounds


def list_tournament(size: int) -> List[List[Tuple[int, int]]]:
    """Return all pairs of ranks in as few rounds as there can be, in each of which a rank has one partner at most."""
    seats = list(range(size + size % 2))
    rounds = []
    for _ in range(len(seats) - 1):
        pairs = [(seats[at], seats[-1 - at]) for at in range(len(seats) // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < size])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


class SmokeTest:
    """All steps of one world, numbered alike on every rank."""

    def __init__(self, world: Any, reporter: Reporter, question: Dict[str, Any]) -> None:
        self.world, self.reporter = world, reporter
        self.sizes, self.limit_s = question["sizes"], float(question["step_s"])
        self.number = 0
        self.pairs: List[Dict[str, Any]] = []
        self.times: List[Dict[str, Any]] = []

    def begin(self, kind: str, peers: Tuple[int, ...] = (), size: int = 0, factor: float = 1.0) -> None:
        self.reporter.enter(Step(self.number, kind, peers, size, self.limit_s * factor))

    def run(self) -> None:
        everybody = tuple(range(self.world.size))
        for pairs in list_tournament(self.world.size):
            self.make_contact(pairs)
        self.number += 1
        self.begin("barrier", everybody, factor=2.0)
        self.world.barrier()
        for size in self.sizes:
            for kind in (self.all_reduce, self.broadcast, self.all_gather):
                self.number += 1
                self.begin(kind.__name__, everybody, size)
                seconds = kind(size)
                self.times.append({"kind": kind.__name__, "size": size, "seconds": seconds})
        for pairs in list_rounds(self.world.size):
            self.test_round(pairs, everybody)
        self.reporter.enter(None)

    def make_contact(self, pairs: List[Tuple[int, int]]) -> None:
        """Let every pair exchange a few bytes; nobody waits for other pairs, so one that cannot is seen as such."""
        self.number += 1
        for one, other in pairs:
            if self.world.rank in (one, other):
                self.begin("contact", (one, other), 8)
                self.exchange(one, other, 8, 1)

    def test_round(self, pairs: List[Tuple[int, int]], everybody: Tuple[int, ...]) -> None:
        self.number += 1
        for one, other in pairs:
            if self.world.rank in (one, other):
                self.begin("send_receive", (one, other), max(self.sizes))
                self.test_pair(one, other)
        self.number += 1
        self.begin("barrier", everybody, factor=2.0)  # it waits for pairs that may take their whole time
        self.world.barrier()

    def all_reduce(self, size: int) -> float:
        count = max(1, size // 8)
        values = numbers(self.world.rank, count)
        return timed(lambda: self.world.all_reduce(values), summed(self.world.size, count))

    def broadcast(self, size: int) -> float:
        root = size % self.world.size
        data = bytearray(pattern(root, size)) if self.world.rank == root else bytearray(size)
        return timed(lambda: self.world.broadcast(data, root), pattern(root, size))

    def all_gather(self, size: int) -> float:
        part = max(1, size // self.world.size)
        own = pattern(self.world.rank, part)
        due = b"".join(pattern(rank, part) for rank in range(self.world.size))
        return timed(lambda: self.world.all_gather(own), due)

    def test_pair(self, one: int, other: int) -> None:
        """Send there and back: small messages for the latency, large ones for the bandwidth."""
        large = max(self.sizes)
        latency_s, large_s = self.exchange(one, other, 8, 10) / 2, self.exchange(one, other, large, 3)
        if self.world.rank == one:
            self.pairs.append({"pair": [one, other], "latency_s": latency_s, "bytes_per_s": 2 * large / large_s})

    def exchange(self, one: int, other: int, size: int, turns: int) -> float:
        """Return the shortest time for a message there and one back."""
        is_first, peer = self.world.rank == one, other if self.world.rank == one else one
        sent, due, buffer = pattern(self.world.rank, size), pattern(peer, size), bytearray(size)
        laps = []
        for _ in range(turns):
            began = time.perf_counter()
            if is_first:
                self.world.send(sent, peer)
            self.world.receive(buffer, peer)
            if not is_first:
                self.world.send(sent, peer)
            laps.append(time.perf_counter() - began)
        require_equal(bytes(buffer), due)
        return min(laps)


def open_mpi_world(reporter: Reporter) -> Any:
    import mpi4py

    mpi4py.rc.threads = True
    from mpi4py import MPI

    return MPI


def rank_from_environment() -> int:
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK")
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 0)


def world_from_environment() -> int:
    names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE")
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 1)


def open_world(reporter: Reporter, question: Dict[str, Any]) -> Tuple[Any, str]:
    """Return the world and what its library says of itself."""
    if question["backend"] == "mpi":
        MPI = open_mpi_world(reporter)  # noqa: N806
        return MpiWorld(MPI.COMM_WORLD), MPI.Get_library_version().split("\n")[0].strip("\0")[:200]
    import datetime

    import torch
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", question["master"][0])
    os.environ.setdefault("MASTER_PORT", str(question["master"][1]))
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank_from_environment()), str(world_from_environment())
    limit = datetime.timedelta(seconds=float(question["step_s"]) * 2)
    dist.init_process_group(question["backend"], timeout=limit)
    return TorchWorld(question["backend"]), "torch %s %s" % (torch.__version__, question["backend"])


def run_ranks(question: Dict[str, Any], reporter: Reporter) -> None:
    reporter.enter(Step(0, "start", (), 0, float(question["start_s"])))
    world, library = open_world(reporter, question)
    reporter.rank = world.rank
    reporter.say("start", size=world.size, host=socket.gethostname(), pid=os.getpid(), library=library,
                 stated=rank_from_environment(), cpus=len(os.sched_getaffinity(0)))  # fmt: skip
    if world.size > 1 or question["expected"] == 1:
        test = SmokeTest(world, reporter, question)
        test.run()
        for pair in test.pairs:
            reporter.say("pair", **pair)
        reporter.say("done", times=test.times if world.rank == 0 else [])
    else:
        reporter.say("alone")
    reporter.enter(Step(9_999_999, "finish", (), 0, float(question["step_s"])))
    if question["backend"] != "mpi":
        import torch.distributed as dist

        dist.destroy_process_group()


def run_spawner(question: Dict[str, Any], reporter: Reporter) -> None:
    """Start the workers as TensorRT-LLM's MpiPoolSession does, and wait until they have tested each other."""
    reporter.enter(Step(0, "spawn", (), 0, float(question["start_s"])))
    MPI = open_mpi_world(reporter)  # noqa: N806
    words = [word.decode() for word in _own_words()]
    child = json.dumps(dict(question, spawn=0, is_worker=True))
    workers = MPI.COMM_SELF.Spawn(words[0], [*words[1:-1], child], question["spawn"])
    reporter.enter(Step(1, "workers", (), 0, float(question["start_s"]) + 60 * float(question["step_s"])))
    workers.Barrier()
    workers.Disconnect()
    reporter.enter(None)


def _own_words() -> Iterator[bytes]:
    with open("/proc/self/cmdline", "rb") as file:
        return iter(file.read().rstrip(b"\0").split(b"\0"))


def end_worker() -> None:
    """Tell the process that spawned this one that the test is over."""
    from mpi4py import MPI

    parent = MPI.Comm.Get_parent()
    if parent != MPI.COMM_NULL:
        parent.Barrier()
        parent.Disconnect()


def report_failure(reporter: Reporter, err: BaseException) -> None:
    """Say in which step and how this rank failed, and leave the launcher a moment to pass it on."""
    step = reporter.step._asdict() if reporter.step else {}
    reporter.enter(None)
    text = "%s: %s" % (type(err).__name__, err)
    is_data = isinstance(err, WrongDataError)
    reporter.say("failed", error=text[:600], is_data=is_data, tail=traceback.format_exc()[-600:], **step)
    time.sleep(LAST_WORDS_S / 3)


def main() -> None:
    question = json.loads(sys.argv[1])
    reporter = Reporter(rank_from_environment())
    try:
        if question.get("spawn"):
            run_spawner(question, reporter)
        else:
            run_ranks(question, reporter)
            if question.get("is_worker"):
                end_worker()
    except BaseException as err:
        # Whatever happens on the way (standard output may be gone), the rank ends: MPI's own way out waits for the others.
        try:
            report_failure(reporter, err)
        finally:
            os._exit(FAILED)


if __name__ == "__main__":
    main()
