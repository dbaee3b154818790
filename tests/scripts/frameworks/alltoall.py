"""Each rank sends a part of 64 MB to each: part number k of rank r is full of r * size + k."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
each = (64 << 20) // size // 8
sent = np.repeat(np.arange(rank * size, (rank + 1) * size, dtype=np.int64), each)
received = np.empty_like(sent)
world.Alltoall(sent, received)
right = (received.reshape(size, each) == np.arange(size)[:, None] * size + rank).all()
print(f"rank {rank} of {size}: {received.nbytes >> 20} MB, {'right' if right else 'wrong'}", flush=True)
