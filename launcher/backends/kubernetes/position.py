"""How far a log was read, by the times that the container runtime has written before its lines."""

from __future__ import annotations

import re
import time
from calendar import timegm
from typing import Any

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ")
_OVERLAP_S = 1.0
_ORDER_S = 0.5
"""Lines of stdout and stderr are stamped before they are merged: their times are out of order by less than this."""


class Position:
    """How far a log was read, by the times of its lines."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.last = float((saved or {}).get("last") or 0.0)
        self._seen: dict[bytes, int] = {
            key.encode(): int(count) for key, count in ((saved or {}).get("seen") or {}).items()
        }
        self._known: dict[bytes, int] = {}
        self._known_until = 0.0
        self._seconds: dict[bytes, float] = {}

    def to_json(self) -> dict[str, Any]:
        """The state from which another process can continue."""
        return {"last": self.last, "seen": {key.decode(): count for key, count in self._seen.items()}}

    def since(self) -> str | None:
        """The time to request the log from, or None for all of it; what arrives then is compared with known lines."""
        self._known, self._known_until = dict(self._seen), self.last
        if not self.last:
            return None
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.last - _OVERLAP_S))

    def take(self, lines: list[bytes]) -> list[bytes]:
        """The new lines, without their times."""
        new = []
        for line in lines:
            match = _STAMP.match(line)
            if match is None:
                if line:  # a message of the kubelet itself
                    new.append(line)
                continue
            when = self._second(match[1] + match[3]) + float(match[2] or 0)
            stamp = match[0]
            if self._known_until and when <= self._known_until and self._is_known(stamp, when):
                continue
            self._seen[stamp] = self._seen.get(stamp, 0) + 1
            self.last = max(self.last, when)
            new.append(line[match.end() :])
        self._forget()
        return new

    def _is_known(self, stamp: bytes, when: float) -> bool:
        if self._known.get(stamp, 0) > 0:
            self._known[stamp] -= 1
            return True
        return when < self._known_until - _ORDER_S

    def _forget(self) -> None:
        """Keep only the times of the last seconds."""
        if self._known and self.last > self._known_until + _OVERLAP_S:
            self._known = {}  # all that had been read before has arrived again
        if len(self._seconds) > 4:
            old = self.last - _OVERLAP_S - 1.0
            self._seconds = {key: when for key, when in self._seconds.items() if when >= old}
            self._seen = {key: count for key, count in self._seen.items() if key[:19] + _zone(key) in self._seconds}

    def _second(self, key: bytes) -> float:
        """Unix seconds of a time without its fraction."""
        if key not in self._seconds:
            text = key.decode("ascii")
            offset = (
                0
                if text[19] == "Z"
                else (-1 if text[19] == "-" else 1) * (int(text[20:22]) * 60 + int(text[23:25])) * 60
            )
            self._seconds[key] = float(timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) - offset)
        return self._seconds[key]


def _zone(stamp: bytes) -> bytes:
    match = _STAMP.match(stamp)
    return match[3] if match else b""
