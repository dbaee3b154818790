"""Requests over a network that is slow."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from launcher.backends.kubernetes import api, connecting
from tests.k8s.test_api import FINE, kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SMALL = (socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
BODY = {"x": "a" * (4 << 20)}


def test_a_large_request_may_take_longer_than_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side takes some of it all the time, and four times as long for all as it may take to connect."""
    monkeypatch.setattr(api, "_CONNECT_S", 1.0)

    def take() -> None:
        end = b""
        with listener.accept()[0] as sock, contextlib.suppress(OSError):  # the client gives up
            while end != b'"}' and (block := sock.recv(1 << 16)):
                end = (end + block)[-2:]
                time.sleep(0.06)
            sock.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(FINE)}\r\n\r\n{FINE}".encode())

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = threading.Thread(target=take, daemon=True)
        server.start()
        cluster = connecting.connect(str(kubeconfig(tmp_path, listener.getsockname()[1])), "", "")
        cluster.access.pool.connection_pool_kw["socket_options"] = [SMALL]

        answer = cluster.call("POST", "/x", BODY)
        server.join()

    assert answer == {"a": 1}
