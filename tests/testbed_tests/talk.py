"""Two hosts that talk to each other over TCP."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from testbed import wait_until
from testbed.ssh import listens

if TYPE_CHECKING:
    import subprocess

    from testbed import Host

PORT = 7000
LISTEN = """
import socket
server = socket.create_server(("", 7000))
while True:
    client, _ = server.accept()
    while data := client.recv(1 << 16):
        client.sendall(b"%d\\n" % len(data))
    client.close()
"""
SAY = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as client:
    client.sendall(b"x" * 1000)
    print(client.recv(100).decode())
"""


def listen(host: Host) -> None:
    """Start a server in a host that answers `say`."""
    if listens(host, PORT):
        return
    host.popen((sys.executable, "-c", LISTEN))
    wait_until(f"a server to listen in {host.name}", lambda: listens(host, PORT), limit_s=20)


def say(host: Host, to: str, *, patience_s: float = 5) -> subprocess.CompletedProcess[str]:
    """Talk from a host to the server at an address."""
    return host.run((sys.executable, "-c", SAY, to, str(patience_s)), timeout_s=patience_s + 20)
