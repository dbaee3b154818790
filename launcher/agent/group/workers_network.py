"""What workers need to find one another: the port of their store, and network variables."""

from __future__ import annotations

import importlib.util
import os
import socket
from typing import Any, Callable, Dict, List, Optional

from ..job import LOOPBACK, Job
from ..network import ports


class MasterPort:
    """The port on which node 0 serves the workers' store, a different one for each round."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.serves_workers = False
        """Whether node 0 of the round serves the workers' store."""

        self.hand_over: Callable[[socket.socket], object] = lambda _: None
        """Passes the fork server the listening socket to which workers will connect for their store."""

        self._lent: Optional[socket.socket] = None

    def open(self, number: int, *, torch: bool = True) -> Dict[str, Any]:
        """Choose a port on this node for the workers' store; if the agent serves the store, the port listens now.

        Without torch in this Python, or if the job leaves it to rank 0, that serves it, and finds the port free: its
        command may run another Python.
        `number`: the number of the round. `torch`: whether the workers meet as torch's do.
        """
        asked, only = (self._job.master_port or 0) if number <= 0 else 0, LOOPBACK if self._job.on_loopback else ""
        if self._lent is not None:
            self._lent.close()
            self._lent = None
        found = importlib.util.find_spec("torch") if torch and self._job.serves_store else None
        serves = found is not None and found.origin is not None  # None: a mere directory of that name
        sock = ports.listening(asked, only) if serves else ports.lent(asked)
        port = ports.port_of(sock)
        if serves:
            self.hand_over(sock)
            sock.close()
        else:
            self._lent = sock
        return {"port": port, "serves": serves}


class WorkersNetwork:
    """Network variables of the workers, decided once the interfaces on which peers reach this node are known."""

    def __init__(self, job: Job, tell: Callable[..., None]) -> None:
        self.master_port = MasterPort(job)
        self._tell = tell
        self.fabric: Optional[Dict[str, Any]] = None
        """What the agent has found out about this node's fabric; None if all nodes are on one host."""

        self.variables: Dict[str, str] = {}
        """Further environment variables of the workers."""

    def settle(self, interfaces: List[str], why: str) -> None:
        """Decide the variables that depend on the interfaces on which peers reach this node, and report all."""
        if self.fabric is None:
            return
        from ..fabric import network_variables

        known = {**os.environ, **{variable["name"]: variable["value"] for variable in self.fabric["variables"]}}
        chosen = network_variables.settle(self.fabric, interfaces, known, why)
        variables = [variable._asdict() for variable in chosen] + self.fabric["variables"]
        self.variables = {
            variable["name"]: variable["value"] for variable in variables if variable["source"] == "chosen"
        }
        self._tell("fabric", variables=variables, notes=self.fabric["notes"], interfaces=interfaces)
