"""Signals to the launcher, kept until whoever follows a run can act on them: nothing is raised in the middle of a step."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from typing_extensions import Self

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Interrupts:
    """While entered: counts requests to stop, and keeps the signals that are for the workers.

    A signal that was ignored when we started (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.stops = 0
        self.impatient = False
        """Set while a step runs that cannot be cut short safely: the second Ctrl-C in it raises KeyboardInterrupt."""

        self._for_workers: list[int] = []
        self._before: dict[int, signal.Handlers | int | None] = {}

    def __enter__(self) -> Self:
        for number in (*_STOP, *_PASS_ON):
            before = signal.getsignal(number)
            if before != signal.SIG_IGN:
                self._before[number] = before  # type: ignore[assignment]
                signal.signal(number, self._stop if number in _STOP else self._keep)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if somebody has asked to stop: nothing was started yet."""
        if self.stops:
            raise KeyboardInterrupt

    def for_workers(self) -> list[int]:
        """Signals to pass on since the last call."""
        kept, self._for_workers = self._for_workers, []
        return kept

    def _stop(self, signum: int, _frame: FrameType | None) -> None:
        # A terminal that closes sends several of them; only a person's second Ctrl-C asks for force.
        self.stops = self.stops + 1 if signum == signal.SIGINT else max(self.stops, 1)
        if self.impatient and self.stops > 1:
            raise KeyboardInterrupt

    def _keep(self, signum: int, _frame: FrameType | None) -> None:
        self._for_workers.append(signum)
