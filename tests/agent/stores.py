"""A run's store with connections to it, and what may be in its place or on the way to it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

from launcher.agent.network import ports
from launcher.agent.store.client import Client
from launcher.agent.store.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "k" * 64


class Served:
    """A store, and connections to it."""

    def __init__(self) -> None:
        self.listener = ports.listening(only="127.0.0.1")
        self.port = ports.port_of(self.listener)
        self.told: list[str] = []
        self.store = Server(self.listener, KEY, self.told.append)
        self.clients: list[Client] = []

    def client(self) -> Client:
        self.clients.append(Client("127.0.0.1", self.port, key=KEY, timeout_s=30))
        return self.clients[-1]

    def stranger(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def sealed(client: Client, text: bytes) -> bytes:
    """As this client would send it."""
    return struct.pack("!I", len(text)) + client._session.seal(text) + text


def everything(sock: socket.socket) -> bytes:
    """All that comes until the other end hangs up."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(1 << 16):
            data += more
    return data


class NotYet:
    """Where the store will be: `count` connections end before that, each by `then`."""

    def __init__(self, count: int, then: Callable[[socket.socket], None]) -> None:
        self._listener = ports.listening(only="127.0.0.1")
        self.port = ports.port_of(self._listener)
        self._count, self._then = count, then
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for _ in range(self._count):
            with self._listener.accept()[0] as sock:
                self._then(sock)
        Server(self._listener, KEY)


class Recorder:
    """A man in the middle between a client and the store: it sees everything and can add messages."""

    def __init__(self, served: Served) -> None:
        self.listener = ports.listening(only="127.0.0.1")
        self.sent: list[bytes] = []
        self.answers: list[bytes] = []
        threading.Thread(target=self._run, args=(served,), daemon=True).start()
        self.client = Client("127.0.0.1", ports.port_of(self.listener), key=KEY, timeout_s=30)

    def _run(self, served: Served) -> None:
        self.near = self.listener.accept()[0]
        self.far = served.stranger()
        for one, other, seen in ((self.near, self.far, self.sent), (self.far, self.near, self.answers)):
            threading.Thread(target=self._pass_on, args=(one, other, seen), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket, seen: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                seen.append(data)
                other.sendall(data)

    def close(self) -> None:
        for sock in (self.listener, self.near, self.far, self.client):
            sock.close()
