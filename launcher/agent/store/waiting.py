"""Waits of several threads for keys of the run's store, over one connection: together they are one wait.

One of the threads asks for the keys of all. A thread that begins to wait interrupts it, and one of them asks again, for
its keys, too. So no thread ends the wait of another, and a node needs no connection for each thread that waits.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .interface import Known, is_met

_LINGER_S = 0.05
"""How long a thread whose wait was interrupted leaves the connection to others: a call often follows another."""

_DISAGREE_S = 0.1
"""How long a wait is that covers only one of two threads that know different values of a key."""

_NOTHING = ("", "")

Values = List[Optional[str]]
Ask = Callable[[float, Dict[str, Known], Tuple[str, str]], Values]


class _Wait:
    """What one thread waits for."""

    __slots__ = ("known", "limit", "over", "sign", "values")

    def __init__(self, known: Mapping[str, Known], sign: Tuple[str, str], limit: float) -> None:
        self.known, self.sign, self.limit = known, sign, limit
        self.values: Values = []
        self.over = False


class SharedWaits:
    """The waits of all threads of one connection."""

    def __init__(self, ask: Ask, interrupt: Callable[[], None]) -> None:
        """`ask` is one wait of the connection: its limit, keys and sign. `interrupt` ends it, or the next one."""
        self._ask, self._interrupt = ask, interrupt
        self._changed = threading.Condition()
        self._waits: List[_Wait] = []
        self._is_asking = False
        self._wakes = 0
        self._seen: Dict[int, int] = {}
        """By thread: how many calls of `wake` ended its last wait, or came before it."""

    def wake(self) -> None:
        """End the waits of all threads; of a thread that does not wait, the next one."""
        with self._changed:
            self._wakes += 1
            for wait in self._waits:
                wait.limit = 0.0
            self._changed.notify_all()
            self._interrupt()

    def wait(self, known: Mapping[str, Known], limit_s: float, sign: Tuple[str, str]) -> Values:
        """As `Store.wait`; the texts of the values."""
        mine = _Wait(known, sign, time.monotonic() + limit_s)
        with self._changed:
            if self._seen.get(threading.get_ident(), 0) != self._wakes:
                mine.limit = 0.0
            self._waits.append(mine)
            if self._is_asking:
                self._interrupt()
        try:
            self._ask_for_all(mine)
            while not mine.over:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_asking or mine.over or not mine.limit, _LINGER_S)
                self._ask_for_all(mine)
            return mine.values
        finally:
            with self._changed:
                self._waits.remove(mine)
                self._seen[threading.get_ident()] = self._wakes

    def _ask_for_all(self, mine: _Wait) -> None:
        """Ask the store once, unless another thread does so and ends our wait."""
        with self._changed:
            self._changed.wait_for(lambda: mine.over or not self._is_asking)  # the asking thread's call has a limit
            if mine.over:
                return
            self._is_asking, asked = True, [*self._waits]
            unsent = next((wait for wait in asked if wait.sign != _NOTHING), mine)
            sign, unsent.sign = unsent.sign, _NOTHING
            known, limit_s = _together(asked)
        try:
            values = dict(zip(known, self._ask(limit_s, known, sign)))
            now = time.monotonic()
            for wait in asked:
                wait.values = [values[key] for key in wait.known]
                wait.over = now >= wait.limit or any(map(is_met, wait.values, wait.known.values()))
        finally:
            with self._changed:
                self._is_asking = False
                self._changed.notify_all()


def _together(waits: Sequence[_Wait]) -> Tuple[Dict[str, Known], float]:
    """What all of them know of their keys, and the seconds until the first of their limits."""
    known: Dict[str, Known] = {}
    limit_s = max(0.0, min(wait.limit for wait in waits) - time.monotonic())
    for wait in waits:
        for key, each in wait.known.items():
            other = known.setdefault(key, each)
            if other is False:
                known[key] = each
            elif each is not False and each != other:
                limit_s = min(limit_s, _DISAGREE_S)
    return known, limit_s
