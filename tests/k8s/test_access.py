"""Credentials that end while they are used, without a date that the client library could know."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes import access, connecting, pod_exec, pod_status
from launcher.backends.kubernetes.api import ApiError, UnreachableError
from launcher.backends.kubernetes.pod import NODE_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLUGIN = """
import json, pathlib
status = {"token": pathlib.Path(__file__).with_name("token").read_text()}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


class Server(ThreadingHTTPServer):
    """An API server that accepts one token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.token = "first"
        self.behind_s = 0
        self.headers: list[Any] = []
        """Of all requests."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.headers.append(self.headers)
        accepted = self.headers["Authorization"] == f"Bearer {self.server.token}"
        self.send_response_only(200 if accepted else 401)
        self.send_header("Content-Length", "2")
        self.send_header("Date", formatdate(time.time() - self.server.behind_s))
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST = answer  # noqa: N815 - the library's names

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def kubeconfig(directory: Path, server: Server, **user: Any) -> str:
    """A kubeconfig that leads to the server as this user; the user's token is in the file `token` beside it."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
        "current-context": "c",
    }
    (directory / "token").write_text("first")
    (directory / "plugin.py").write_text(PLUGIN)
    (directory / "config").write_text(json.dumps(config))
    return str(directory / "config")


@pytest.mark.parametrize("kind", ["a file", "a plugin"])
def test_a_token_that_was_replaced_is_read_again_once_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whatever follows a run for hours needs them."""
    how = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "interactiveMode": "Never"}
    user = {"tokenFile": "token"} if kind == "a file" else {"exec": {**how, "args": [str(tmp_path / "plugin.py")]}}
    with serving() as server:
        cluster = connecting.connect(kubeconfig(tmp_path, server, **user), "", "")
        monkeypatch.setattr(access, "_RENEWED_S", 0.0)
        assert cluster.call("GET", "/x") == {}
        server.token = "second"
        with pytest.raises(ApiError) as refused:
            cluster.call("GET", "/x")
        assert (refused.value.status, len(server.headers)) == (401, 3), "it is asked for once more"

        (tmp_path / "token").write_text("second")
        assert cluster.call("POST", "/x", {}) == {}
        with cluster.open("/x", {}, silent_s=5) as response:
            assert response.status == 200
        server.token = "third"
        (tmp_path / "token").write_text("third")
        with pytest.raises(UnreachableError, match="pod p: "):  # it starts no program
            pod_exec.execute(cluster, "p", "node", ["true"])
    assert [headers["Authorization"] for headers in server.headers[6:]] == ["Bearer second", "Bearer third"]


def test_what_was_read_a_moment_ago_is_not_read_again(tmp_path: Path) -> None:
    with serving() as server:
        cluster = connecting.connect(kubeconfig(tmp_path, server, tokenFile="token"), "", "")
        server.token = "second"
        with pytest.raises(ApiError):
            cluster.call("GET", "/x")
    assert len(server.headers) == 1


@pytest.mark.parametrize(("behind_s", "lost"), [(0, True), (200, False), (-200, True)])
def test_what_the_cluster_says_about_times_is_compared_with_its_own_clock(
    tmp_path: Path, behind_s: int, *, lost: bool
) -> None:
    """The clock of a notebook that slept, or of its virtual machine, may be minutes ahead."""
    meta = {"name": "x-0", "uid": "1", "labels": {NODE_LABEL: "0"}, "creationTimestamp": stamp(-600)}
    pod: Any = {"metadata": {**meta, "deletionTimestamp": stamp(-100)}, "status": {"phase": "Running"}}
    with serving() as server:
        server.behind_s = behind_s
        cluster = connecting.connect(kubeconfig(tmp_path, server, tokenFile="token"), "", "")
        cluster.call("GET", "/x")
    found = pod_status.pod_of(pod, access=cluster.access)

    assert abs(cluster.now() - (time.time() - behind_s)) < 60
    assert found is not None
    assert found.lost is lost, "its deadline has passed"


def stamp(after_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + after_s))
