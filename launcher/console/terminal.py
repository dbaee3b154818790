"""Connects the launcher's terminal to that of one rank; its agent has the other end (`launcher.agent.terminal.relay`).

While a rank is attached, keys are passed on as typed and its output is shown byte for byte: echo and line editing are
done by its own terminal, on its node. Only signals stay here, unless the rank reads raw keys or has the keyboard to
itself, so Ctrl-C cancels the run even if no connection works. Our terminal is always left as it was found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.console.terminal_loan import Loan
from launcher.console.terminal_modes import Modes
from launcher.console.terminal_size import SizeTeller

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from typing_extensions import Self

    from launcher.agent.messages import LentTerminal
    from launcher.system.pipes import Bridge

_YIELD_S = 2.0
_END_S = 10.0
_SETTLE_S = 3.0
"""How much later than its terminal's end a worker's end may be reported."""

_WORDS = {signal.SIGWINCH: b"w", signal.SIGCONT: b"c"}


class Terminal:
    """Our terminal, while entered: connected to a rank's terminal once that exists, until it is closed."""

    def __init__(self, about: LentTerminal, show: Callable[[int, bytes], object]) -> None:
        """`about`: from `terminal_modes.lent`; `show` writes bytes to one of our streams."""
        self.rank = about["rank"]
        self._show, self._modes = show, Modes(interactive=bool(about["interactive"]))
        self._before: dict[int, Any] = {}
        self._wakeup = os.pipe()
        for fd in self._wakeup:
            os.set_blocking(fd, False)
        self._lend: Callable[[], Loan] | None = None
        """Opens a connection, while the worker runs."""

        self._loan: Loan | None = None
        self._attached: Loan | None = None
        self._showing = self._again = False
        self._sizes = SizeTeller(about["size"], self._modes.size)
        self._on_terminal = (about["stdout"], about["stderr"])

    def __enter__(self) -> Self:
        handlers = {
            signal.SIGWINCH: self._wake,
            signal.SIGCONT: self._wake,
            signal.SIGTSTP: self._stop,
            signal.SIGQUIT: self._die,
        }
        for number, handler in handlers.items():
            if (before := signal.getsignal(number)) != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self._sizes.close(_YIELD_S)
        self._modes.restore(for_good=True)
        for number, before in self._before.items():
            signal.signal(number, before)

    def open(self, connect: Callable[[], Bridge], *, keyboard: bool) -> None:
        """Connect to the terminal of a worker that has started."""
        self._leave()
        self._showing = False
        suspends = keyboard and not self._modes.interactive  # else the other ranks would wait
        how = {"keyboard": keyboard, "suspends": suspends}
        self._lend = partial(Loan, connect, self._modes, self._wakeup[0], self._show, **how)
        self._loan = self._lend()

    def only_looks_on(self, connect: Callable[[], Bridge]) -> None:
        """Send our size to the terminal of a worker that has started and is shown from its stream."""
        self._sizes.tell_to(connect)

    def worker_ended(self) -> None:
        """Note that the worker can no longer be reached."""
        self._lend = None
        self._sizes.tell_to(None)

    def _leave(self) -> None:
        """Close the connection to a worker that may have exited without reporting a result."""
        if self._loan is not None and not self._loan.ended.is_set():
            self._loan.leave()
            self._tell(b"w")
            self._loan.ended.wait(_YIELD_S)

    def attached(self) -> None:
        """Show what arrives from the connection, as all earlier output in the rank's stream was shown."""
        if self._loan is not None:
            self._showing, self._attached = True, self._loan
            self._loan.begin.set()

    def detached(self) -> None:
        """Wait until the connection's output is shown; later output is in the rank's stream only."""
        if self._attached is not None:
            self._attached.ended.wait(_END_S)
        self._showing = False

    def shows(self, rank: int, *, stderr: bool) -> bool:
        """Whether the rank's output is shown from the connection, and not from its stream."""
        return self._showing and rank == self.rank and self._on_terminal[stderr]

    def trouble(self) -> str:
        """Why a running worker is not connected, reported once. Reconnects after a failure, or after Ctrl-Z and fg."""
        if why := self._sizes.trouble(_SETTLE_S):
            return f"its terminal keeps its size: {why}"
        loan = self._loan
        if (
            loan is None
            or self._lend is None
            or not loan.ended.is_set()
            or time.monotonic() < loan.ended_at + _SETTLE_S
        ):
            return ""
        (why, loan.trouble), (again, self._again) = (loan.trouble, ""), (self._again, False)
        broken = bool(why) and loan.begin.is_set()
        if broken or again:
            self._loan = self._lend()
        goes_on = "connecting again" if broken else "the run continues without it; Ctrl-Z, then fg, tries again"
        return f"{why}; {goes_on}" if why else ""

    # -- signals: handlers run in the main thread, the thread of a loan carries them out ------------------------------

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakeup[1], word)

    def _wake(self, signum: int, _frame: FrameType | None) -> None:
        self._tell(_WORDS[signal.Signals(signum)])
        self._sizes.look()

    def _stop(self, _signum: int, _frame: FrameType | None) -> None:
        """Handle Ctrl-Z: suspend a connected rank, restore our terminal, stop; then the reverse on SIGCONT."""
        loan = self._loan
        if loan is not None and loan.begin.is_set() and not loan.ended.is_set():
            loan.yielded.clear()
            self._tell(b"z")
            loan.yielded.wait(_END_S)
        self._modes.restore()  # a loan that is still connecting has not restored them
        self._by_default(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        self._again = loan is not None and loan.ended.is_set()
        self._tell(b"g")

    def _die(self, signum: int, _frame: FrameType | None) -> None:
        self._modes.restore(for_good=True)
        self._by_default(signum)

    def _by_default(self, signum: int) -> None:
        """Apply the default action of the signal, at once."""
        signal.signal(signum, signal.SIG_DFL)
        signal.pthread_kill(threading.main_thread().ident or 0, signum)
