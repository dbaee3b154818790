"""Prints what Horovod would read, once MPI has started this rank."""

import json
import os

from mpi4py import MPI

rank = MPI.COMM_WORLD.Get_rank()
found = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
print(f"rank {rank} of {MPI.COMM_WORLD.Get_size()}: {json.dumps(found)}", flush=True)
