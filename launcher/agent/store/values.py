"""The values of the run's store, and the requests that wait for some of them to change."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .interface import Known, is_met

_LONGEST_S = 3600.0


class Wait:
    """A request that is answered once one of its keys is not as known any more, or at its limit."""

    __slots__ = ("known", "over", "tell")

    def __init__(self, known: Mapping[str, Known], tell: Callable[[], object]) -> None:
        """`tell` is called once the wait is over, in any thread; it may not use the store."""
        self.known, self.tell = known, tell
        self.over = False


class Values:
    """All keys with their values, for the threads of this process. Values are texts; the sums of `add`, too."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._values: Dict[str, str] = {}
        self._waits: Dict[str, Dict[Known, Dict[Wait, None]]] = {}
        """By key and what is known of it: many nodes wait for the same, which is compared once for all of them."""

        self._limits: List[Tuple[float, int, Wait]] = []
        """A heap; waits that are over leave it when their limit comes."""

        self._numbers = itertools.count()

    def call(self, name: str, *args: Any) -> Any:
        """Answer a call that does not wait."""
        with self.lock:
            answer, changed = _CALLS[name](self._values, *args)
            for key in changed:
                self._look(key)
            return answer

    # -- waits --------------------------------------------------------------------------------------------------------

    def begin(self, known: Mapping[str, Known], limit_s: Optional[float], tell: Callable[[], object]) -> Wait:
        """Begin a wait, which may be over at once. `limit_s` None: it only ends by a change, or `end`."""
        if not all(each is None or (each is not True and isinstance(each, (str, int))) for each in known.values()):
            raise TypeError(known)
        limit = None if limit_s is None else time.monotonic() + min(max(0.0, float(limit_s)), _LONGEST_S)
        wait = Wait(known, tell)
        with self.lock:
            if any(is_met(self._values.get(key), each) for key, each in known.items()):
                self._finish(wait)
                return wait
            for key, each in known.items():
                if each is not False:
                    self._waits.setdefault(key, {}).setdefault(each, {})[wait] = None
            if limit is not None:
                heapq.heappush(self._limits, (limit, next(self._numbers), wait))
        return wait

    def end(self, wait: Wait) -> List[Optional[str]]:
        """End a wait, if it is not over; the values of its keys."""
        with self.lock:
            if not wait.over:
                self._forget(wait)
            return [self._values.get(key) for key in wait.known]

    def expire(self, now: float) -> Optional[float]:
        """End the waits whose limit has come; the seconds until the next one has, if any is left."""
        with self.lock:
            while self._limits and (self._limits[0][0] <= now or self._limits[0][2].over):
                wait = heapq.heappop(self._limits)[2]
                if not wait.over:
                    self._forget(wait)
                    self._finish(wait)
            return self._limits[0][0] - now if self._limits else None

    def _look(self, key: str) -> None:
        """End the waits that the new value of a key ends."""
        by_known = self._waits.get(key)
        if by_known:
            value = self._values.get(key)
            for wait in [wait for known, waits in by_known.items() if is_met(value, known) for wait in waits]:
                self._forget(wait)
                self._finish(wait)

    @staticmethod
    def _finish(wait: Wait) -> None:
        wait.over = True
        wait.tell()

    def _forget(self, wait: Wait) -> None:
        wait.over = True
        for key, each in wait.known.items():
            by_known = self._waits.get(key, {})
            waits = by_known.get(each, {})
            waits.pop(wait, None)
            if not waits:
                by_known.pop(each, None)
            if not by_known:
                self._waits.pop(key, None)


def _set(values: Dict[str, str], key: str, value: str) -> Tuple[None, List[str]]:
    values[key] = str(value)
    return None, [key]


def _multi_set(values: Dict[str, str], pairs: Mapping[str, str]) -> Tuple[None, List[str]]:
    values.update({key: str(value) for key, value in pairs.items()})
    return None, list(pairs)


def _get(values: Dict[str, str], *keys: str) -> Tuple[List[Optional[str]], List[str]]:
    return [values.get(key) for key in keys], []


def _check(values: Dict[str, str], *keys: str) -> Tuple[bool, List[str]]:
    return all(key in values for key in keys), []


def _add(values: Dict[str, str], key: str, amount: int) -> Tuple[int, List[str]]:
    total = int(values.get(key, 0)) + int(amount)
    values[key] = str(total)
    return total, [key]


def _compare_set(values: Dict[str, str], key: str, expected: str, desired: str) -> Tuple[str, List[str]]:
    fits = values.get(key, "") == expected
    if fits:
        values[key] = str(desired)
    return values.get(key, expected), [key] if fits else []


_CALLS: Dict[str, Any] = {
    "set": _set,
    "multi_set": _multi_set,
    "get": _get,
    "check": _check,
    "add": _add,
    "compare_set": _compare_set,
}
