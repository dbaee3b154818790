"""Our terminal, connected to a shell somewhere else until that ends."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.console.terminal_loan import Loan
from launcher.console.terminal_modes import Modes
from launcher.console.terminal_signals import Signals
from launcher.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.system.pipes import Bridge

_LOOK_S = 0.1


def run(connect: Callable[[], Bridge], about: str) -> None:
    """Connect, print the line `about`, and pass on keys and output until the shell ends. Raises `CommandError`."""
    output.note(about)
    modes = Modes(interactive=True)
    wakeup = os.pipe()
    for fd in wakeup:
        os.set_blocking(fd, False)

    def resized(*_: Any) -> None:
        os.write(wakeup[1], b"w")

    before = signal.signal(signal.SIGWINCH, resized)
    try:
        with Signals(lambda: modes.restore(for_good=True), signal.SIGTERM, signal.SIGQUIT):
            loan = Loan(connect, modes, wakeup[0], output.write, keyboard=True, suspends=False)
            loan.begin.set()
            while not loan.ended.wait(_LOOK_S):
                pass
    finally:
        modes.restore(for_good=True)
        signal.signal(signal.SIGWINCH, before)
    if loan.trouble:
        raise CommandError(loan.trouble, hint="distlaunch status RUN says whether it still runs")
