"""Input typed for a worker, kept until the worker's side accepts it, and its end."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import termios
from typing import Callable, Optional

_KEYS_BYTES = 64 * 1024


class Keyboard:
    """The agent's end of a worker's stdin: a terminal, on which clients may type one after another, or a pipe."""

    def __init__(
        self,
        fd: int,
        terminal: Optional[str],
        selector: selectors.BaseSelector,
        took: Callable[[], None],
        *,
        used: bool,
    ) -> None:
        """`terminal`: the worker's side of the pty; None: a pipe. `took` is called when waiting input is accepted.

        `used`: whether it is the worker's stdin; otherwise input is ignored.
        """
        self.fd, self.used = fd, used
        self.hung_up = False
        """Whether reads find end-of-file, until a client connects."""

        self._terminal, self._selector, self._took = terminal, selector, took
        self._keys, self._last_key = bytearray(), False

    @property
    def full(self) -> bool:
        """Whether too much input is waiting to accept more."""
        return len(self._keys) >= _KEYS_BYTES

    def type(self, data: bytes = b"") -> None:
        """Write waiting input and these keys to the worker's side, then end-of-file if no more come."""
        if not self.used or self.fd < 0:
            return
        waited = bool(self._keys)
        self._keys += data
        try:
            while self._keys:
                del self._keys[: os.write(self.fd, self._keys)]
        except BlockingIOError:
            pass
        except OSError:  # the worker has closed its end
            self._keys.clear()
        if self._keys and not waited:
            self._selector.register(self.fd, selectors.EVENT_WRITE, self.type)
        elif waited and not self._keys:
            self._selector.unregister(self.fd)
            self._took()
        if self._last_key and not self._keys:
            self.hang_up()

    def end(self) -> None:
        """Mark the input as complete."""
        if self.used:
            self._last_key = True
            self.type()

    def look(self) -> None:
        """Give end-of-file to a new read, if the input has ended."""
        if self.hung_up and not self._keys:
            self.hang_up()

    def hang_up(self) -> None:
        """End the input: all further reads find end-of-file; on a terminal, until a client connects."""
        if self._terminal is None:
            self.close()
            return
        self.hung_up = True
        try:
            terminal = os.open(self._terminal, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:  # the agent cannot see that file, nor whether the last end-of-file was read
            return
        poll = select.poll()
        poll.register(terminal, select.POLLIN)
        if not poll.poll(0):  # each read needs its own end-of-file, and typed input comes first
            with contextlib.suppress(BlockingIOError):
                os.write(self.fd, termios.tcgetattr(terminal)[6][termios.VEOF])
        os.close(terminal)

    def close(self) -> None:
        """Close the agent's end."""
        if self._keys:
            self._keys.clear()
            self._selector.unregister(self.fd)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
