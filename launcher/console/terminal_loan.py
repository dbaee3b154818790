"""Lends our terminal to one worker: its output is shown, and keys are sent to it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.terminal.frames import Connection
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.channel import Message
    from launcher.console.terminal_modes import Modes
    from launcher.system.pipes import Bridge

_KEYS_BYTES = 4096
_UNSENT_BYTES = 64 * 1024
_LOOK_MS = 50
_IDLE_MS = 1000
"""How often a loan checks whether it is over: another one may have read the wakeup byte."""


class _Held:
    """The state of our terminal that the rank needs."""

    def __init__(self, modes: Modes, *, keyboard: bool) -> None:
        self.modes, self.keyboard = modes, keyboard
        self.reads = keyboard
        """Whether we read keys for the rank."""

        self.suspended = False
        self.wanted = {"isig": True, "opost": True, "ixon": True}

    def take(self) -> None:
        """Set the modes that the rank needs, and read keys only while we are in the foreground."""
        if self.suspended:  # the shell uses it until we continue
            return
        taken = self.modes.take(self.wanted, keyboard=self.keyboard)
        self.reads = self.keyboard and (taken or not os.isatty(0))

    def want(self, modes: dict[str, bool]) -> None:
        """Apply changes to the modes of the rank's terminal."""
        before, self.wanted = self.wanted, {**self.wanted, **modes}
        if self.wanted["opost"] != before["opost"]:
            output.drain()  # earlier output was made for the earlier modes
        self.take()

    def leave(self) -> None:
        """Restore the terminal before we stop."""
        self.modes.restore()
        self.reads, self.suspended = False, True


class Loan:
    """A loan of our terminal to one worker, until the worker exits."""

    def __init__(
        self,
        connect: Callable[[], Bridge],
        modes: Modes,
        wakeup: int,
        show: Callable[[int, bytes], object],
        *,
        keyboard: bool,
        suspends: bool,
    ) -> None:
        """`suspends`: the rank is suspended when we are."""
        self.begin, self.yielded, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.trouble, self.ended_at = "", 0.0
        self._connect, self._wakeup, self._suspends = connect, wakeup, suspends
        self._show = partial(show, next((fd for fd in (1, 2, 0) if os.isatty(fd)), 1))
        self._over = False
        self._size: list[int] | None = None
        self._held = _Held(modes, keyboard=keyboard)
        self._held.take()  # from now on the rank's own terminal echoes keys
        threading.Thread(target=self._run, daemon=True, name="terminal").start()

    def leave(self) -> None:
        """End the loan, once the wakeup pipe is written to."""
        self._over = True
        self.begin.set()

    def _run(self) -> None:
        try:
            bridge = self._connect()
            try:
                line = Connection(bridge.sock)
                self._send_size(line)
                line.send(show=True)
                self.begin.wait()
                self._pass_on(line)
            finally:
                why = bridge.end()
            if not self._over:
                self.trouble = f"the connection to its terminal has ended{why and ': '}{why}"
        except LaunchError as error:
            self.trouble = f"its terminal is not reached: {error.message}"
        finally:
            self._held.modes.restore()
            self.ended_at = time.monotonic()
            self.ended.set()

    def _pass_on(self, line: Connection) -> None:
        held = self._held
        held.take()
        while not line.ended and not self._over:
            busy = output.congested()
            poll = select.poll()
            poll.register(self._wakeup, select.POLLIN)
            poll.register(line, (0 if busy else select.POLLIN) | (select.POLLOUT if line.waiting else 0))
            if held.reads and line.waiting < _UNSENT_BYTES:
                poll.register(0, select.POLLIN)
            # Nothing signals our return to the foreground, so it is polled.
            waits = held.keyboard and not held.reads and not held.suspended
            ready = {fd for fd, _ in poll.poll(_LOOK_MS if busy or waits else _IDLE_MS)}
            if waits:
                held.take()
            if self._wakeup in ready:
                self._obey(line)
            if line.fileno() in ready:
                line.flush()
                for message in [] if busy else line.receive():
                    self._take_message(message)
            if 0 in ready and held.reads:
                self._type(line)

    def _take_message(self, message: Message) -> None:
        if "modes" in message:
            self._held.want(message["modes"])
        elif "out" in message:
            data = message["out"].encode("latin-1")
            # Our terminal adds the same carriage returns as the rank's.
            self._show(data.replace(b"\r\n", b"\n") if self._held.wanted["opost"] else data)
        elif "exited" in message:
            self._over = True

    def _type(self, line: Connection) -> None:
        try:
            keys = os.read(0, _KEYS_BYTES)
        except OSError:  # the terminal was closed
            keys = b""
        self._send_size(line)  # the size comes before keys typed in the resized window
        if keys:
            line.send(keys=keys.decode("latin-1"))
        else:
            line.send(eof=True)
            self._held.reads = self._held.keyboard = False

    def _send_size(self, line: Connection) -> None:
        size = self._held.modes.size()
        if size is not None and size != self._size:
            self._size = size
            line.send(size=size)

    def _obey(self, line: Connection) -> None:
        words = b""
        with contextlib.suppress(BlockingIOError):  # another loan has read it
            words = os.read(self._wakeup, 64)
        for word in words.decode():
            if word == "z":
                self._held.leave()
                if self._suspends:
                    line.send(suspend=True)
                self.yielded.set()
            else:
                self._send_size(line)
                if goes_on := word == "g" and self._held.suspended:
                    self._held.suspended = False
                if word != "w":
                    self._held.take()
                if goes_on:
                    line.send(**{"continue": True})
