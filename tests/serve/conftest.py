"""A real server, and what a browser or a program asks it."""

from __future__ import annotations

import http.client
import json
import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.reports.conftest import reporter

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.command import Cli

__all__ = ["reporter"]


@dataclass(frozen=True)
class Answer:
    """What the server has answered."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Server:
    """`distlaunch serve`, while it runs."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", *, token: str | None = "", **headers: str) -> Answer:
        """One request; with the token as a bearer, or with another one, or none."""
        bearer = {} if token is None else {"Authorization": f"Bearer {token or self.token}"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, headers={**bearer, **headers})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        answer = self.ask(path)
        assert answer.status == 200, answer.text
        return json.loads(answer.text)

    def metric(self, name: str) -> float:
        """The value of one of the server's own metrics."""
        lines = self.ask("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"distlaunch_{name}"))

    def files(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Its exit code and stderr, once it has ended."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr.decode()


@contextmanager
def serving(cli: Cli, *words: str, **more: Any) -> Iterator[Server]:
    """A server that can be reached."""
    with cli.start("serve", "--output", "json", *words, **more) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            text = b""
            while not complete(text):
                line = process.stdout.readline()
                if not line:
                    pytest.fail(process.stderr.read().decode())
                text += line
            yield Server(process, json.loads(text)["result"]["url"])
        finally:
            process.kill()


def complete(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.fixture
def server(reporter: Cli) -> Iterator[Server]:
    """A server of the runs of `reporter`."""
    with serving(reporter) as found:
        yield found
