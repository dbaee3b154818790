"""What workers find one another by: the port of their store, and the variables of their network."""

from __future__ import annotations

import importlib.util
import os
import socket
from typing import Any, Callable, Dict, List, Optional

from ..job import LOOPBACK, Job
from ..network import ports


class MasterPort:
    """The port on which node 0 of a round serves the workers' store: another one for each round."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.serves_workers = False
        """Whether node 0 of the round serves the workers' store."""

        self.hand_over: Callable[[socket.socket], object] = lambda _: None
        """Gives the fork server a socket that listens where workers will look for their store."""

        self._lent: Optional[socket.socket] = None

    def open(self, number: int) -> Dict[str, Any]:
        """A port on this node for the workers' store, on which we listen from now on; and whether it is us who serve the store.

        Without torch here nobody can, and rank 0 does: what it runs may have a Python of its own. It finds the port free.
        `number`: of the round.
        """
        asked, only = self._job.master_port if number <= 0 else 0, LOOPBACK if self._job.on_loopback else ""
        if self._lent is not None:
            self._lent.close()
            self._lent = None
        found = importlib.util.find_spec("torch")
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
    """Decided once it is known by which interfaces peers reach this node."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self.fabric: Optional[Dict[str, Any]] = None
        """What the agent has found of this node's fabric; None where all is on one host."""

        self.variables: Dict[str, str] = {}
        """For the workers, by what peers reach."""

    def settle(self, interfaces: List[str], why: str) -> None:
        """Decide the variables that depend on the interfaces by which peers reach this node, and tell all of them."""
        if self.fabric is None:
            return
        from ..fabric import network_variables

        known = {**os.environ, **{variable["name"]: variable["value"] for variable in self.fabric["variables"]}}
        chosen = network_variables.settle(self.fabric, interfaces, known, why)
        variables = [variable._asdict() for variable in chosen] + self.fabric["variables"]
        self.variables = {variable["name"]: variable["value"] for variable in variables if variable["source"] == "chosen"}
        self._tell("fabric", variables=variables, notes=self.fabric["notes"], interfaces=interfaces)
