"""A stranger without a token keeps no one out."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from tests.runs.test_runs import make

if TYPE_CHECKING:
    from tests.command import Cli
    from tests.serve.conftest import Server

MANY = 300
REFUSED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_connections_that_ask_nothing_are_closed_for_one_that_does(server: Server) -> None:
    """Some are silent, some are in the middle of a request, and some of their second one after a refusal."""
    with ExitStack() as held:
        found: list[socket.socket] = []
        for number in range(MANY):
            one = held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            found.append(one)
            with suppress(ConnectionError):  # closed for a later one
                if number % 3 == 1:
                    one.sendall(b"GET / HTTP/1.1\r\nHost:")
                elif number % 3 == 2:
                    one.sendall(REFUSED)
                    assert one.recv(65536).startswith(b"HTTP/1.1 40")
                    one.sendall(b"GET")

        assert server.ask("/").status == 200
        assert server.metric("serve_viewers") == 0
        with suppress(ConnectionError):
            assert found[0].recv(1) == b""


def test_one_that_asks_nothing_is_closed_although_there_is_room(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as one:
        one.sendall(b"GET / HTTP/1.1\r\n")
        with suppress(ConnectionError):
            assert one.recv(1) == b""
    assert server.ask("/").status == 200


def test_an_answer_that_is_read_slowly_is_not_cut_off_for_connections_that_ask_nothing(
    reporter: Cli, server: Server
) -> None:
    for number in range(80):
        path = make(reporter.runs, f"train-20250101-000000-{number:04}").path / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "command": ["a.py", "x" * 100_000]}))
    ask = f"GET /runs.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    with ExitStack() as held, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        slow.settimeout(60)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(ask.encode())
        head, _, text = slow.recv(1000).partition(b"\r\n\r\n")
        for _ in range(MANY):
            one = held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            with suppress(ConnectionError):
                one.sendall(b"GET")
        whole = int(head.lower().partition(b"content-length: ")[2].split()[0])
        while more := slow.recv(65536) if len(text) < whole else b"":
            text += more

    assert len(text) == whole
    assert len(json.loads(text)["runs"]) == 80
