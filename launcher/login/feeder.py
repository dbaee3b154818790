"""The stdin of a program, written while the program reads it: nothing is stored in between."""

from __future__ import annotations

import os
import select
import threading
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_LOOKS_MS, _LEAVES_S = 200, 5.0


class Feeder:
    """Writes `first`, then what `write` writes, to a pipe, in a thread of its own. Leaving it ends that."""

    def __init__(self, first: bytes, write: Callable[[IO[bytes]], object] | None) -> None:
        self.reads, self._fd = os.pipe()
        """The end for the program."""

        self.written = 0
        """How many bytes the pipe has taken."""

        self._first, self._write = first, write
        self._error: BaseException | None = None
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        os.set_blocking(self._fd, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._given_up.set()
        if self._thread.ident is None:
            os.close(self.reads)
            os.close(self._fd)
        else:
            self._thread.join(_LEAVES_S)

    def start(self) -> None:
        """Begin, once the program has its end."""
        os.close(self.reads)
        self._thread.start()

    def check(self) -> None:
        """Raise what `write` has raised."""
        if self._error is not None:
            raise self._error

    def write(self, data: bytes) -> int:
        """Write all of it, as the program reads it. Raises `BrokenPipeError` if that has ended."""
        left, poll = memoryview(data), select.poll()  # select() takes no more than 1,024 files
        poll.register(self._fd, select.POLLOUT)
        while left:
            if self._given_up.is_set():
                raise BrokenPipeError
            try:
                count = os.write(self._fd, left)
            except BlockingIOError:
                poll.poll(_LOOKS_MS)
                continue
            self.written += count
            left = left[count:]
        return len(data)

    def _feed(self) -> None:
        try:
            self.write(self._first)
            if self._write:
                self._write(cast("IO[bytes]", self))
        except BrokenPipeError:
            pass  # the program's answer says why it reads no more
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            self._error = error
        finally:
            os.close(self._fd)
