import os

from mpi4py import MPI
from then import then

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
total = world.allreduce(rank + 1)
print(f"rank {rank} of {size} on {os.uname().nodename}: sum {total}", flush=True)
then(rank, world.Barrier)
