"""Certificates of API servers."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from urllib3.util import ssl_

from launcher.backends.kubernetes import connecting
from launcher.backends.kubernetes.api import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLAIN = """
[req]
distinguished_name = name
prompt = no
[name]
CN = old
[authority]
basicConstraints = CA:TRUE
[server]
subjectAltName = IP:127.0.0.1
"""
"""An authority as some providers make it: without all that RFC 5280 demands, as what its key is used for."""


class Answer(BaseHTTPRequestHandler):
    """An empty object."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(directory: Path, name: str) -> Iterator[str]:
    """A server with such a certificate; its address."""
    (directory / "plain.cnf").write_text(PLAIN)
    new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config plain.cnf"
    signed = f"-CA {name}.crt -CAkey {name}-ca.key -set_serial 1 -extfile plain.cnf -extensions server"
    for words in (
        f"req -x509 {new} -days 2 -extensions authority -keyout {name}-ca.key -out {name}.crt",
        f"req {new} -subj /CN=server -keyout server.key -out server.csr",
        f"x509 -req -in server.csr -days 2 {signed} -out server.crt",
    ):
        subprocess.run(["openssl", *words.split()], cwd=directory, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def call(directory: Path, where: str, authority: str) -> dict[str, Any]:
    """Ask that server, of which a kubeconfig names the authority."""
    place = {"server": where, "certificate-authority": str(directory / f"{authority}.crt")}
    config = {
        "clusters": [{"name": "c", "cluster": place}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    path = directory / "config"
    path.write_text(json.dumps(config))
    return connecting.connect(str(path), "", "").call("POST", "/x")


def test_an_authority_that_kubectl_accepts_is_accepted_by_each_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 and later are strict by default. Another authority's certificate is refused."""
    usual = ssl_.create_urllib3_context

    def strict(*args: Any, **more: Any) -> ssl.SSLContext:
        context = usual(*args, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl_, "create_urllib3_context", strict)
    with served(tmp_path, "ours") as ours, served(tmp_path, "other") as other:
        assert call(tmp_path, ours, "ours") == {}
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            call(tmp_path, other, "ours")
