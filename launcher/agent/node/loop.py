"""What the agent waits for: descriptors, signals, and threads of its own that fail."""

from __future__ import annotations

import os
import select
import selectors
import signal
import time
from typing import Callable, List, Optional, Tuple

from ..system import processes
from ..wakeup import Wakeup

_SPARE_FILES = 16
_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that workers do not ignore, also where we were started so: torchrun handles them."""


class Loop:
    """Calls whoever a descriptor is registered for; `catch_signals` is to be called before the first turn."""

    def __init__(self) -> None:
        self.soft_limit = processes.allow_all_files()
        """Of open files, before this process has raised it: what its workers are to have."""

        self._spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE_FILES)]
        self.selector = selectors.DefaultSelector()
        self.ignored: List[int] = []
        """Signals that were when this process began, and that workers are to ignore."""

        self._failure: Optional[Tuple[str, str]] = None
        self._wakeup: Optional[Wakeup] = None

    def on_input(self, fd: int, call: Callable[[], object]) -> None:
        """Call that when there is something to read."""
        self.selector.register(fd, selectors.EVENT_READ, call)

    def forget(self, fd: int) -> None:
        """Wait for it no longer."""
        self.selector.unregister(fd)

    def turn(self, patience_s: float) -> float:
        """Wait, then call all for whom there is something; returns when the wait ended, on the monotonic clock."""
        ready = self.selector.select(patience_s)
        looked = time.monotonic()
        for key, _ in ready:
            key.data()
        return looked

    def use_spare_files(self) -> None:
        """It may be that we had none left, and ending needs some."""
        for fd in self._spare:
            os.close(fd)

    # -- signals and threads ------------------------------------------------------------------------------------------

    def catch_signals(self, call: Callable[[], None]) -> None:
        """From now on `call` hears of them, and of threads that fail."""
        ignored = {number for number in processes.PASSED_ON if signal.getsignal(number) is signal.SIG_IGN}
        self.ignored = sorted(ignored - _HANDLED)
        for number in processes.PASSED_ON - (ignored & {signal.SIGHUP}):
            signal.signal(number, lambda *_: None)
        self._wakeup = Wakeup()
        self.on_input(self._wakeup.fileno(), call)

    def thread_failed(self, message: str, trace: str) -> None:
        """Called in that thread; the loop goes on from here."""
        self._failure = (message, trace)
        assert self._wakeup is not None
        self._wakeup.wake()

    def failure(self) -> Optional[Tuple[str, str]]:
        """Message and traceback of a thread that has failed since the last call."""
        failure, self._failure = self._failure, None
        return failure

    def signals(self) -> bytes:
        """The numbers of those that have come, and zeros."""
        assert self._wakeup is not None
        return self._wakeup.take()

    def wait_for_signal(self, limit_s: float) -> None:
        """Until one has come, but no longer than that."""
        assert self._wakeup is not None
        select.select([self._wakeup], [], [], limit_s)
