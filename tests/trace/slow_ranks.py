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


def main(fault, rank, world, folder):  # noqa: C901
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=120),
    )
    weight, x = torch.randn(500, 500), torch.randn(100, 500)
    large = torch.randn(1500, 500)
    payload = torch.ones(1_500_000 if fault == "much to transfer" else 500)
    cost = wall = ran = had_processor = 0.0

    def reduce(tensor):
        dist.all_reduce(tensor)

    def compute():
        nonlocal ran, had_processor
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        for _ in range(20):
            torch.mm(x, weight)
        ran += time.perf_counter() - begin
        had_processor += time.thread_time() - begin_cpu

    def one_step(step):
        nonlocal cost
        with record_function(f"[Executor] _forward_step {step}: 0 ctx reqs, 4 gen reqs"):
            with record_function("module:layers.0.attn"):
                compute()
            begin = time.perf_counter()
            if rank == world - 1 and fault == "a rank computes longer":
                with record_function("module:layers.0.mlp"):
                    torch.mm(large, weight)
                    torch.mm(large, weight)
                cost += time.perf_counter() - begin
            if rank == 0 and fault == "a rank comes late":
                while time.perf_counter() < begin + 0.015:
                    pass
                cost += time.perf_counter() - begin
            with record_function("module:layers.0.mlp.experts"):
                torch.mm(x, weight)
                begin = time.perf_counter()
                if rank == world - 1 and fault == "a rank has the popular experts":
                    for _ in range(3):
                        torch.mm(large, weight)
                    cost += time.perf_counter() - begin
            begin = time.perf_counter()
            for _ in range(80 if fault == "many small transfers" else 1):
                reduce(payload)
            if fault in ("many small transfers", "much to transfer"):
                cost += time.perf_counter() - begin
            reduce(torch.ones(8))

    with torch.no_grad():
        one_step(-1)
        cost = ran = had_processor = 0.0
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            dist.barrier()
            begin = time.perf_counter()
            for step in range(STEPS):
                with record_function(f"ProfilerStep#{step}"):
                    one_step(step)
            wall = time.perf_counter() - begin
        profiler.export_chrome_trace(f"{folder}/trace-rank-{rank}.json")
        dist.barrier()
    dist.destroy_process_group()
    print("result " + json.dumps({"cost": cost, "wall": wall, "undisturbed": had_processor / ran}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
