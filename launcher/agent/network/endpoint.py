"""The address of the run's store: node 0 binds the port, the others learn it through the backend's channel."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple

from ..cause import is_cause
from ..job import LOOPBACK, Job
from ..system import files
from . import ports, routes
from .dns_search import Beacon, Search

if TYPE_CHECKING:
    from ..messages import Cause


class Endpoint:
    """Address and port of the store and, on node 0, its listening socket until that is handed over."""

    def __init__(self, job: Job) -> None:
        self.address: Optional[Tuple[str, int]] = None
        self.file: Optional[str] = job.rendezvous.get("file")
        if self.file and job.session:
            self.file += f".{job.session}"  # never the address of an earlier start
        self.told = ""
        """The addresses that node 0 has published, for the message if none is reached."""

        self._job = job
        self._listener: Optional[socket.socket] = None
        self._port = 0
        self._beacon: Optional[Beacon] = None
        self._search: Optional[Search] = None

    def open(self) -> None:
        """On node 0: bind and listen. Raises `ports.PortTakenError`."""
        about = self._job.rendezvous
        alone = self._job.on_loopback or (self._job.max_nodes == 1 and not self._by_name)
        if "fd" in about:
            self._listener = socket.socket(fileno=about["fd"])
        else:
            self._listener = ports.listening(int(about.get("port", 0)), LOOPBACK if alone else "")
        self._port = ports.port_of(self._listener)
        if "ports" in self._job.rendezvous:
            self._beacon = Beacon(self._job.rendezvous["ports"], self._job.run, self._port, self._job.key)
        if self._by_name:  # node 0 must find itself by that name, too, as its workers will
            self._look_for(self._port)

    def tell(self, candidates: Callable[[], Sequence[str]]) -> None:
        """On node 0: publish the addresses at which others may reach it, best first; asks only if none is known."""
        assert self._port
        if self._by_name:
            return
        known = self._job.rendezvous.get("addr") or self._job.master_addr
        addresses = [known] if known else list(candidates())
        self.address = (addresses[0], self._port)
        if self.file:
            files.write_whole(
                self.file, json.dumps({"addresses": addresses, "port": self._port}).encode("ascii"), sync=False
            )

    def look(self) -> Optional[Tuple[str, int]]:
        """The address, once it is known."""
        if self.address is None and self.file:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                told = json.loads(files.read_word(self.file))
                addresses, port = told["addresses"], int(told["port"])
                text = ", ".join(addresses)
                reached = routes.first_reachable(addresses, port)
                self.told = text
                self.address = (reached, port) if reached else None
        elif self.address is None and self._by_name:
            search = self._search or self._look_for(int(self._job.rendezvous.get("port", 0)))
            self.address, self.told = search.found, search.told
        elif self.address is None:
            self.address = (self._job.rendezvous["addr"], self._job.rendezvous["port"])
        return self.address

    def _look_for(self, port: int) -> Search:
        """Start the search for node 0 by its name."""
        about = self._job.rendezvous
        self._search = Search(
            about["addr"], port=port, beacons=about.get("ports", ()), run=self._job.run, key=self._job.key
        )
        return self._search

    @property
    def _by_name(self) -> bool:
        """Whether node 0 is known by a DNS name, or an address, that may not exist yet."""
        address = self._job.rendezvous.get("addr")
        return address is not None and ("any_order" in self._job.rendezvous or not routes.is_address(address))

    @property
    def waits_for(self) -> str:
        """What this node still waits for."""
        if self._search is not None:
            return self._search.waits_for
        return (
            f"node 0 to answer at any of {self.told}" if self.told else f"node 0 to publish its address in {self.file}"
        )

    def end(self, why: Optional[Cause]) -> None:
        """Publish the end of the run to nodes that may still wait for this one; the first message counts.

        `why` is None if the run has succeeded without them.
        """
        if self.file:
            with contextlib.suppress(OSError):
                files.write_once(self.file + ".end", json.dumps({"cause": why}).encode("ascii"), sync=False)

    def ended(self) -> Optional[Dict[str, Optional[Cause]]]:
        """The end that another node has published, if any."""
        if not self.file:
            return None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            why = json.loads(files.read_word(self.file + ".end"))["cause"]
            if why is None or is_cause(why):
                return {"cause": why}
        return None

    def fds(self) -> List[int]:
        """The listening socket's descriptor, on node 0."""
        return [self._listener.fileno()] if self._listener else []

    def handed_over(self) -> None:
        """Close our copy of the socket: the fork server has it now."""
        if self._listener:
            self._listener.close()
