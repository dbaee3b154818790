import os

import torch
import torch.distributed as dist
from then import then

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.tensor(rank + 1)
dist.all_reduce(total)
print(f"rank {rank} of {size} on {os.uname().nodename}: sum {int(total)}", flush=True)
then(rank, dist.barrier)
dist.destroy_process_group()
