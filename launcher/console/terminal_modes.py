"""The launcher's terminal: how workers share it, and its modes while it is connected to a rank's terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.agent.messages import LentTerminal
    from launcher.runs.reader import Wanted

_KEYS = (
    "VINTR",
    "VQUIT",
    "VERASE",
    "VKILL",
    "VEOF",
    "VSTART",
    "VSTOP",
    "VSUSP",
    "VEOL",
    "VREPRINT",
    "VDISCARD",
    "VWERASE",
    "VLNEXT",
    "VEOL2",
)
_AS_TYPED = (
    termios.ICRNL | termios.INLCR | termios.IGNCR | termios.ISTRIP | termios.BRKINT | termios.PARMRK | termios.IXON
)
_OF_LINES = termios.ICANON | termios.ECHO | termios.ECHONL | termios.IEXTEN | termios.ISIG


def lent(ranks: Wanted | None, keyboard: int | None, *, tty: bool, here: bool) -> LentTerminal | None:
    """How workers share our terminal and stdin, in the form of the agents' `Job.terminal`; None: not at all.

    `ranks`: those that are shown, None for all; of several, only a run's only worker has the terminal. `keyboard`: the
    rank that was asked to have it. `tty`: terminals are wanted. `here`: workers run on this machine.
    """
    interactive = keyboard is not None
    if_alone = not interactive and (ranks is None or (len(ranks) > 1 and 0 in ranks))
    rank = 0 if if_alone else min(ranks) if ranks and len(ranks) == 1 and not interactive else keyboard
    fd = first() if tty and rank is not None else None
    stdin: Literal["tty", "pipe", "passed", "null"] = "tty" if fd is not None and os.isatty(0) else "null"
    if not os.isatty(0) and os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev:
        stdin = "passed" if here else "pipe" if interactive else "null"
    stdout, stderr = (fd is not None and _is_same(fd, number) for number in (1, 2))
    if stdin == "null" and not (stdout or stderr):
        return None
    size = os.get_terminal_size(fd) if fd is not None else os.terminal_size((80, 24))
    return {
        "rank": rank,
        "if_alone": if_alone,
        "interactive": interactive,
        "stdin": stdin,
        "stdout": stdout,
        "stderr": stderr,
        "size": [size.lines, size.columns],
        "modes": _modes(fd),
        "term": os.environ.get("TERM", "dumb"),
    }


def first() -> int | None:
    """The first of our standard streams that is a terminal."""
    return next((fd for fd in (0, 1, 2) if os.isatty(fd)), None)


def _is_same(fd: int, other: int) -> bool:
    return os.isatty(other) and os.fstat(fd).st_rdev == os.fstat(other).st_rdev


def _modes(fd: int | None) -> dict[str, Any] | None:
    """Modes and special keys of the terminal, on Linux only: there the numbers have the same meaning on all nodes."""
    if fd is None or sys.platform != "linux":
        return None
    iflag, oflag, cflag, lflag, _, _, every = termios.tcgetattr(fd)
    keys = {name: every[getattr(termios, name)] for name in _KEYS}
    codes = {name: key[0] for name, key in keys.items() if isinstance(key, bytes)}
    return {"iflag": iflag, "oflag": oflag, "cflag": cflag, "lflag": lflag, "keys": codes}


class Modes:
    """Our terminal's modes: `take` sets those that a rank's terminal needs, `restore` the original ones."""

    def __init__(self, *, interactive: bool) -> None:
        """`interactive`: all keys go to the rank, including those for signals."""
        self._fd = first()
        self.interactive = interactive
        self._found: list[Any] | None = None
        self._closed = False
        self._lock = threading.RLock()
        """The main thread, its signal handlers and the thread of a loan change the modes."""

    @property
    def taken(self) -> bool:
        """Whether the modes are changed."""
        return self._found is not None

    def take(self, wanted: Mapping[str, bool], *, keyboard: bool) -> bool:
        """Set the modes of the rank's terminal. Returns False if ours is closed, or we are not in the foreground."""
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
        """Restore the original modes; `for_good`: they cannot be taken again."""
        with self._lock:
            found, self._found = self._found, None
            self._closed = self._closed or for_good
            if found is not None and self._fd is not None and self._in_foreground():
                with contextlib.suppress(termios.error):  # the terminal was closed
                    termios.tcsetattr(self._fd, termios.TCSANOW, found)

    def _in_foreground(self) -> bool:
        """Whether we are in the foreground: changing the modes in the background would stop us."""
        assert self._fd is not None
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # it is not our controlling terminal
            return True

    def size(self) -> list[int] | None:
        """The terminal's rows and columns."""
        try:
            size = os.get_terminal_size(self._fd) if self._fd is not None else None
        except OSError:
            return None
        return [size.lines, size.columns] if size else None
