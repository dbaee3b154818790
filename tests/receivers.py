"""Receivers of webhooks on this machine: real HTTP servers, well behaved or not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


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

    def __init__(self, codes: tuple[int, ...], location: str) -> None:
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

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.address}/token-7F3a"

    @property
    def types(self) -> list[str]:
        """What it was told, in the order of arrival."""
        return [each.body["type"] for each in self.got]


@contextmanager
def receiver(*codes: int, location: str = "") -> Iterator[Receiver]:
    """A receiver, until the block ends; without codes, it accepts everything."""
    made = Receiver(codes or (200,), location)
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
        yield f"http://127.0.0.1:{server.getsockname()[1]}/token-7F3a"


def closed() -> str:
    """The URL of a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/token-7F3a"
