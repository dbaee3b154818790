"""How a node finds node 0, and what it publishes about its own network, while torch is being imported."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Dict, Optional

from ..channel import Message
from ..failures import Failure
from ..network import routes
from ..network.endpoint import Endpoint
from ..stream.writer import Writer
from ..system import facts
from .children import ServerProcess
from .place import Place

if TYPE_CHECKING:
    from ..messages import Cause

LOOK_S = 1.0
"""How often a waiting node checks whether another one has given up."""


_PATIENCE_S = 2.0
"""A shorter wait for node 0 is not reported."""

_TELLS_S = 30.0
"""How long a node that cannot start its workers waits to tell the others: a scheduler may be starting them."""


class Joining:
    """The phase from the first look at the network until the worker group has node 0's address."""

    def __init__(self, place: Place, out: Writer) -> None:
        self.endpoint = Endpoint(place.job)
        self.joined = self.met = False
        """Whether node 0's address is known, and whether there was a rendezvous."""

        self._place, self._job, self._out = place, place.job, out
        self._fabric: Optional[Message] = None
        self._began, self._limit_s = time.monotonic(), place.job.rdzv_timeout_s
        self._waits_for = ""
        self._look_at = 0.0

    def look_at_fabric(self, env: Dict[str, str], open_files: int) -> None:
        """Choose this node's variables for NCCL, gloo and UCX; node 0 also publishes its addresses.

        `open_files`: how many files workers may open.
        """
        job = self._job
        if job.max_nodes > 1 and not job.shares_host:
            from ..fabric import network_variables

            try:
                file = os.path.join(self._place.directory, "fabric.json")
                self._fabric = network_variables.for_node(env, job.env, facts.gpu_count(env) or 0, file, open_files)
            except Exception as error:  # noqa: BLE001 - the run works without it, whatever is odd about this host
                self._out.event("warning", message=f"the fabric cannot be read: {type(error).__name__}: {error}")
                own = routes.own_addresses().items()
                self._fabric = network_variables.Choice(
                    interfaces={ip: name for name, ips in own for ip in ips}
                ).to_json()
        if env.get("DISTLAUNCH_FACTS") == "full":  # the doctor's job
            from ..fabric import discovery, sources

            self._out.event("facts", **discovery.read(sources.Tree(), full=True, open_files=open_files).to_json())
        if self._place.node_rank == 0:
            known = list(self._fabric["interfaces"] if self._fabric else {})
            self.endpoint.tell(lambda: known or routes.candidates(self._place.host))

    def go_on(self, server: ServerProcess) -> Optional[Message]:
        """Send node 0's address to the worker group once it is known; returns the failure if that takes too long."""
        address = self.endpoint.look()
        if address is not None:
            self.joined = True
            server.group.send({"endpoint": address, "fabric": self._fabric})
            return None
        waits_for, limit_s = self.endpoint.waits_for, self._limit_s
        waited = time.monotonic() - self._began
        if waited >= limit_s:
            kind = Failure.FABRIC if self.endpoint.told else Failure.NODE
            return {"message": f"waited {limit_s:.0f} s for {waits_for}", "kind": kind}
        if waits_for != self._waits_for and waited > _PATIENCE_S:
            self._waits_for = waits_for
            self._out.event("waiting", what=waits_for, limit_s=limit_s)
        return None

    def ended(self, now: float) -> Optional[Dict[str, Optional[Cause]]]:
        """How another node has ended the run, if one has; only before the rendezvous, as the store reports it then."""
        if self.met or now < self._look_at:
            return None
        self._look_at = now + LOOK_S
        return self.endpoint.ended()

    def tell_failure(self, server: ServerProcess, why: Cause) -> float:
        """Have the group's process meet the others to tell them why this node has no workers; until when at most.

        Not if a file tells them, or if they may begin without this node.
        """
        several = self._job.max_nodes > 1 and self.endpoint.file is None
        if self.met or not several or (self._job.min_nodes != self._job.max_nodes and self._place.node_rank > 0):
            return 0.0
        server.group.send({"fail": why})
        self._limit_s = min(self._limit_s, time.monotonic() - self._began + _TELLS_S)
        return self._began + self._limit_s

    def end(self, result: str, why: Optional[Cause]) -> None:
        """Tell nodes that still look for this one that it has ended.

        An elastic run continues without a node, but not without node 0.
        """
        if self._job.elastic:
            tells = self._place.node_rank == 0 and (result == "success" or why is not None)
        else:
            tells = not self.met and result in ("failed", Failure.NOT_CHOSEN)
        if tells:
            self.endpoint.end(why)
