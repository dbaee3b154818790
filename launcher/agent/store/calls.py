"""The calls of one client, and the thread of the store that answers those that had to wait."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from typing import Any, Callable, Deque, Generic, Iterator, List, Optional, TypeVar

from .interface import END_WAIT, GONE
from .values import Values, Wait

_Waiting = TypeVar("_Waiting")


class Calls:
    """Each call is answered before the next one; one that waits when its wait is over, or when the next one comes."""

    def __init__(self, values: Values, over: Callable[[], object]) -> None:
        """`over` is called, in any thread, once a wait is over."""
        self._values, self._over = values, over
        self._wait: Optional[Wait] = None
        self._left = ("", "", "")
        """The key from `leave`, its value if the connection closes, and its value if the host stops answering."""

    def answer(self, call: str, *args: Any) -> List[Any]:
        """Take a call; the answers that are due."""
        answers = [] if self._wait is None else [self._end()]
        if call == "wait":
            limit_s, known, sign, value = args
            if sign:
                self._values.call("set", sign, value)
            self._wait = self._values.begin(known, limit_s, self._over)
        elif call == "leave":
            self._left = (str(args[0]), str(args[1]), str(args[2]))
            answers.append(None)
        elif call != END_WAIT:
            answers.append(self._values.call(call, *args))
        return answers

    def late(self) -> List[Any]:
        """The answer to a wait that is over, if there is one."""
        return [self._end()] if self._wait is not None and self._wait.over else []

    def _end(self) -> Any:
        wait, self._wait = self._wait, None
        assert wait is not None
        return self._values.end(wait)

    def close(self, *, unreachable: bool) -> None:
        """Set the key that the client left behind, and wait for nothing any more."""
        if self._wait is not None:
            self._end()
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
