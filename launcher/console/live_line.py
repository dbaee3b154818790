"""A line on the terminal during a wait: what is waited for, and how long already. It is removed before other output.

    with live_line.waiting("asking Slurm"):
        ...

Nothing is drawn in the first second of a wait, or after an unfinished line of a worker, such as a progress bar.
`output` withdraws the line before it writes, and a thread draws it again. Where no line can be drawn (a pipe, a file),
a wait of some seconds is named in a line of its own, and again after twice the time.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher import output
from launcher.system import escapes, listener

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST_S = 1.0
_EVERY_S = 0.125
PATIENCE_S = 5.0
"""A shorter wait is not named where no line can be drawn."""


class LiveLine:
    """The live line of this process: `show` sets its text, `withdraw` removes it."""

    def __init__(self) -> None:
        self._text, self._since, self._phase_since = "", 0.0, 0.0
        self._part: tuple[int, int] | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def show(self, text: str, part: tuple[int, int] | None = None) -> None:
        """Show this wait. `part`: the amount done and the total, for a bar."""
        if listener.listens():
            return
        with self._changed:
            if not self._text:
                self._since = time.monotonic()
            if not self._text or _phase(self._text) != _phase(text):
                self._phase_since = time.monotonic()
            self._text, self._part = escapes.plain(text), part
            if self._thread is None:
                draws = output.draws(output.STDERR)
                if draws:
                    output.expect_live()
                    _leave_no_line_at_ctrl_z()
                self._thread = threading.Thread(
                    target=self._draw if draws else self._say, name="live line", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def withdraw(self) -> None:
        """Remove the line, as nothing is waited for."""
        with self._changed:
            self._text = ""
            self._changed.notify()
        output.clear_live()

    def _say(self) -> None:
        """Name each phase of a wait in a line after `PATIENCE_S`, and again after twice as long."""
        began, after_s = 0.0, PATIENCE_S
        while True:
            with self._changed:
                while not self._text:
                    self._changed.wait()
                if self._phase_since != began:
                    began, after_s = self._phase_since, PATIENCE_S
                text, waited = self._text, time.monotonic() - began
                if waited < after_s:
                    self._changed.wait(after_s - waited)
                    continue
            output.note(f"{text} ({waited:.0f} s)")
            after_s *= 2

    def _draw(self) -> None:
        from launcher.console import drawing

        frame = 0
        while True:
            with self._changed:
                while not self._text:
                    self._changed.wait()
                text, part, waited = self._text, self._part, time.monotonic() - self._since
            if waited >= _FIRST_S and in_foreground(output.STDERR):
                frame += 1
                output.draw_live(drawing.wait_line(text, waited, part, frame), lambda: bool(self._text))
            time.sleep(_EVERY_S if waited >= _FIRST_S else min(_EVERY_S, _FIRST_S))


def _phase(text: str) -> str:
    """The part of a wait's text that stays while the wait makes progress."""
    return re.sub(r"\d+", "", text.partition(":")[0])


def _leave_no_line_at_ctrl_z() -> None:
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, _stop)


def _stop(signum: int, _frame: object) -> None:
    """Stop as by default, with the shell's prompt in place of the line."""
    output.clear_live()
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    signal.signal(signum, _stop)


def in_foreground(fd: int) -> bool:
    """Whether what we write to that terminal disturbs no other program."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # it is not our controlling terminal
        return True


_line = LiveLine()


def show(text: str, part: tuple[int, int] | None = None) -> None:
    """Show what is waited for, until `withdraw`."""
    _line.show(text, part)


def withdraw() -> None:
    """Remove the line, as nothing is waited for any more."""
    _line.withdraw()


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show the line during a block that may take long; `output.progress` updates it."""
    _line.show(text)
    output.progress_by(_line.show)
    try:
        yield
    finally:
        output.progress_by(None)
        _line.withdraw()
