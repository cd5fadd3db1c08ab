"""A job of four gloo ranks under torchrun with one planted fault: `torch_job.py FAULT`. The culprit is rank 2."""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

FAULT = sys.argv[1]
CULPRIT = 2


def main():
    seconds = 20 if len(sys.argv) < 3 else int(sys.argv[2])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    rank = dist.get_rank()
    mine = rank == CULPRIT
    for number in range(1, 5):
        print("rank", rank, "step", number, flush=True)
        values = torch.ones(4)
        if number == 3 and mine:
            if FAULT == "exception":
                raise ValueError("bad shard")
            if FAULT == "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)
            if FAULT == "skip":
                continue
            if FAULT == "shape":
                values = torch.ones(8)
            if FAULT == "dtype":
                values = torch.ones(4, dtype=torch.float64)
            if FAULT == "order":
                dist.broadcast(values, src=0)
                continue
            if FAULT == "sleep":
                time.sleep(600)
        dist.all_reduce(values)
    dist.barrier()
    print("rank", rank, "done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
