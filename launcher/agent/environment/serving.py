"""Hands out the list of an environment's files, and its pieces, to other nodes of the run."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Callable, List, Optional, Tuple

from .manifest import BringError
from .shelf import Shelf
from .wire import Limits, LostError, Message, Wire

NOT_HERE = 0xFFFFFFFF
"""In place of a piece's size: it is not here, and will not be."""

_PAUSE_S = 0.05


class Serving:
    """Answers on a listening socket, in threads, until this process ends or becomes another program."""

    def __init__(
        self,
        listener: socket.socket,
        key: str,
        limits: Limits,
        join: Optional[Callable[[Wire, Message], None]] = None,
    ) -> None:
        """`join` takes the connections of nodes that join, on node 0."""
        self.sent_bytes = 0
        self.port = int(listener.getsockname()[1])
        self._listener, self._key, self._limits = listener, key, limits
        self._join = join
        self._ready = threading.Event()
        self._open = True
        self._what: Tuple[bytes, Optional[Shelf]] = (b"", None)
        threading.Thread(target=self._accept, daemon=True, name="environment").start()

    def offer(self, encoded: bytes, shelf: Shelf) -> None:
        """What there is to hand out; until then, those who ask wait."""
        self._what = encoded, shelf
        self._ready.set()

    def stop(self) -> None:
        """Take no more connections: they wait for who listens next."""
        self._open = False

    def _accept(self) -> None:
        self._listener.settimeout(0.1)
        while self._open:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:  # none in that time, closed again, or this process has too many open files
                time.sleep(_PAUSE_S if error.errno else 0)
                continue
            threading.Thread(target=self._answer, args=(sock,), daemon=True, name="environment").start()

    def _answer(self, sock: socket.socket) -> None:
        with contextlib.suppress(LostError):
            wire = Wire.accepted(sock, self._key, self._limits.host_s)
            try:
                while True:
                    asked = wire.receive(self._limits.patience_s)
                    if "join" in asked and self._join is not None:
                        self._join(wire, asked)
                        return
                    self._serve(wire, asked)
            finally:
                wire.close()

    def _serve(self, wire: Wire, asked: Message) -> None:
        if not self._ready.wait(self._limits.patience_s):
            raise LostError("nothing to hand out")
        encoded, shelf = self._what
        assert shelf is not None
        if asked.get("ask") == "files":
            wire.send(bytes=len(encoded))
            wire.send_bytes(encoded)
            return
        for index in indices(asked, len(shelf.pieces)):
            self._hand_out(wire, shelf, index, check=bool(asked.get("again")))

    def _hand_out(self, wire: Wire, shelf: Shelf, index: int, *, check: bool) -> None:
        fd, piece = None, shelf.pieces[index]
        with contextlib.suppress(BringError, OSError):
            if check:
                shelf.check(index)
            fd = shelf.opened(index, self._limits.patience_s)
        if fd is None:
            wire.announce(index, NOT_HERE)
            raise LostError("a piece is not here")
        with open(fd, "rb", buffering=0):
            wire.announce(index, piece.size)
            wire.send_data(fd, piece.offset, piece.size)
            self.sent_bytes += piece.size


def indices(asked: Message, count: int) -> List[int]:
    """The pieces that are asked for, of so many, in ascending order. Raises `LostError`."""
    try:
        found = [(int(first), int(last)) for first, last in asked["pieces"]]
    except (KeyError, TypeError, ValueError) as error:
        raise LostError(f"not understood: {error}") from error
    before = -1
    for first, last in found:
        if not before < first <= last < count:
            raise LostError("there is no such piece")
        before = last
    return [index for first, last in found for index in range(first, last + 1)]


def ranges(indices: List[int]) -> List[List[int]]:
    """Ascending numbers as ranges."""
    found: List[List[int]] = []
    for index in indices:
        if found and found[-1][1] == index - 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return found
