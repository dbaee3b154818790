"""Signals in the fork server: they report its children and its parent; all others are left to the agent."""

from __future__ import annotations

import os
import signal
from typing import Callable, Iterable, Optional

from ..system import processes
from ..wakeup import Wakeup
from . import notes, worker

_PARENT_DIED = signal.SIGRTMAX
"""What the kernel sends when the agent exits."""


def _nothing(_signum: int, _frame: object) -> None:
    """Ignore a signal: a scheduler that signals every process of a step means the workers."""


class Signals:
    """Takes over signals from the interpreter, and restores those of workers."""

    def __init__(self, ignored: Iterable[int], agent: int, on_agents_end: Callable[[], None]) -> None:
        """`ignored`: signals that workers ignore.

        `on_agents_end` is called when the process `agent` has exited, if it is the parent of this one.
        """
        numbers = processes.PASSED_ON | {signal.SIGCHLD, notes.HEARD_BY}
        self._original = {n: handler for n in numbers if (handler := signal.getsignal(n)) is not None}
        self._original.update(dict.fromkeys(ignored, signal.SIG_IGN))
        self._on_agents_end = on_agents_end
        self._wakeup: Optional[Wakeup] = None
        for number in processes.PASSED_ON:
            signal.signal(number, _nothing)
        self._parent = os.getppid()
        if self._parent == agent:
            signal.signal(_PARENT_DIED, self._parent_died)
            processes.die_with_parent(self._parent, _PARENT_DIED)

    def _parent_died(self, _signum: int, _frame: object) -> None:
        """Handle the agent's death while this process does not read its channel, as during imports.

        The signal is ignored if another process has sent it.
        """
        if os.getppid() != self._parent:
            signal.signal(_PARENT_DIED, _nothing)
            self._on_agents_end()

    def listen(self) -> int:
        """Make exits of children and notes of workers readable, as signals, at the returned descriptor."""
        self._wakeup = Wakeup()
        for number in (signal.SIGCHLD, notes.HEARD_BY):
            signal.signal(number, _nothing)
        return self._wakeup.fileno()

    def fileno(self) -> int:
        """The descriptor of `listen`; -1 before."""
        return -1 if self._wakeup is None else self._wakeup.fileno()

    def take(self) -> bytes:
        """The numbers of the received signals."""
        assert self._wakeup is not None
        return self._wakeup.take()

    def let_go(self) -> None:
        """Close, in a child, what only the fork server may hold."""
        if self._wakeup is not None:
            self._wakeup.close()

    def become_group(self, server: int) -> None:
        """Set up the worker group's process: of all signals, only the one for the fork server's death ends it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(_PARENT_DIED, _nothing)
        processes.die_with_parent(server)

    def become_standing(self) -> None:
        """Restore signals in a process that stays after the agent, and does not end with it."""
        ours = (_nothing, self._parent_died)
        worker.restore_signals({n: handler for n, handler in self._original.items() if signal.getsignal(n) in ours})
        signal.signal(_PARENT_DIED, signal.SIG_DFL)

    def become_worker(self, server: int) -> None:
        """Restore signals in a worker, as its own interpreter would have them."""
        ours = (_nothing, self._parent_died)
        worker.restore_signals({n: handler for n, handler in self._original.items() if signal.getsignal(n) in ours})
        processes.die_with_parent(server)
