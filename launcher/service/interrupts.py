"""Signals to the launcher: handled between steps while a run is followed, and at once during long steps."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher import output
from launcher.system import hangup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

    from typing_extensions import Self

    from launcher.backends._base import AnyBackend

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2)
_LEAVES = 3
"""This many Ctrl-C end the launcher, whatever it is doing."""


def of(on_hangup: str, backend: AnyBackend | None) -> Interrupts:
    """How this process obeys signals; `on_hangup`: `cancel` or `detach`, empty for what fits the backend."""
    return Interrupts(detaches=on_hangup == "detach" or (not on_hangup and not (backend and backend.is_here)))


class Interrupts:
    """Counts requests to stop and collects signals for the workers, while entered. Printing never blocks meanwhile.

    A signal that was ignored at start (nohup) stays ignored. If a hangup is to detach, it is blocked while entered, so
    that it does not end the programs that we start, either: a closed terminal sends it to all of them.
    """

    def __init__(self, *, detaches: bool = False) -> None:
        """`detaches`: SIGHUP does not stop the run, but sets `hung_up`."""
        self.stops = 0
        self.may_ask = False
        """Whether the first Ctrl-C is a question: it only sets `asked_at`."""

        self.asked_at: float | None = None
        """When that Ctrl-C came, on the monotonic clock; None if it did not, or was answered."""

        self._detaches, self._hung_up = detaches, False
        self._raised = self._obeyed = 0
        self._at_once = False
        self._for_workers: list[int] = []
        self._before: dict[int, signal.Handlers | int | None] = {}
        self._printing = output.in_background(lambda: self.stops > 0)

    def __enter__(self) -> Self:
        self._printing.__enter__()
        if self._detaches:
            hangup.block()
        for number in (*_STOP, *_PASS_ON):
            before = signal.getsignal(number)
            if before != signal.SIG_IGN:
                self._before[number] = before  # type: ignore[assignment]
                signal.signal(number, self._stop if number in _STOP else self._keep)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._printing.__exit__(kind, error, trace)
        finally:
            if self._detaches:
                hangup.unblock()
            for number, before in self._before.items():
                signal.signal(number, before)

    @property
    def hung_up(self) -> bool:
        """Whether our terminal was closed and that is to detach us."""
        return self._detaches and (self._hung_up or hangup.pending())

    def detach_at_hangup(self) -> None:
        """From now on, SIGHUP does not stop the run: it is not ours."""
        if not self._detaches:
            self._detaches = True
            hangup.block()

    def answered(self, *, cancel: bool) -> None:
        """Take note of the answer to the question that Ctrl-C asked."""
        self.stops = max(self.stops, int(cancel))
        self.asked_at = None

    def obeyed(self) -> None:
        """Take note that the requests made so far need nothing more."""
        self._raised = self._obeyed = self.stops

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise KeyboardInterrupt inside the block for each request to stop, including one made before."""
        self._at_once = True
        try:
            self._raise()
            yield
        finally:
            self._at_once = False

    def cancelled(self) -> None:
        """Handle a request from another process to cancel the run that is being submitted."""
        os.kill(os.getpid(), signal.SIGTERM)

    def for_workers(self) -> list[int]:
        """Signals for the workers that have arrived since the last call."""
        kept, self._for_workers = self._for_workers, []
        return kept

    def _stop(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGHUP and self._detaches:
            self._hung_up = True
            return
        if signum == signal.SIGINT and self.may_ask and not self.stops and self.asked_at is None:
            self.asked_at = time.monotonic()
            return
        # A closing terminal sends several of these signals; only a second Ctrl-C asks for force.
        self.stops = self.stops + 1 if signum == signal.SIGINT else max(self.stops, self._obeyed + 1)
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
    """Replaces `Interrupts` where signals are left alone: Ctrl-C raises Python's own KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.stops = 0
        """Nonzero once another process has requested the run's cancellation."""

        self.may_ask = self.hung_up = False
        self.asked_at: float | None = None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise KeyboardInterrupt if a stop was requested before."""
        if self.stops:
            raise KeyboardInterrupt
        yield

    def cancelled(self) -> None:
        """Handle a request from another process to cancel the run that is being submitted."""
        self.stops = 1

    def answered(self, *, cancel: bool) -> None:
        """Nothing is asked."""

    def for_workers(self) -> list[int]:
        """No signals to pass on."""
        return []
