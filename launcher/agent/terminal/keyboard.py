"""What is typed for a worker: kept until the worker's side takes it, and its end."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import termios
from typing import Callable, Optional

_KEYS_BYTES = 64 * 1024


class Keyboard:
    """The agent's end of a worker's stdin: of a terminal, where several may type one after the other, or of a pipe."""

    def __init__(
        self, fd: int, terminal: Optional[str], selector: selectors.BaseSelector, took: Callable[[], None], *, used: bool
    ) -> None:
        """`terminal`: the worker's side of the pty; None: a pipe. `used`: it is the worker's stdin, else nobody types.

        `took` is called when keys that had waited were taken.
        """
        self.fd, self.used = fd, used
        self.hung_up = False
        """Who reads finds the end, until a client comes."""

        self._terminal, self._selector, self._took = terminal, selector, took
        self._keys, self._last_key = bytearray(), False

    @property
    def full(self) -> bool:
        """Whether so much waits that no more is to be typed now."""
        return len(self._keys) >= _KEYS_BYTES

    def type(self, data: bytes = b"") -> None:
        """Give the worker's side those keys, and the ones before that it did not take; then, where no more come, the end."""
        if not self.used or self.fd < 0:
            return
        waited = bool(self._keys)
        self._keys += data
        try:
            while self._keys:
                del self._keys[: os.write(self.fd, self._keys)]
        except BlockingIOError:
            pass
        except OSError:  # it has closed its end
            self._keys.clear()
        if self._keys and not waited:
            self._selector.register(self.fd, selectors.EVENT_WRITE, self.type)
        elif waited and not self._keys:
            self._selector.unregister(self.fd)
            self._took()
        if self._last_key and not self._keys:
            self.hang_up()

    def end(self) -> None:
        """What was typed so far was all."""
        if self.used:
            self._last_key = True
            self.type()

    def look(self) -> None:
        """Give the end to whoever reads now, where that is what there is."""
        if self.hung_up and not self._keys:
            self.hang_up()

    def hang_up(self) -> None:
        """No more keys come: who reads, now or later, finds the end; of a terminal, until a client comes."""
        if self._terminal is None:
            self.close()
            return
        self.hung_up = True
        try:
            terminal = os.open(self._terminal, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:  # there is no such file where the agent looks: nobody can tell whether the last one was read
            return
        poll = select.poll()
        poll.register(terminal, select.POLLIN)
        if not poll.poll(0):  # each read needs one of its own, and what was typed comes first
            with contextlib.suppress(BlockingIOError):
                os.write(self.fd, termios.tcgetattr(terminal)[6][termios.VEOF])
        os.close(terminal)

    def close(self) -> None:
        """Let go of the worker's side."""
        if self._keys:
            self._keys.clear()
            self._selector.unregister(self.fd)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
