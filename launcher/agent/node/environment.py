"""What a node's workers get: their variables, their number, and what is imported ahead for them."""

from __future__ import annotations

import os
from typing import Dict, Optional, Tuple

from ..job import Job
from ..system import facts

# torch.distributed.nn: torch imports it late, inside DDP, and then keeps the process group alive longer than its
# threads, which aborts one gloo run in four at exit (pytorch/pytorch#190489). Importing it first avoids that.
PRELOAD = ["torch", "torch.distributed", "torch.distributed.nn"]


def of(job: Job, node_rank: int) -> Tuple[Dict[str, str], int, Optional[str], str]:
    """The workers' variables, the number of workers, their number of threads, and the reason for that."""
    env = job.environment(dict(os.environ), node_rank)
    count = job.workers
    if not isinstance(count, int):
        count = max(1, facts.of_process(facts.gpus(env), apart=job.virtual_local_rank))
    threads, why = facts.threads(env, shared=count > 1 or job.shares_host)
    env.update({facts.THREADS: threads} if threads else {})
    return env, count, threads, why
