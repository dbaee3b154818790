"""How a node finds node 0, and what it tells the others of its own network, while torch is being imported."""

from __future__ import annotations

import os
import time
from typing import Dict, Optional

from . import facts, net
from .cause import Cause
from .channel import Message
from .endpoint import Endpoint
from .job import Job
from .server import ServerProcess
from .writer import Writer

LOOK_S = 1.0
"""How often a node that waits looks whether another one has given up."""

NOT_NEEDED = "this node is not needed: the run was over when it came"

_PATIENCE_S = 2.0
"""A wait for node 0 that is shorter is not worth a word."""


class Joining:
    """From the first look at the network to the gang's knowing where node 0 is."""

    def __init__(self, job: Job, node_rank: int, host: str, folder: str, out: Writer) -> None:
        self.endpoint = Endpoint(job)
        self.joined = self.met = False
        """Whether it is known where node 0 is, and whether there was a rendezvous."""

        self._job, self._node_rank, self._host, self._folder, self._out = job, node_rank, host, folder, out
        self._fabric: Optional[Message] = None
        self._limit = time.monotonic() + job.rdzv_timeout_s
        self._waits_for = ""
        self._look_at = 0.0

    def look_at_fabric(self, env: Dict[str, str]) -> None:
        """What this node's variables for NCCL and its like should be; node 0 tells its addresses."""
        job = self._job
        if job.max_nodes > 1 and not job.shares_host:
            from . import fabric_env

            try:
                file = os.path.join(self._folder, "fabric.json")
                self._fabric = fabric_env.for_node(env, job.env, len(facts.gpus(env)), file)
            except Exception as error:  # noqa: BLE001 - whatever is odd about this machine, the run can do without
                self._out.event("warning", message=f"the fabric cannot be read: {type(error).__name__}: {error}")
                own = net.own_addresses().items()
                self._fabric = fabric_env.Choice(interfaces={ip: name for name, ips in own for ip in ips}).to_json()
        if env.get("DISTLAUNCH_FACTS") == "full":  # the doctor's job
            from . import fabric, fabric_tree

            self._out.event("facts", **fabric.read(fabric_tree.Tree(), full=True).to_json())
        if self._node_rank == 0:
            self.endpoint.tell(list(self._fabric["interfaces"] if self._fabric else {}) or net.candidates(self._host))

    def go_on(self, server: ServerProcess) -> Optional[Message]:
        """Tell the gang where node 0 is, once that is known; message and class of the failure when it takes too long."""
        address = self.endpoint.look()
        if address is not None:
            self.joined = True
            server.gang.send({"endpoint": address, "fabric": self._fabric})
            return None
        waits_for, limit_s = self.endpoint.waits_for, self._job.rdzv_timeout_s
        left = self._limit - time.monotonic()
        if left <= 0:
            return {"message": f"waited {limit_s:.0f} s for {waits_for}", "kind": "fabric" if self.endpoint.told else "node"}
        if waits_for != self._waits_for and limit_s - left > _PATIENCE_S:
            self._waits_for = waits_for
            self._out.event("waiting", what=waits_for, limit_s=limit_s)
        return None

    def ended(self, now: float) -> Optional[Dict[str, Optional[Cause]]]:
        """Whether another node has failed or the run has ended. Until there was a rendezvous; then the store tells."""
        if self.met or now < self._look_at:
            return None
        self._look_at = now + LOOK_S
        return self.endpoint.ended()

    def end(self, result: str, why: Optional[Cause]) -> None:
        """This node ends: who still looks for it need not. An elastic run goes on without a node, but not without node 0."""
        if self._job.elastic:
            tells = self._node_rank == 0 and (result == "success" or why is not None)
        else:
            tells = not self.met and result == "failed"
        if tells:
            self.endpoint.end(why)
