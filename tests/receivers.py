"""Receivers of webhooks on this machine: real HTTP servers, well behaved or not."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
import json
import os
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Host

TOKEN = f"token-7F3a-{os.getpid()}"
"""The secret part of each receiver's address; other tests that run now have another."""

_CLONE_NEWNET = 0x40000000


class Received(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    data: bytes

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.data)
        return found

    def signature(self, key: bytes) -> str:
        """The signature that it must have, as https://www.standardwebhooks.com specifies it."""
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.data
        return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class Receiver:
    """A server that keeps what it gets, and answers each request with the next of these codes, then with the last."""

    def __init__(self, codes: tuple[int, ...], location: str, host: Host | None) -> None:
        self.got: list[Received] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                code = codes[min(len(receiver.got), len(codes) - 1)]
                receiver.got.append(Received(self.path, headers, data))
                self.send_response(code)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - the name is http.server's

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        address = (host.address if host else "127.0.0.1", 0)
        self.server = ThreadingHTTPServer(address, Handler) if host is None else _inside(host, address, Handler)
        self.address = f"{address[0]}:{self.server.server_port}"
        self.url = f"http://{self.address}/{TOKEN}"

    @property
    def types(self) -> list[str]:
        """What it was told, in the order of arrival."""
        return [each.body["type"] for each in self.got]


def _inside(host: Host, address: tuple[str, int], handler: Any) -> ThreadingHTTPServer:
    """A server whose socket is in the network of a host of the testbed: only a thread that ends enters it."""
    found: list[ThreadingHTTPServer] = []

    def enter() -> None:
        with open(f"/proc/{host.anchor.pid}/ns/net", "rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        found.append(ThreadingHTTPServer(address, handler))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return found[0]


@contextmanager
def receiver(*codes: int, location: str = "", host: Host | None = None) -> Iterator[Receiver]:
    """A receiver, until the block ends; without codes, it accepts everything. `host`: where it listens."""
    made = Receiver(codes or (200,), location, host)
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


@contextmanager
def silent() -> Iterator[str]:
    """The URL of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/{TOKEN}"


def closed() -> str:
    """The URL of a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/{TOKEN}"
