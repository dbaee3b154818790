"""The server itself: its socket, its token, and its end."""

from __future__ import annotations

import asyncio
import os
import queue
import secrets
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from launcher.agent.named_tuple import NamedTuple
from launcher.errors import RequestError
from launcher.server.access import Access, is_loopback
from launcher.server.app import Pages
from launcher.server.connection import Connection
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from launcher.results.serve import Serving

_MOST_CONNECTIONS, _LAST_PORT = 256, 65535
_START_S, _CLOSE_S = 30, 3
"""How long the start, and answers at the end, may take."""


class _Open(NamedTuple):
    """What is there before the first request."""

    directory: Path
    listener: socket.socket
    token: str
    serving: Serving


def serve(directory: Path, *, host: str, port: int, token_file: str | None, ready: Callable[[Serving], None]) -> None:
    """Serve the runs of this directory until SIGINT or SIGTERM; `ready` is called once it can be reached.

    Raises `RequestError` if it must not or cannot listen there, and `StorageError` for the token's file.
    """
    with _opened(directory, host, port, token_file) as found, _kept_signals():
        asyncio.run(_run(found, lambda _: ready(found.serving)))


@contextmanager
def background(directory: Path, *, port: int, token_file: str | None) -> Iterator[Serving]:
    """The same from a thread, to the end of the block."""
    started: queue.SimpleQueue[_Server] = queue.SimpleQueue()
    with _opened(directory, "127.0.0.1", port, token_file) as found:
        thread = threading.Thread(target=lambda: asyncio.run(_run(found, started.put)), daemon=True, name="serve")
        thread.start()
        server = started.get(timeout=_START_S)
        try:
            yield found.serving
        finally:
            server.handle_exit(signal.SIGINT, None)
            thread.join(2 * _CLOSE_S)


@contextmanager
def _opened(directory: Path, host: str, port: int, token_file: str | None) -> Iterator[_Open]:
    """The socket and the token."""
    with _listening(host, port) as listener, _token(token_file) as token:
        address, number = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        serving: Serving = {
            "url": f"http://{shown}:{number}/?token={token}",
            "host": address,
            "port": number,
            "token_file": None if token_file is None else os.path.abspath(token_file),
        }
        yield _Open(directory, listener, token, serving)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """The socket."""
    if not is_loopback(host):
        hint = f"from elsewhere: ssh -L {port or 8000}:127.0.0.1:{port or 8000} {socket.gethostname()}"
        raise RequestError(f"--host {host}: pages are only served on this machine", hint=f"leave --host out; {hint}")
    if not 0 <= port <= _LAST_PORT:
        raise RequestError(f"{port} is not a port", hint="0 to 65535; without --port, a free one is taken")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a server that has just ended
        try:
            found.bind((host.strip("[]"), port))
            found.listen(128)
        except OSError as error:
            hint = "without --port, a free one is taken"
            raise RequestError(f"cannot listen on port {port} of {host}: {error.strerror}", hint=hint) from error
        yield found


@contextmanager
def _token(path: str | None) -> Iterator[str]:
    """A new token; with a path, its file for the time in which it is valid."""
    token = secrets.token_urlsafe(32)
    if path is None:
        yield token
        return
    path = os.path.abspath(path)
    storage.write_whole(path, f"{token}\n".encode(), mode=0o600)
    try:
        yield token
    finally:
        with suppress(OSError):
            with open(path, encoding="utf-8") as file:
                own = file.read().strip() == token  # not the one of a later server
            if own:
                os.unlink(path)


@contextmanager
def _kept_signals() -> Iterator[None]:
    """uvicorn raises the signals that have ended it once more, when it has ended: then they do nothing."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run(found: _Open, ready: Callable[[_Server], None]) -> None:
    server: _Server | None = None
    pages = Pages(found.directory, lambda: server is not None and server.should_exit)
    app = Access(pages.app(), found.token, f"distlaunch-{found.serving['port']}")
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", ws="none", http=Connection, loop="asyncio",
        proxy_headers=False, server_header=False, limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_CLOSE_S,
    )  # fmt: skip
    server = _Server(config, ready, pages.channels.close)
    await server.serve(sockets=[found.listener])
    pages.channels.close()


class _Server(uvicorn.Server):
    """Tells when it can be reached, and ends streams of events when it has to end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[_Server], None], ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._ending = ready, ending
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._ready(self)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A signal has arrived, or what a signal would ask for is wanted from another thread."""
        super().handle_exit(sig, frame)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ending)
