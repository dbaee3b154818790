"""What is between distlaunch and the API server: a proxy that understands requests, or a relay of bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from launcher.backends.kubernetes import connecting
from testbed.kube_api import ClosingSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

    from launcher.backends.kubernetes.api import Cluster


def connected(kubeconfig: str) -> Cluster:
    """A cluster whose connections leave no sockets to this process, even if the server exits at any time."""
    cluster = connecting.connect(kubeconfig, "", "")
    cluster.access.pool.connection_pool_kw["ssl_context"].sslsocket_class = ClosingSocket
    return cluster


class Proxy(ThreadingHTTPServer):
    """Between distlaunch and the API server: counts requests, and may swallow answers."""

    daemon_threads = True

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._kubeconfig = kubeconfig
        self.cluster = connected(str(kubeconfig))
        self.requests: list[str] = []
        self.given: dict[str, int] = {}
        """The bytes of the last answer to each request."""

        self.sent: list[dict[str, Any]] = []
        """The objects that were posted, but for questions about our rights."""

        self.swallow: str = ""
        """The answer to the first request of this method and collection is not passed on."""

        self.dropped: str = ""
        """Requests of this method and path are neither passed on nor answered."""

        self.away: str = ""
        """From the answer to the first request of this method and path on, none is passed on, until this is empty."""

        self.is_away = False
        self.held: str = ""
        """The answer to the first request of this method and collection comes once `released` is set."""

        self.holds, self.released = threading.Event(), threading.Event()
        self.hidden: str = ""
        """Reviews at this path list no rules."""

    def kubeconfig(self) -> str:
        """The user's, with this as the server."""
        found = yaml.safe_load(self._kubeconfig.read_text())
        found["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.server_address[1]}"}
        return yaml.dump(found)


@contextmanager
def before(kubeconfig: Path) -> Iterator[Proxy]:
    """A proxy in front of this cluster."""
    with Proxy(kubeconfig) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        path = self.path.partition("?")[0]
        request = f"{self.command} {path}"
        self.server.requests.append(request)
        if self.command == "POST" and body and not path.endswith("reviews"):
            self.server.sent.append(json.loads(body))
        if self.server.away and self.server.is_away:
            return
        if self.server.dropped and self.server.dropped in request:
            return
        configuration = self.server.cluster.configuration
        headers = {
            name: value for name, value in self.headers.items() if name in ("Content-Type", "Accept", "authorization")
        }
        answer = self.server.cluster.access.pool.request(
            self.command, configuration.host + self.path, body=body, headers=headers
        )
        if self.server.swallow and f"{self.command} {path}".endswith(self.server.swallow):
            self.server.swallow = ""
            return
        if self.server.away and self.server.away in f"{self.command} {path}":
            self.server.is_away = True
            return
        if self.server.held and f"{self.command} {path}".endswith(self.server.held):
            self.server.held = ""
            self.server.holds.set()
            self.server.released.wait()
        data = answer.data
        if self.server.hidden and path.endswith(self.server.hidden):
            data = json.dumps({**json.loads(data), "status": {"resourceRules": [], "incomplete": True}}).encode()
        self.server.given[request] = len(data)
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = do  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


class Relay:
    """Passes connections on to the API server as they are; `cut` breaks all that there are."""

    def __init__(self, kubeconfig: Path) -> None:
        self._found = yaml.safe_load(kubeconfig.read_text())
        self._server = urlsplit(self._found["clusters"][0]["cluster"]["server"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def kubeconfig(self) -> str:
        """The user's, with this as the server."""
        address = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._found["clusters"][0]["cluster"].update({"server": address, "tls-server-name": self._server.hostname})
        return yaml.dump(self._found)

    def cut(self) -> None:
        """Break all connections; others can be made."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):  # it has ended
                sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> threading.Thread:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                ours = self._listener.accept()[0]
                theirs = socket.create_connection((self._server.hostname, self._server.port))
                self._open += [ours, theirs]
                self._start(self._serve, ours, theirs)

    def _serve(self, ours: socket.socket, theirs: socket.socket) -> None:
        with ours, theirs:
            back = self._start(_pass_on, theirs, ours)
            _pass_on(ours, theirs)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
