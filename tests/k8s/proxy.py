"""A proxy between distlaunch and the API server."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import yaml

from launcher.backends import _kube_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Proxy(ThreadingHTTPServer):
    """Between distlaunch and the API server: counts requests, and may swallow answers."""

    daemon_threads = True

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._kubeconfig = kubeconfig
        self.cluster = _kube_api.connect(str(kubeconfig), "", "")
        self.requests: list[str] = []
        self.given: dict[str, int] = {}
        """The bytes of the last answer to each request."""

        self.sent: list[dict[str, Any]] = []
        """The objects that were posted, but for questions about our rights."""

        self.swallow: str = ""
        """The answer to the first request of this method and collection is not passed on."""

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
    """A proxy before this cluster."""
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
        self.server.requests.append(f"{self.command} {path}")
        if self.command == "POST" and body and not path.endswith("reviews"):
            self.server.sent.append(json.loads(body))
        if self.server.away and self.server.is_away:
            return
        configuration = self.server.cluster._configuration
        headers = {name: value for name, value in self.headers.items() if name in ("Content-Type", "Accept", "authorization")}
        answer = self.server.cluster._pool.request(self.command, configuration.host + self.path, body=body, headers=headers)
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
        self.server.given[self.server.requests[-1]] = len(data)
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = do  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass
