"""Proxies that a kubeconfig names: what they receive from us is what they receive from kubectl."""

from __future__ import annotations

import base64
import json
import socket
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes import connecting, pod_exec
from launcher.backends.kubernetes.api import UnreachableError
from launcher.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from launcher.backends.kubernetes.api import Cluster


def kubeconfig(directory: Path, server: str, proxy: str) -> str:
    cluster = {"server": server, "proxy-url": proxy}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    (directory / "config").write_text(json.dumps(config))
    return str(directory / "config")


@pytest.fixture
def socks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """A package for SOCKS whose proxy is away; what it was asked for."""
    asked: list[tuple[Any, dict[str, Any]]] = []

    def create(place: Any, **how: Any) -> None:
        asked.append((place, how))
        raise ConnectionRefusedError("the proxy is away")

    module = ModuleType("socks")
    module.__spec__ = sys.__spec__
    more = {"PROXY_TYPE_SOCKS5": 2, "PROXY_TYPE_SOCKS4": 1, "ProxyError": type("ProxyError", (OSError,), {})}
    vars(module).update(more, create_connection=create)
    monkeypatch.setitem(sys.modules, "socks", module)
    monkeypatch.delitem(sys.modules, "urllib3.contrib.socks", raising=False)
    return asked


def request(cluster: Cluster) -> None:
    cluster.call("POST", "/x", {})


def program(cluster: Cluster) -> None:
    """One in a pod, over a websocket."""
    pod_exec.execute(cluster, "x", "node", ["true"])


@pytest.mark.parametrize("ask", [request, program])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_socks_proxy_is_asked_for_the_api_server_by_its_name(
    tmp_path: Path, socks: list[tuple[Any, dict[str, Any]]], scheme: str, ask: Callable[[Cluster], None]
) -> None:
    path = kubeconfig(tmp_path, f"{scheme}://api.inside:6443", "socks5://127.0.0.1:1080")
    with pytest.raises(UnreachableError, match="the proxy is away"):
        ask(connecting.connect(path, "", ""))

    ((place, how),) = socks
    assert (place, how["proxy_addr"], how["proxy_port"]) == (("api.inside", 6443), "127.0.0.1", 1080)
    assert how["proxy_rdns"] is True


def test_without_the_package_for_it_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socks", None)
    monkeypatch.delitem(sys.modules, "urllib3.contrib.socks", raising=False)
    path = kubeconfig(tmp_path, "https://api.inside:6443", "socks5://127.0.0.1:1080")
    with pytest.raises(BackendUnavailableError, match="needs PySocks") as raised:
        connecting.connect(path, "", "")
    assert raised.value.hint == "pip install PySocks"


@pytest.mark.parametrize("ask", [request, program])
def test_a_proxy_receives_the_password_of_its_url(tmp_path: Path, ask: Callable[[Cluster], None]) -> None:
    received: list[bytes] = []

    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            received.append(connection.recv(4096))
            connection.sendall(b"HTTP/1.1 503 Busy\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        proxy = f"http://me:s%40cret@127.0.0.1:{listening.getsockname()[1]}"
        cluster = connecting.connect(kubeconfig(tmp_path, "https://api.inside:6443", proxy), "", "")
        with pytest.raises(UnreachableError):
            ask(cluster)
        thread.join()

    head, *lines = received[0].decode().splitlines()
    assert head.startswith("CONNECT api.inside:6443 ")
    assert base64.b64encode(b"me:s@cret").decode() in next(
        line for line in lines if line.lower().startswith("proxy-authorization: basic ")
    )
