"""A loop of a torch model for `trtdx trace run`: `python recorded_loop.py` or below torchrun; rank 1 comes late."""

import os
import time

import torch  # noqa: TID253
import torch.distributed as dist  # noqa: TID253

LATE_S = 0.05


def main():
    torch.set_num_threads(1)
    is_job = "WORLD_SIZE" in os.environ
    if is_job:
        dist.init_process_group("gloo")
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    model = torch.nn.Sequential()
    model.add_module("layers", layers)
    for _ in range(12):
        with torch.no_grad():
            result = model(torch.ones(8, 64))
        if not is_job or dist.get_rank() == 1:
            time.sleep(LATE_S)
        if is_job:
            dist.all_reduce(result)


if __name__ == "__main__":
    main()
