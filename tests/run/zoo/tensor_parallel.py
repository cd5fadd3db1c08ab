"""A linear layer cut over the ranks of a torchrun job, as tensor parallelism does; `nan` plants one in rank 2's part."""

import sys

import torch
import torch.distributed as dist

torch.manual_seed(0)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


class Shard(torch.nn.Module):
    def __init__(self):
        super().__init__()
        whole = torch.nn.Linear(16, 8 * size)
        self.part = torch.nn.Linear(16, 8)
        with torch.no_grad():
            self.part.weight.copy_(whole.weight[8 * rank : 8 * rank + 8])
            self.part.bias.copy_(whole.bias[8 * rank : 8 * rank + 8])
            if "nan" in sys.argv and rank == 2:
                self.part.weight[0, 0] = float("nan")

    def forward(self, values):
        own = self.part(values)
        parts = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(parts, own)
        return torch.cat(parts, -1)


print(Shard()(torch.ones(2, 16)).shape)
dist.destroy_process_group()
