"""Many logs, few threads: a generator reads each log, and has a turn in a thread when what it waits for is there.

A generator yields the open response that it reads on when more has arrived, or for how many seconds it pauses.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from launcher.backends.kubernetes.api import UnreachableError
from launcher.system import listener

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Wait: TypeAlias = Any
"""An open response, or seconds."""

_THREADS = 8
"""They also connect, which takes several round trips for each log."""

_SILENT_S = 60.0
"""Agents send something after 30 s of silence: a connection that is silent for this long is dead."""


class _Task:
    """A generator, and what it waits for."""

    def __init__(self, generator: Generator[Wait, None, None]) -> None:
        self.generator = generator
        self.response: Any = None
        self.until = 0.0
        """The end of its pause, or when the connection counts as dead."""

        self.woken = False

    def is_due(self, now: float) -> bool:
        """Whether it has waited long enough."""
        return self.until <= now or (self.woken and self.response is None)

    def turn(self) -> bool:
        """Run the generator until it waits again; whether it does."""
        self.woken = False
        late = self.response is not None and self.until <= time.monotonic()
        try:
            wait = self.generator.throw(UnreachableError("it is silent")) if late else next(self.generator)
        except StopIteration:
            return False
        paused = isinstance(wait, float)
        self.response = None if paused else wait
        self.until = time.monotonic() + (wait if paused else _SILENT_S)
        return True


class Turns:
    """Gives generators their turns; each has at most one at a time."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        """`fail` is called with an error after which none has a turn."""
        self._fail = fail
        self._tasks: dict[int, _Task] = {}
        self._back: deque[_Task] = deque()
        self._due: SimpleQueue[_Task | None] = SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self._stopped = False
        for target in (self._serve, *[self._work] * _THREADS):
            # Daemons: a turn may wait for a connection when this process exits.
            threading.Thread(target=listener.carried(target), daemon=True).start()

    def __contains__(self, number: int) -> bool:
        return number in self._tasks

    def add(self, number: int, generator: Generator[Wait, None, None]) -> None:
        """Give that generator its turns, from now on."""
        self._tasks[number] = task = _Task(generator)
        self._back.append(task)
        self._ring()

    def wake(self, number: int) -> None:
        """End the pause of that generator, if there is one."""
        if (task := self._tasks.get(number)) is not None:
            task.woken = True
            self._ring()

    def stop(self) -> None:
        """Give no more turns; the generators are closed."""
        self._stopped = True
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # it rings already, or has stopped
            self._button.send(b"x")

    def _serve(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - an error in a thread is one of the run
            self._fail(error)

    def _run(self) -> None:
        """Collect what is due, until stopped."""
        waiting: set[_Task] = set()
        self._selector.register(self._bell, selectors.EVENT_READ)
        while not self._stopped:
            while self._back:
                task = self._back.popleft()
                waiting.add(task)
                if task.response is not None:
                    self._selector.register(task.response, selectors.EVENT_READ, task)
            now = time.monotonic()
            due = {task for task in waiting if task.is_due(now)}
            pause = 0.0 if due else max(0.0, min((task.until for task in waiting), default=now + _SILENT_S) - now)
            due |= self._readable(pause)
            for task in due:
                if task.response is not None:
                    self._selector.unregister(task.response)
                self._due.put(task)
            waiting -= due
        for _ in range(_THREADS):
            self._due.put(None)
        for task in waiting:
            task.generator.close()
        self._selector.close()
        self._bell.close()
        self._button.close()

    def _readable(self, pause_s: float) -> set[_Task]:
        """The tasks whose responses have something to read."""
        found = set()
        for key, _ in self._selector.select(pause_s):
            if key.data is None:
                self._bell.recv(4096)
            else:
                found.add(key.data)
        return found

    def _work(self) -> None:
        while (task := self._due.get()) is not None:
            if self._stopped:
                task.generator.close()
            elif task.turn():
                self._back.append(task)
                self._ring()
