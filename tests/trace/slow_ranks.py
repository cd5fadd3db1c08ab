"""Slownesses between ranks, made for real with gloo: `python slow_ranks.py FAULT RANK WORLD FOLDER`.

Prints what the fault cost this rank and how long it ran, in seconds.
"""

import datetime
import json
import os
import sys
import time

import torch  # noqa: TID253
import torch.distributed as dist  # noqa: TID253
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: TID253

STEPS = 12
LATE_S = 0.015
BUSY = {"a rank computes longer": 2, "two ranks compute longer": 3, "a rank has the popular experts": 3}
COMMUNICATION = {"many small transfers", "much to transfer", "much to gather", "many barriers"}


class RankLoop:
    """The loop of one rank, and what its fault has cost so far."""

    def __init__(self, fault, rank, world):
        self.fault, self.rank, self.world = fault, rank, world
        self.weight, self.x, self.large = torch.randn(500, 500), torch.randn(100, 500), torch.randn(1500, 500)
        self.payload = torch.ones(1_500_000 if fault == "much to transfer" else 500)
        self.part = torch.ones(400_000)
        self.cost = self.ran = self.had_processor = 0.0

    def run_step(self, step):
        with record_function(f"[Executor] _forward_step {step}: 0 ctx reqs, 4 gen reqs"):
            with record_function("module:layers.0.attn"):
                self.compute()
            begin = time.perf_counter()
            if self.is_slow():
                self.be_slow()
                self.cost += time.perf_counter() - begin
            with record_function("module:layers.0.mlp.experts"):
                torch.mm(self.x, self.weight)
                begin = time.perf_counter()
                if self.rank == self.world - 1 and self.fault == "a rank has the popular experts":
                    self.compute_more()
                    self.cost += time.perf_counter() - begin
            begin = time.perf_counter()
            self.communicate()
            self.cost += time.perf_counter() - begin if self.fault in COMMUNICATION else 0.0
            dist.all_reduce(torch.ones(8))

    def compute(self):
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        for _ in range(20):
            torch.mm(self.x, self.weight)
        self.ran += time.perf_counter() - begin
        self.had_processor += time.thread_time() - begin_cpu

    def is_slow(self):
        return self.rank in {
            "a rank computes longer": (self.world - 1,),
            "two ranks compute longer": (1, 2),
            "a rank comes late": (0,),
            "the middle rank sleeps": (1,),
            "late before a broadcast": (0,),
            "a rank collects garbage": (1,),
        }.get(self.fault, ())

    def be_slow(self):
        if self.fault in BUSY:
            with record_function("module:layers.0.mlp"):
                self.compute_more()
        elif self.fault == "the middle rank sleeps":
            time.sleep(LATE_S)
        elif self.fault == "a rank collects garbage":
            with record_function("Python GC"):
                spin(LATE_S)
        else:
            spin(LATE_S)

    def compute_more(self):
        for _ in range(BUSY[self.fault]):
            torch.mm(self.large, self.weight)

    def communicate(self):
        if self.fault == "much to gather":
            dist.all_gather([torch.empty_like(self.part) for _ in range(self.world)], self.part)
        elif self.fault == "many barriers":
            for _ in range(40):
                dist.barrier()
        elif self.fault == "late before a broadcast":
            dist.broadcast(self.payload, 0)
        else:
            for _ in range(80 if self.fault == "many small transfers" else 1):
                dist.all_reduce(self.payload)


def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def main(fault, rank, world, folder):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=120),
    )
    loop = RankLoop(fault, rank, world)
    with torch.no_grad():
        loop.run_step(-1)
        loop.cost = loop.ran = loop.had_processor = 0.0
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            dist.barrier()
            begin = time.perf_counter()
            for step in range(STEPS):
                with record_function(f"ProfilerStep#{step}"):
                    loop.run_step(step)
            wall = time.perf_counter() - begin
        profiler.export_chrome_trace(f"{folder}/trace-rank-{rank}.json")
        dist.barrier()
    dist.destroy_process_group()
    undisturbed = loop.had_processor / loop.ran
    print("result " + json.dumps({"cost": loop.cost, "wall": wall, "undisturbed": undisturbed}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
