"""Finds node 0 by its DNS name, in a thread: a name server that does not answer blocks for many seconds."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from typing import Any, List, Optional, Sequence, Tuple

from . import ports, routes, secure

_PAUSE_S = 0.2
_PAUSE_MAX_S = 2.0
_ANSWER_S = 2.0
_ANSWER_BYTES = 1024


class Search:
    """Searches until DNS resolves node 0's name and node 0 answers there."""

    def __init__(self, name: str, *, port: int = 0, beacons: Sequence[int] = (), run: str = "", key: str = "") -> None:
        """`port` 0: node 0 publishes its port on one of the ports in `beacons`."""
        self.found: Optional[Tuple[str, int]] = None
        self.waits_for = f"DNS to know {name}"
        self.told = ""
        """The addresses that DNS has returned."""

        self._name, self._port, self._beacons, self._run, self._key = name, port, beacons, run, key
        threading.Thread(target=self._look, daemon=True, name="search").start()

    def _look(self) -> None:
        pause = _PAUSE_S
        while True:
            addresses = routes.resolve(self._name)
            if addresses:
                self.told = ", ".join(addresses)
                told = f"{self._name} ({self.told})"
                self.waits_for = f"node 0 to answer at {told}" + (f" port {self._port}" if self._port else "")
                port = self._reached(addresses)
                if port:
                    self.found = (self._name, port)
                    return
            time.sleep(pause)
            pause = min(pause * 1.3, _PAUSE_MAX_S)

    def _reached(self, addresses: List[str]) -> int:
        """Node 0's port, if it answers there; else 0."""
        if self._port:
            return self._port if routes.first_reachable(addresses, self._port) else 0
        return self._told([(address, beacon) for address in addresses for beacon in self._beacons])

    def _told(self, beacons: List[Tuple[str, int]]) -> int:
        """The port that this run's beacon publishes; 0 if none does. All are queried at once, within one limit."""
        from . import reach

        selector, limit = selectors.DefaultSelector(), time.monotonic() + _ANSWER_S
        for address, beacon in beacons:
            with contextlib.suppress(OSError):  # this process may not open more files
                sock = reach.connecting(address, beacon)
                if sock is not None:
                    selector.register(sock, selectors.EVENT_READ, bytearray())
        port = 0
        while selector.get_map() and not port and time.monotonic() < limit:
            for key, _ in selector.select(max(0.0, limit - time.monotonic())):
                if _read(key.fileobj, key.data):
                    continue
                port = port or self._port_of(bytes(key.data))
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()
        return port

    def _port_of(self, answer: bytes) -> int:
        """The port in a beacon's answer; 0 if it is not this run's, or not proved with the run's key."""
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            told = json.loads(answer)
            if told["run"] == self._run and secure.equal(told["proof"], _proof(self._key, self._run, told["port"])):
                return int(told["port"])
        return 0


def _read(sock: Any, answer: bytearray) -> bool:
    """Read what has arrived of a line; whether more is to come."""
    try:
        data = sock.recv(_ANSWER_BYTES - len(answer))
    except BlockingIOError:
        return True
    except OSError:
        return False
    answer += data
    return bool(data) and len(answer) < _ANSWER_BYTES and b"\n" not in data


class Beacon:
    """On node 0: publishes the port that it has chosen, on a port that all nodes know."""

    def __init__(self, candidates: Sequence[int], run: str, port: int, key: str) -> None:
        """Listen on the first free candidate. Raises `ports.PortTakenError`."""
        self._socket = self._bind(candidates)
        self._answer = json.dumps({"run": run, "port": port, "proof": _proof(key, run, port)}).encode("ascii") + b"\n"
        threading.Thread(target=self._tell, daemon=True, name="beacon").start()

    @staticmethod
    def _bind(candidates: Sequence[int]) -> socket.socket:
        for port in candidates:
            with contextlib.suppress(ports.PortTakenError):
                return ports.listening(port)
        raise ports.PortTakenError(98, f"all of the ports {', '.join(map(str, candidates))} are in use")

    def _tell(self) -> None:
        while True:
            try:
                peer = self._socket.accept()[0]
            except OSError:
                time.sleep(_PAUSE_S)  # out of descriptors, for example
                continue
            with contextlib.suppress(OSError), peer:
                peer.settimeout(_ANSWER_S)
                peer.sendall(self._answer)


def _proof(key: str, run: str, port: int) -> str:
    """Proof that the port comes from this run's node 0."""
    return secure.mac(key.encode(), b"distlaunch beacon", f"{port} {run}".encode()).hex()
