"""A kubelet that a test plays: the logs of pods, line by line with times."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from launcher.backends.kubernetes.pod_status import Pod

if TYPE_CHECKING:
    from pathlib import Path


class FakeResponse:
    """Gives the bytes in odd pieces, and breaks off where it is told to."""

    def __init__(self, data: bytes, breaks_at: int | None, rng: random.Random) -> None:
        self._data = data if breaks_at is None else data[:breaks_at]
        self._breaks, self._rng = breaks_at is not None, rng

    def read1(self, _size: int) -> bytes:
        count = self._rng.randint(1, 700)
        block, self._data = self._data[:count], self._data[count:]
        if not block and self._breaks:
            raise ConnectionResetError
        return block

    def close(self) -> None:
        pass


class FakeKubelet:
    """A log of lines with times, served as a kubelet does: only those from `sinceTime` on, by whole seconds."""

    namespace = "ns"

    def __init__(self, lines: list[tuple[float, bytes]], seed: int = 0) -> None:
        self.lines, self.rng, self.breaks = lines, random.Random(seed), 0

    def open(self, _path: str, query: dict[str, Any], *, silent_s: float) -> FakeResponse:
        since = query.get("sinceTime", "")
        data = b"".join(
            stamp(when) + b" " + text + b"\n" for when, text in self.lines if stamp(when).decode()[:19] >= since[:19]
        )
        if self.breaks:
            self.breaks -= 1
            return FakeResponse(data, self.rng.randint(0, len(data)), self.rng)
        return FakeResponse(data, None, self.rng)


def handle(run_dir: Path, nodes: int) -> Any:
    return {"run_dir": str(run_dir), "nodes": nodes, "kind": "job"}


def stamp(when: float) -> bytes:
    whole, fraction = divmod(when, 1)
    return f"2026-11-20T14:{int(whole) // 60:02}:{int(whole) % 60:02}.{int(fraction * 1e9):09}Z".encode()


def a_pod(uid: str = "u1", phase: str = "Succeeded") -> Pod:
    ended = {"name": "node", "state": {"terminated": {"exitCode": 0}}}
    return Pod(0, f"pod-{uid}", uid, "2026-11-20T14:00:00Z", phase, "n1", {"containerStatuses": [ended]})


def some_lines(count: int, seed: int) -> list[tuple[float, bytes]]:
    """Bursts of lines in one moment, pauses, and times that are a little out of order, as of two pipes."""
    rng, now, found = random.Random(seed), 5.0, []
    for number in range(count):
        now += rng.choice([0, 0, 0.000001, 0.01, 0.3, 1.2])
        found.append((max(0.0, now - rng.choice([0, 0, 0.00002])), b"line %d " % number + b"x" * rng.randint(0, 300)))
    return found


def text_of(lines: list[tuple[float, bytes]]) -> bytes:
    return b"".join(text + b"\n" for _, text in lines)
