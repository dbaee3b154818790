"""Requests of all threads of a node over one connection to the run's store, and which of them reads the answers.

Calls are answered in order, waits at any time: their answers have a number. A thread that waits for an answer reads,
for all, unless another one does; it hands out what comes, and once its own is there another thread continues.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Tuple

from ..network import routes, secure
from .interface import END_WAIT, LENGTH, MAX_BYTES, Known

TimedOutError = socket.timeout
"""Distinct from `TimeoutError` before Python 3.10."""

_IN_TIME = 0.8
"""A wait ends after this part of the time after which its answer would be missed."""

_SENDS_S = 1.0
"""How long `wake` waits for another thread that sends."""


class _Answer:
    """An answer that a thread waits for."""

    __slots__ = ("began", "is_there", "value", "wakes")

    def __init__(self, wakes: int = 0) -> None:
        self.began, self.is_there = time.monotonic(), False
        self.value: Any = None
        self.wakes = wakes
        """How many calls of `wake` its thread has noticed when it is there."""


class _Wakes:
    """The calls of `wake`, of which each thread notices all."""

    def __init__(self) -> None:
        self.count = 0
        self._of_thread = threading.local()

    def are_missed(self) -> bool:
        """Whether this thread has not noticed all of them."""
        return bool(getattr(self._of_thread, "count", 0) != self.count)

    def notice(self, count: int) -> None:
        """This thread has noticed so many."""
        self._of_thread.count = count


class Exchange:
    """The requests and answers of one connection. A call raises the first error of any, `OSError` or `ValueError`."""

    def __init__(self, sock: socket.socket, session: secure.Session, answer_s: float) -> None:
        """`answer_s`: how long an answer may take."""
        self.on_silence: Tuple[float, Callable[[float, bool], None]] = (answer_s, lambda _s, _over: None)
        self._sock, self._session, self._answer_s = sock, session, answer_s
        sock.settimeout(min(answer_s, routes.LONGEST_S))
        self._sending = threading.Lock()
        """Held while a request is noted and sent, so that calls are noted in the order in which they are answered."""

        self._changed = threading.Condition()
        self._calls: Deque[_Answer] = deque()
        self._waits: Dict[int, _Answer] = {}
        self._numbers = itertools.count()
        self._is_read = False
        """Whether a thread reads."""

        self._failure: Optional[Exception] = None
        self._wakes = _Wakes()

    # -- requests -----------------------------------------------------------------------------------------------------

    def call(self, request: List[Any]) -> Any:
        """The answer to a call."""
        with self._sending:
            answer = _Answer()
            with self._changed:
                self._calls.append(answer)
            self._send([request])
        return self._await(answer)

    def wait(self, limit_s: float, known: Mapping[str, Known], sign: Tuple[str, str]) -> Any:
        """The answer to a wait, which comes at any time; by itself before the store would seem to be silent."""
        limit_s = min(limit_s, _IN_TIME * self.on_silence[0], _IN_TIME * self._answer_s)
        with self._sending:
            answer, number = _Answer(self._wakes.count), next(self._numbers)
            if self._wakes.are_missed():
                limit_s = 0.0
            with self._changed:
                self._waits[number] = answer
            self._send([["wait", number, limit_s, dict(known), *sign]])
        value = self._await(answer)
        self._wakes.notice(answer.wakes)
        return value

    def wake(self) -> None:
        """End the wait of each thread, or its next one."""
        if not self._sending.acquire(timeout=_SENDS_S):
            self._wakes.count += 1  # the waits that are open end at their limits
            return
        try:
            self._wakes.count += 1
            with self._changed:
                waits = list(self._waits.items())
            for _, answer in waits:
                answer.wakes = self._wakes.count
            self._send([[END_WAIT, number] for number, _ in waits])
        finally:
            self._sending.release()

    def _send(self, requests: Iterable[List[Any]]) -> None:
        data = b""
        for request in requests:
            text = json.dumps(request).encode()
            data += LENGTH.pack(len(text)) + self._session.seal(text) + text
        try:
            if data:
                self._sock.sendall(data)
        except (OSError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Have all threads learn what has happened to the connection. It is closed once no thread reads from it."""
        self.give_up()
        with self._changed:
            self._failure = self._failure or error
            if not self._is_read:
                self._sock.close()
            self._changed.notify_all()

    # -- answers ------------------------------------------------------------------------------------------------------

    def _await(self, answer: _Answer) -> Any:
        while not self._has_come(answer):
            try:
                while not answer.is_there:
                    self._hand_out(self._message())
            except (OSError, ValueError) as error:
                self._fail(error)
            finally:
                with self._changed:
                    self._is_read = False
                    if self._failure is not None:
                        self._sock.close()
                    self._changed.notify_all()
        return answer.value

    def _has_come(self, answer: _Answer) -> bool:
        """Whether the answer is there; if not, this thread is to read."""
        with self._changed:
            while not answer.is_there:
                if self._failure is not None:
                    raise self._failure
                if not self._is_read:
                    self._is_read = True
                    return False
                self._changed.wait()
        return True

    def _hand_out(self, message: Any) -> None:
        with self._changed:
            if isinstance(message, dict):
                ((number, value),) = message.items()
                answer = self._waits.pop(int(number), None)
            else:
                answer, value = (self._calls.popleft() if self._calls else None), message
            if answer is None:
                raise ValueError("an answer to no request")
            answer.value, answer.is_there = value, True
            self._changed.notify_all()

    def _message(self) -> Any:
        self._await_data()
        limit = time.monotonic() + self._answer_s
        head = read(self._sock, LENGTH.size + secure.MAC_BYTES, self._answer_s)
        (length,) = LENGTH.unpack_from(head)
        text = read(self._sock, length, limit - time.monotonic()) if length <= MAX_BYTES else b""
        self._session.check(head[LENGTH.size :], text)
        return json.loads(text)

    def _await_data(self) -> None:
        """Wait until data arrives; data that arrived while this process was stopped is not too late."""
        told = False
        while True:
            (quiet_s, tell), oldest = self.on_silence, self._oldest()
            limit_s = self._answer_s if told else min(quiet_s, self._answer_s)
            if _is_ready(self._sock, oldest + limit_s):
                break
            if limit_s == self._answer_s:
                raise TimedOutError("timed out")
            told = True
            tell(quiet_s, False)
        if told:
            tell(time.monotonic() - oldest, True)

    def _oldest(self) -> float:
        """When the oldest request was sent that has no answer."""
        with self._changed:
            return min(answer.began for answer in (*self._calls, *self._waits.values()))

    # -- its end ------------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Make waiting calls fail at once, and all further ones."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


def read(sock: socket.socket, count: int, limit_s: float) -> bytes:
    """Read exactly `count` bytes, within this time."""
    parts, limit = [], time.monotonic() + limit_s
    while count:
        if time.monotonic() >= limit or not _is_ready(sock, limit):
            raise TimedOutError("timed out")
        part = sock.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionResetError("connection closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _is_ready(sock: socket.socket, limit: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while not poll.poll(1000 * min(routes.LONGEST_S, max(0.0, limit - time.monotonic()))):
        if time.monotonic() >= limit:
            return False
    return True
