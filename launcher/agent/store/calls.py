"""The calls of one client, and the thread of the store that answers those that had to wait."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Generic, Iterator, List, Optional, TypeVar

from .interface import END_WAIT, GONE
from .values import Values, Wait

_Waiting = TypeVar("_Waiting")
_WAITS = 64
"""At most so many threads of a client wait at a time."""


class Calls:
    """Calls are answered in order; each wait when it is over, with the number that its client gave it."""

    def __init__(self, values: Values, over: Callable[[], object]) -> None:
        """`over` is called, in any thread, once a wait is over."""
        self._values, self._over = values, over
        self._waits: Dict[int, Wait] = {}
        self._left = ("", "", "")
        """The key from `leave`, its value if the connection closes, and its value if the host stops answering."""

    def answer(self, call: str, *args: Any) -> List[Any]:
        """Take a call; the answers that are due."""
        if call == "wait":
            number, limit_s, known, sign, value = args
            if len(self._waits) >= _WAITS or int(number) in self._waits:
                raise ValueError(number)
            if sign:
                self._values.call("set", sign, value)
            self._waits[int(number)] = self._values.begin(known, limit_s, self._over)
            return []
        if call == END_WAIT:
            return [self._end(args[0])] if args[0] in self._waits else []
        if call == "leave":
            self._left = (str(args[0]), str(args[1]), str(args[2]))
            return [None]
        return [self._values.call(call, *args)]

    def late(self) -> List[Any]:
        """The answers to waits that are over."""
        return [self._end(number) for number, wait in list(self._waits.items()) if wait.over]

    def _end(self, number: int) -> Dict[int, List[Optional[str]]]:
        return {number: self._values.end(self._waits.pop(number))}

    def close(self, *, unreachable: bool) -> None:
        """Set the key that the client left behind, and wait for nothing any more."""
        for number in list(self._waits):
            self._end(number)
        key, ended, lost = self._left
        if key:
            self._values.call("compare_set", key, "", lost if unreachable else ended)
            self._values.call("add", GONE, 1)


class Due(Generic[_Waiting]):
    """The clients with a wait that is over: named by any thread, one at a time, and answered by one."""

    def __init__(self) -> None:
        self.woken, self._waker = socket.socketpair()
        """Readable once there is a client, if another thread has named it."""

        self.woken.setblocking(False)
        self._found: Deque[_Waiting] = deque()
        self.thread: Optional[threading.Thread] = None
        """The thread that answers."""

    def add(self, client: _Waiting) -> None:
        """Have the thread answer a client."""
        self._found.append(client)
        if len(self._found) == 1 and threading.current_thread() is not self.thread:
            self._waker.send(b"\0")

    def take(self) -> Iterator[_Waiting]:
        """All clients, with those that are added meanwhile."""
        with contextlib.suppress(BlockingIOError):
            self.woken.recv(64)
        while self._found:
            yield self._found.popleft()
