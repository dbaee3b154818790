"""Single keys of our terminal while a run is followed, unless a worker has the keyboard."""

from __future__ import annotations

import os
import select
import signal
import termios
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.console.terminal_modes import Modes

if TYPE_CHECKING:
    from types import FrameType

_WANTED = {"isig": True, "opost": True, "ixon": True}
_KEYS_BYTES = 64


def available() -> bool:
    """Whether there is a user who could type: a terminal as stdin and stderr, and output for people."""
    return os.isatty(0) and os.isatty(output.STDERR) and output.form() == "human"


class Keys:
    """Keys as they are typed, without echo, while open and in the foreground. Ctrl-C and Ctrl-Z stay signals."""

    def __init__(self) -> None:
        self._modes = Modes(interactive=False)
        self._before: Any = None
        self.ours = False
        """Whether the keys that are typed now come to us."""

    def open(self) -> bool:
        """Begin to read keys, until `close`. Returns whether those that are typed now come to us."""
        before = signal.getsignal(signal.SIGTSTP)
        if before != signal.SIG_IGN:
            self._before = before
            signal.signal(signal.SIGTSTP, self._stop)
        self.read()
        return self.ours

    def read(self) -> str:
        """The keys typed since the last call; in the background, none."""
        try:
            self.ours = self._modes.take(_WANTED, keyboard=True)
            if not self.ours or not select.select([0], [], [], 0)[0]:
                return ""
            return os.read(0, _KEYS_BYTES).decode(errors="replace")
        except (OSError, termios.error):  # the terminal was closed
            self.ours = False
            return ""

    def close(self) -> None:
        """Leave the terminal as it was found."""
        self.ours = False
        self._modes.restore()
        if self._before is not None:
            signal.signal(signal.SIGTSTP, self._before)
            self._before = None

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        """Stop with the terminal as it was found; it is taken again by the next `read`."""
        self._modes.restore()
        output.clear_live()
        if callable(self._before):
            self._before(signum, frame)
        else:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        signal.signal(signum, self._stop)
