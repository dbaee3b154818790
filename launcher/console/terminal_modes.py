"""The launcher's terminal as such: what of it workers are lent, and its modes while it stands for one rank's."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS = (
    *("VINTR", "VQUIT", "VERASE", "VKILL", "VEOF", "VSTART", "VSTOP", "VSUSP", "VEOL", "VREPRINT", "VDISCARD", "VWERASE"),
    *("VLNEXT", "VEOL2"),
)
_AS_TYPED = termios.ICRNL | termios.INLCR | termios.IGNCR | termios.ISTRIP | termios.BRKINT | termios.PARMRK | termios.IXON
_OF_LINES = termios.ICANON | termios.ECHO | termios.ECHONL | termios.IEXTEN | termios.ISIG


def lent(rank: int | None, *, interactive: bool, tty: bool, here: bool) -> dict[str, Any] | None:
    """What workers have of our terminal and stdin, as the agents' `Job.terminal`; None: nothing.

    `rank` is the one that is shown alone, or with `interactive` the one with the keyboard; `tty`: terminals are wanted;
    `here`: workers run on this machine.
    """
    fd = first() if tty and rank is not None else None
    stdin = "tty" if fd is not None and os.isatty(0) else "null"
    if not os.isatty(0) and os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev:
        stdin = "passed" if here else "pipe" if interactive else "null"
    shown = {name: fd is not None and _is_same(fd, number) for number, name in ((1, "stdout"), (2, "stderr"))}
    if stdin == "null" and not any(shown.values()):
        return None
    size = os.get_terminal_size(fd) if fd is not None else os.terminal_size((80, 24))
    about = {"rank": -1 if rank is None else rank, "interactive": interactive, "stdin": stdin, **shown}
    return {**about, "size": [size.lines, size.columns], "modes": _modes(fd), "term": os.environ.get("TERM", "dumb")}


def first() -> int | None:
    """The first of our standard streams that is a terminal."""
    return next((fd for fd in (0, 1, 2) if os.isatty(fd)), None)


def _is_same(fd: int, other: int) -> bool:
    return os.isatty(other) and os.fstat(fd).st_rdev == os.fstat(other).st_rdev


def _modes(fd: int | None) -> dict[str, Any] | None:
    """Its modes and keys, for nodes on which the numbers mean the same."""
    if fd is None or sys.platform != "linux":
        return None
    iflag, oflag, cflag, lflag, _, _, every = termios.tcgetattr(fd)
    keys = {name: every[getattr(termios, name)] for name in _KEYS}
    codes = {name: key[0] for name, key in keys.items() if isinstance(key, bytes)}
    return {"iflag": iflag, "oflag": oflag, "cflag": cflag, "lflag": lflag, "keys": codes}


class Modes:
    """Our terminal's modes: `take` changes them to what a rank's terminal needs, `restore` leaves them as they were."""

    def __init__(self, *, interactive: bool) -> None:
        """`interactive`: all keys are the rank's, also those that are signals."""
        self._fd = first()
        self.interactive = interactive
        self._found: list[Any] | None = None
        self._closed = False
        self._lock = threading.RLock()
        """The main thread, handlers of signals in it, and the thread of a loan change them."""

    @property
    def taken(self) -> bool:
        """Whether they are not as they were."""
        return self._found is not None

    def take(self, wanted: Mapping[str, bool], *, keyboard: bool) -> bool:
        """Set them as the rank's terminal is; False where it is gone, or not ours to set, as others are in the foreground."""
        with self._lock:
            return self._take(wanted, keyboard=keyboard)

    def _take(self, wanted: Mapping[str, bool], *, keyboard: bool) -> bool:
        if self._fd is None or self._closed or not self._in_foreground() or not os.isatty(self._fd):
            return False
        before = self._found or termios.tcgetattr(self._fd)
        modes = [*before[:6], list(before[6])]
        if keyboard:
            modes[0] &= ~_AS_TYPED
            modes[3] &= ~_OF_LINES
            if not self.interactive:
                modes[0] |= termios.IXON * wanted["ixon"]
                modes[3] |= termios.ISIG * wanted["isig"]
            modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        if not wanted["opost"]:
            modes[1] &= ~termios.OPOST
        if modes != before or self.taken:
            termios.tcsetattr(self._fd, termios.TCSANOW, modes)
            self._found = before
        return True

    def restore(self, *, for_good: bool = False) -> None:
        """Set them as they were; `for_good`: they are taken no more."""
        with self._lock:
            found, self._found = self._found, None
            self._closed = self._closed or for_good
            if found is not None and self._fd is not None and self._in_foreground():
                with contextlib.suppress(termios.error):  # the terminal is gone
                    termios.tcsetattr(self._fd, termios.TCSANOW, found)

    def _in_foreground(self) -> bool:
        """Whether nobody else has the terminal now: changing it then would stop us."""
        assert self._fd is not None
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # it does not control our session
            return True

    def size(self) -> list[int] | None:
        """Its rows and columns."""
        try:
            size = os.get_terminal_size(self._fd) if self._fd is not None else None
        except OSError:
            return None
        return [size.lines, size.columns] if size else None
