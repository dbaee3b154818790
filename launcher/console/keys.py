"""Single keys of our terminal while a run is followed, unless a worker has the keyboard."""

from __future__ import annotations

import os
import select
import signal
import termios
from typing import TYPE_CHECKING

from launcher import output
from launcher.console.terminal_modes import Modes
from launcher.console.terminal_signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable

_WANTED = {"isig": True, "opost": True, "ixon": True}
_KEYS_BYTES = 64


def available() -> bool:
    """Whether there is a user who could type: a terminal as stdin and stderr, and output for people."""
    return os.isatty(0) and os.isatty(output.STDERR) and output.form() == "human"


class Keys:
    """Keys as they are typed, without echo, while open and in the foreground. Ctrl-C and Ctrl-Z stay signals."""

    def __init__(self, leave: Callable[[], object] = output.clear_live, *also: signal.Signals) -> None:
        """`leave` takes off what we show before a key for SIGTSTP or SIGQUIT, or one of `also`, stops or ends us."""
        self._modes = Modes(interactive=False)
        self._leave = leave
        self._signals = Signals(self._left, signal.SIGTSTP, signal.SIGQUIT, *also)
        self.ours = False
        """Whether the keys that are typed now come to us."""

    def open(self) -> bool:
        """Begin to read keys, until `close`. Returns whether those that are typed now come to us."""
        self._signals.open()
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
        self._signals.close()

    def _left(self) -> None:
        """Leave the terminal as it was found; it is taken again by the next `read`."""
        self._modes.restore()
        self._leave()
