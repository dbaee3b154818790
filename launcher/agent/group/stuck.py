"""No round begins on a node with a worker of the last one that SIGKILL has not ended: it may hold a GPU, or a port."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Iterable

from ..cause import of_node
from .errors import PeerEndedError
from .nodes import Nodes

if TYPE_CHECKING:
    from ..messages import ExitedWorker


def look(nodes: Nodes, exited: Iterable[ExitedWorker]) -> None:
    """End the run on all nodes if one of these workers is left."""
    for about in exited:
        if "stuck" in about:
            message = f"rank {about['rank']} (pid {about['pid']}) has survived SIGKILL: {about['stuck']}"
            why = of_node(host=nodes.host, node=nodes.node_rank, message=message, time=time.time())
            raise PeerEndedError(nodes.publish_failure(why))
