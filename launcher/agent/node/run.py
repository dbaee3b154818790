"""One node's agent, to its end."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn, Optional

if TYPE_CHECKING:
    from ..forkserver.prefork import Forked
    from ..job import Job


def run(job: Job, rank: int, stream: int, forked: Optional[Forked] = None, above: Optional[int] = None) -> NoReturn:
    """Be the agent of that node, its stream on that descriptor, to the end.

    `forked`: with this fork server. `above`: for the process with that pid alone.
    """
    if above:
        from . import below

        below.run(job, rank, stream, above)
    from .agent import Node

    os.dup2(2, 1)  # a stray print must not end up in the stream
    sys.exit(Node(job, rank, stream, forked).run())
