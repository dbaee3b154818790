"""A rank that reports the memory that it holds while all ranks wait at a barrier after their first all_reduce.

Rank 0 then waits for the file `go` in the directory that BENCH_DIRECTORY names, so that all can be measured from
outside.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

LIMIT_S = 30.0


def kilobytes(*names: str) -> int:
    """The sum of some fields of this process's smaps_rollup."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in names)


def main() -> None:
    """Join, reduce, measure, report."""
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    pss, private = kilobytes("Pss"), kilobytes("Private_Clean", "Private_Dirty")
    dist.barrier()
    directory = Path(os.environ["BENCH_DIRECTORY"])
    if dist.get_rank() == 0:
        directory.joinpath("ready").touch()
        limit = time.monotonic() + LIMIT_S
        while not directory.joinpath("go").exists() and time.monotonic() < limit:
            time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(json.dumps({"pss_kb": pss, "private_kb": private}) + "\n")


if __name__ == "__main__":
    main()
