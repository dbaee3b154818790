"""Sends the size of the launcher's terminal to a worker that is shown from its stream, whenever the size changes."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import TYPE_CHECKING

from launcher.agent.terminal.frames import Connection
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.system.pipes import Bridge


class SizeTeller:
    """Serves one worker after another, in a thread that starts with the first worker."""

    def __init__(self, began: list[int], size: Callable[[], list[int] | None]) -> None:
        """`began`: the initial size of each worker's terminal; `size`: returns the current size of our terminal."""
        self._began, self._size = began, size
        self._connect: Callable[[], Bridge] | None = None
        self._way: tuple[Bridge, Connection] | None = None
        self._failed: tuple[Callable[[], Bridge], str, float] | None = None
        self._said = False
        self._wakeup: tuple[int, int] | None = None
        self._idle = threading.Event()

    def tell_to(self, connect: Callable[[], Bridge] | None) -> None:
        """Serve the worker that `connect` reaches from now on; None: no worker."""
        self._connect = connect
        if connect is not None and self._wakeup is None:
            self._wakeup = os.pipe()
            for fd in self._wakeup:
                os.set_blocking(fd, False)
            threading.Thread(target=self._run, args=self._wakeup[:1], daemon=True, name="size").start()
        self.look()

    def look(self) -> None:
        """Check whether our size has changed. Safe in a signal handler."""
        if self._wakeup is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wakeup[1], b"w")

    def close(self, limit_s: float) -> None:
        """Serve no worker any more; wait at most this long for the connection to close."""
        if self._wakeup is not None:
            self._idle.clear()
            self.tell_to(None)
            self._idle.wait(limit_s)

    def trouble(self, settle_s: float) -> str:
        """Why a worker that runs `settle_s` later could not be reached, reported once; the next change tries again."""
        if self._failed is None or self._said or time.monotonic() < self._failed[2] + settle_s:
            return ""
        connect, why, _ = self._failed
        self._failed, self._said = None, connect is self._connect
        return why if self._said else ""

    def _run(self, wakeup: int) -> None:
        worker, told = None, self._began
        while True:
            self._wait(wakeup)
            if self._connect is not worker:
                self._leave()
                worker, told = self._connect, self._began
            size = self._size()
            if worker is None:
                self._idle.set()
            elif size is not None and size != told:
                told = size
                self._tell(worker, size)

    def _wait(self, wakeup: int) -> None:
        """Wait until there may be work. A connection that has ended is closed."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        if self._way is not None:
            poll.register(self._way[1], select.POLLIN | (select.POLLOUT if self._way[1].waiting else 0))
        if wakeup in {fd for fd, _ in poll.poll()}:
            os.read(wakeup, 64)
        if self._way is not None:
            self._way[1].flush()
            self._way[1].receive()
            if self._way[1].ended:
                self._leave()

    def _leave(self) -> None:
        if self._way is not None:
            self._way[0].end()
            self._way = None

    def _tell(self, worker: Callable[[], Bridge], size: list[int]) -> None:
        try:
            if self._way is not None:
                self._way[1].send(size=size)
                if not self._way[1].deaf:
                    return
                self._leave()
            bridge = worker()
            self._way = bridge, Connection(bridge.sock)
            self._way[1].send(size=size)
        except LaunchError as error:
            self._failed = worker, error.message, time.monotonic()
