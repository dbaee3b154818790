"""What the agent waits for: descriptors, signals, and failures of its own threads."""

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
"""Signals that workers do not ignore even if the agent was started with them ignored: torchrun handles them."""


class Loop:
    """Calls the handlers of descriptors; `catch_signals` must be called before the first turn."""

    def __init__(self) -> None:
        self.soft_limit = processes.allow_all_files()
        """The limit of open files before this process raised it, which workers get."""

        self._spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE_FILES)]
        self.selector = selectors.DefaultSelector()
        self.ignored: List[int] = []
        """Signals that were ignored when this process started, and that workers ignore, too."""

        self._failure: Optional[Tuple[str, str]] = None
        self._wakeup: Optional[Wakeup] = None

    def on_input(self, fd: int, call: Callable[[], object]) -> None:
        """Call `call` whenever there is something to read."""
        self.selector.register(fd, selectors.EVENT_READ, call)

    def forget(self, fd: int) -> None:
        """Stop waiting for a descriptor."""
        self.selector.unregister(fd)

    def turn(self, patience_s: float) -> float:
        """Wait, then call the handlers of all ready descriptors; returns the monotonic time when the wait ended.

        A handler may close descriptors that are ready as well: what has no handler any more, or a new one, is left out.
        """
        ready = self.selector.select(patience_s)
        looked = time.monotonic()
        handled = self.selector.get_map()
        for key, _ in ready:
            now = handled.get(key.fd)
            if now is not None and now.data == key.data:
                key.data()
        return looked

    def use_spare_files(self) -> None:
        """Free the spare descriptors: there may be none left, and the shutdown needs some."""
        for fd in self._spare:
            os.close(fd)

    # -- signals and threads ------------------------------------------------------------------------------------------

    def catch_signals(self, call: Callable[[], None]) -> None:
        """Catch signals from now on; `call` handles them, and failures of threads."""
        ignored = {number for number in processes.PASSED_ON if signal.getsignal(number) is signal.SIG_IGN}
        self.ignored = sorted(ignored - _HANDLED)
        for number in processes.PASSED_ON - (ignored & {signal.SIGHUP}):
            signal.signal(number, lambda *_: None)
        self._wakeup = Wakeup()
        self.on_input(self._wakeup.fileno(), call)

    def thread_failed(self, message: str, trace: str) -> None:
        """Record a failure and wake the loop; called in the failed thread."""
        self._failure = (message, trace)
        self.wake()

    def wake(self) -> None:
        """End the current wait; called in any thread."""
        assert self._wakeup is not None
        self._wakeup.wake()

    def failure(self) -> Optional[Tuple[str, str]]:
        """Message and traceback of a thread that has failed since the last call."""
        failure, self._failure = self._failure, None
        return failure

    def signals(self) -> bytes:
        """The numbers of the received signals, and zeros."""
        assert self._wakeup is not None
        return self._wakeup.take()

    def wait_for_signal(self, limit_s: float) -> None:
        """Wait for a signal, at most this long."""
        assert self._wakeup is not None
        select.select([self._wakeup], [], [], limit_s)
