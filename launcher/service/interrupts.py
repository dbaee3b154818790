"""Signals to the launcher: obeyed between two steps by whoever follows a run, at once where a step may take long."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher import output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

    from typing_extensions import Self

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2)
_LEAVES = 3
"""The Ctrl-C that ends us whatever we do."""


class Interrupts:
    """While entered: counts requests to stop, and keeps the signals that are for the workers. Nobody is kept by what is printed.

    A signal that was ignored when we started (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.stops = 0
        self._raised = 0
        self._at_once = False
        self._for_workers: list[int] = []
        self._before: dict[int, signal.Handlers | int | None] = {}
        self._printing = output.in_background(lambda: self.stops > 0)

    def __enter__(self) -> Self:
        self._printing.__enter__()
        for number in (*_STOP, *_PASS_ON):
            before = signal.getsignal(number)
            if before != signal.SIG_IGN:
                self._before[number] = before  # type: ignore[assignment]
                signal.signal(number, self._stop if number in _STOP else self._keep)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._printing.__exit__(kind, error, trace)
        finally:
            for number, before in self._before.items():
                signal.signal(number, before)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Each request to stop, and one that was made before, raises KeyboardInterrupt in here, wherever that is."""
        self._at_once = True
        try:
            self._raise()
            yield
        finally:
            self._at_once = False

    def cancelled(self) -> None:
        """Somebody has asked elsewhere for the end of the run that is being submitted."""
        os.kill(os.getpid(), signal.SIGTERM)

    def for_workers(self) -> list[int]:
        """Signals to pass on since the last call."""
        kept, self._for_workers = self._for_workers, []
        return kept

    def _stop(self, signum: int, _frame: FrameType | None) -> None:
        # A terminal that closes sends several of them; only a person's second Ctrl-C asks for force.
        self.stops = self.stops + 1 if signum == signal.SIGINT else max(self.stops, 1)
        if self._at_once and self.stops == 1:
            output.note("stopping; once more to leave at once")
        if self._at_once or self.stops >= _LEAVES:
            self._raise()

    def _raise(self) -> None:
        if self.stops > self._raised:
            self._raised = self.stops
            raise KeyboardInterrupt

    def _keep(self, signum: int, _frame: FrameType | None) -> None:
        self._for_workers.append(signum)


class Unattended:
    """In place of `Interrupts` for who leaves signals alone: Ctrl-C is Python's own KeyboardInterrupt, raised at once."""

    def __init__(self) -> None:
        self.stops = 0
        """Not 0 once somebody has asked elsewhere for the end of the run."""

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A request that was made before raises KeyboardInterrupt."""
        if self.stops:
            raise KeyboardInterrupt
        yield

    def cancelled(self) -> None:
        """Somebody has asked elsewhere for the end of the run that is being submitted."""
        self.stops = 1

    def for_workers(self) -> list[int]:
        """No signals to pass on."""
        return []
