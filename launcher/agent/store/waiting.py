"""Threads of a node wait for keys of the run's store over one connection: one of them asks, for all that wait.

When another thread comes with keys of its own, or has another call, the wait is ended, and asked again with all keys.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from .interface import Known, is_met

Sign = Tuple[str, str]


class _Waiting:
    """One thread's wait."""

    __slots__ = ("error", "is_woken", "known", "limit", "values", "wakes")

    def __init__(self, known: Mapping[str, Known], limit_s: float, wakes: int, *, is_woken: bool) -> None:
        self.known, self.limit, self.is_woken = known, time.monotonic() + limit_s, is_woken
        self.wakes = wakes
        """How many calls of `wake` this thread has noticed by the end of its wait."""

        self.values: Optional[List[Optional[str]]] = None
        self.error: Optional[Exception] = None

    @property
    def is_over(self) -> bool:
        return self.values is not None or self.error is not None

    def take(self, found: Mapping[str, Optional[str]], now: float) -> None:
        """Be over, if that is what the values say, or the time."""
        values = [found[key] for key in self.known]
        if self.is_woken or now >= self.limit or any(map(is_met, values, self.known.values())):
            self.values = values

    def result(self) -> List[Optional[str]]:
        """The values; raises what the call has raised, in whichever thread it was made."""
        if self.error is not None:
            raise type(self.error)(*self.error.args) from self.error
        assert self.values is not None
        return self.values


class SharedWaits:
    """The waits of all threads that share a connection."""

    def __init__(
        self,
        ask: Callable[[float, Dict[str, Known], Sign], List[Optional[str]]],
        interrupt: Callable[[], object],
        clear: Callable[[], object],
    ) -> None:
        """`ask`: the call of the connection, which `interrupt` ends early, or the next one until `clear`."""
        self._ask, self._interrupt, self._clear = ask, interrupt, clear
        self._changed = threading.Condition()
        self._waiting: List[_Waiting] = []
        self._signs: Dict[str, str] = {}
        """Those that are still to be sent."""

        self._asks = False
        """Whether a thread asks for all."""

        self._wakes, self._of_thread = 0, threading.local()

    def wait(self, known: Mapping[str, Known], limit_s: float, sign: Sign) -> List[Optional[str]]:
        """As `Store.wait`; another thread's wait or call does not end it."""
        with self._changed:
            is_woken = getattr(self._of_thread, "wakes", 0) != self._wakes
            mine = _Waiting(known, limit_s, self._wakes, is_woken=is_woken)
            self._waiting.append(mine)
            if sign[0]:
                self._signs[sign[0]] = sign[1]
            if self._asks:
                self._interrupt()
            while self._asks and not mine.is_over:
                self._changed.wait()
            is_next = not mine.is_over
            self._asks = self._asks or is_next
        if is_next:
            self._ask_until_over(mine)
        self._of_thread.wakes = mine.wakes
        return mine.result()

    def wake(self) -> None:
        """End the wait of each thread, or its next one."""
        with self._changed:
            self._wakes += 1
            for each in self._waiting:
                each.is_woken, each.wakes = True, self._wakes
            self._interrupt()

    def _ask_until_over(self, mine: _Waiting) -> None:
        """Ask for all threads until one's own wait is over; another thread that still waits continues."""
        try:
            while not mine.is_over:
                self._ask_once()
        except Exception as error:  # noqa: BLE001 - raised again in each thread
            for each in self._waiting:
                each.error = error
            mine.error = error
        finally:
            with self._changed:
                self._asks = False
                self._waiting = [each for each in self._waiting if not each.is_over]
                self._changed.notify_all()

    def _ask_once(self) -> None:
        self._clear()
        with self._changed:
            waiting = list(self._waiting)
            sign = self._signs.popitem() if self._signs else ("", "")
        limit, known = min(each.limit for each in waiting), together(each.known for each in waiting)
        at_once = known is None or any(each.is_woken for each in waiting)
        keys = known or {key: False for each in waiting for key in each.known}
        limit_s = 0.0 if at_once else max(0.0, limit - time.monotonic())
        found, now = dict(zip(keys, self._ask(limit_s, keys, sign))), time.monotonic()
        for each in waiting:
            each.take(found, now)
        if any(each.is_over for each in waiting):
            with self._changed:
                self._waiting = [each for each in self._waiting if not each.is_over]
                self._changed.notify_all()


def together(waits: Iterable[Mapping[str, Known]]) -> Optional[Dict[str, Known]]:
    """What ends one of these waits; None if two know different values of a key, so that one of them is over now."""
    found: Dict[str, Known] = {}
    for key, known in (pair for wait in waits for pair in wait.items()):
        other = found.get(key, False)
        if other is False:
            found[key] = known
        elif known is not False and known != other:
            numbers = [each for each in (known, other) if isinstance(each, int)]
            if not numbers:
                return None
            if len(numbers) == 2:
                found[key] = min(numbers)
            elif isinstance(other, int):
                found[key] = known  # any change, so that of the number, too
    return found
