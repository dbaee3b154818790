"""What `distlaunch top` reads while it is open, from a backend whose streams a test scripts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.agent.protocol import encode_event
from launcher.backends._base import Chunk
from launcher.errors import StorageError
from launcher.runs import records
from launcher.service import observe, top
from tests.cli.scripted import Scripted
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

_LIMIT_S = 20.0


class Failing(Scripted):
    """Its first streams end with an error each, after a part of what is in them; the last one has the rest."""

    def __init__(self, data: bytes, *ends: int) -> None:
        super().__init__()
        self._data, self._ends = data, list(ends)
        self._at = 0

    def open_stream(self, handle: object, offsets: object = None) -> Failing:
        found: Mapping[int, int] = offsets if isinstance(offsets, dict) else {}
        self._at = found.get(0, 0)
        return self

    def read(self, timeout_s: float) -> list[Chunk]:
        if self._ends and self._at >= self._ends[0]:
            self._ends.pop(0)
            raise StorageError("a stale file handle")
        end = self._ends[0] if self._ends else len(self._data)
        chunk, self._at = Chunk(0, self._data[self._at : end]), end
        if not chunk.data:
            self.over.wait(min(timeout_s, 0.01))
        return [chunk]


def test_a_stream_that_cannot_be_read_is_named_and_opened_again_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"".join(encode_event("warning", 0, message=f"{number}") for number in range(9))
    data += encode_event("agent_started", 0, host="far")
    backend, seen = Failing(data, 100, 200, 200), list[str]()
    monkeypatch.setattr(observe, "backend_of", lambda _run: backend)
    monkeypatch.setattr(top, "_AGAIN_S", 0.1)
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    plan = {"nodes": [{"host": "a"}], "min_nodes": 1}
    run = records.Run(id=run.id, path=run.path, created=run.created, backend="x", plan=plan)
    watch = top.Watch(records.record_handle(run, run.known))

    watch.start()
    try:
        limit = time.monotonic() + _LIMIT_S
        while watch.now()["nodes"][0]["host"] != "far" and time.monotonic() < limit:
            seen.append(watch.trouble)
            time.sleep(0.01)
        assert watch.now()["nodes"][0]["host"] == "far"
    finally:
        watch.close()
    assert "a stale file handle" in seen
    assert watch.trouble != "a stale file handle"
