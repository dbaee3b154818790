"""The agent's stream as its loop sees it: items are queued and written by a thread, so nothing waits for a disk."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ..protocol import encode_event
from ..system.scratch import within
from .rotation import Rotation
from .sink import Item, Sink

BUFFER_BYTES = 16 * 1024 * 1024
"""Above this much unwritten data, the workers' pipes are not read until it has dropped to half."""

_BATCH_BYTES = 1024 * 1024
_VERDICT = ("failure", "done")
_LAST_WORDS_S = 2.0
_LOOK_S = 0.1
_SAY_AFTER_S = 5.0
_STOPPING = "the stream accepted nothing while the run was being stopped"


class Writer:
    """One node's stream."""

    def __init__(
        self,
        fd: int,
        node: int,
        directory: str,
        attempt: int = 0,
        log_limit_bytes: Optional[int] = None,
        *,
        plain: bool = False,
    ) -> None:
        """`directory`: the node's, for last words and the latest lines of ranks above the limit (None: no limit).

        `plain`: people read the stream, too.
        """
        self.holds = True
        """Whether workers wait while the buffer is full; otherwise their lines are dropped and counted."""

        self._about = {"node": node, **({"attempt": attempt} if attempt else {})}
        encoder = None
        if plain:
            from .plain import Encoder  # few streams are

            encoder = Encoder()
        bytes(BUFFER_BYTES)  # freed at once: glibc keeps as much from now on, without page faults (mallopt(3))
        self._sink = Sink(fd, node, attempt, directory, encoder)
        self._rotation = Rotation(self._sink, directory, log_limit_bytes)
        self._new: List[Item] = []
        self._verdict: List[bytes] = []
        self._changed = threading.Condition()
        self._queue: Deque[Item] = deque()
        self._bytes = 0
        self._skipped: Dict[bytes, int] = {}
        self._closing = False
        self._all_told: Optional[bool] = None
        """Whether everything was written; None while the thread is running."""

        threading.Thread(target=self._run, daemon=True, name="stream").start()

    def event(self, name: str, **fields: Any) -> None:
        """Write an event."""
        data = encode_event(name, **self._about, **fields)
        if name in _VERDICT:
            self._verdict.append(data)
        self.add(Item(data))
        self.flush()

    def heartbeat(self, workers: int, **more: Any) -> None:
        """Write a heartbeat, if readers need one."""
        if self._sink.needs_heartbeat:
            self.event("heartbeat", workers=workers, **more)

    def add(self, item: Item) -> None:
        """Add whole lines, to be written from the next `flush` on."""
        if item.tag and self._bytes > BUFFER_BYTES and not self.holds:
            with self._changed:
                self._skipped[item.tag] = self._skipped.get(item.tag, 0) + item.lines()
        elif item.data:
            self._new.append(item)

    def rank_ended(self, tag: bytes) -> None:
        """Mark the output with that tag as complete: its latest lines, if any were kept, follow now."""
        self._new.append(Item(b"", tag))

    def flush(self) -> None:
        """Queue the added items for writing."""
        if self._new:
            with self._changed:
                if not self._bytes:
                    self._sink.wrote_at = time.monotonic()  # a blocked stream counts as silent from now on
                self._queue.extend(self._new)
                self._bytes += sum(len(item.data) for item in self._new)
                self._changed.notify_all()
            self._new.clear()

    def settle(self, limit_s: float) -> None:
        """Wait at most `limit_s` until all flushed items are written: the next step may end this process."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, limit_s)

    def must_wait(self, waits: bool) -> bool:
        """Whether workers must wait for space in the buffer; `waits`: whether they already do."""
        return self.holds and self._bytes > (BUFFER_BYTES // 2 if waits else BUFFER_BYTES)

    def finish(self, limit_s: float, leave: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Wait until everything is written; for a blocked stream, until the limit or until `leave` returns True."""
        with self._changed:
            if not self._bytes:
                self._sink.wrote_at = time.monotonic()
            self._closing = True
            self._changed.notify_all()
        said = False
        while not self._has_ended(_LOOK_S):
            silent_s = time.monotonic() - self._sink.wrote_at
            if silent_s > min(_SAY_AFTER_S, limit_s / 2) and not said:
                said = True
                say(f"distlaunch agent: waits at most {limit_s:.0f} s for its blocked stream; SIGTERM ends the wait")
            if silent_s > limit_s or leave():
                say(f"distlaunch agent: exits: its stream has accepted nothing for {silent_s:.0f} s")
                break
        if not self._all_told:
            within(_LAST_WORDS_S, lambda: self._sink.remember(self._verdict), None)

    def _has_ended(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._all_told is not None, timeout_s)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        all_told = False
        try:
            self._sink.begin()
            self._rotation.begin()
            while self._turn():
                pass
            self._sink.end()
            all_told = True
        finally:
            with self._changed:
                self._all_told = all_told
                self._changed.notify_all()

    def _turn(self) -> bool:
        """Write a batch; False if no more will come."""
        items, skipped = self._take()
        for tag, lines in skipped.items():
            self._sink.lose(tag, lines, _STOPPING)
        self._rotation.put(items)
        with self._changed:
            self._bytes -= sum(len(item.data) for item in items)
            if not self._bytes:
                self._changed.notify_all()
            return bool(self._queue or not self._closing)

    def _take(self) -> Tuple[List[Item], Dict[bytes, int]]:
        """The next batch, once there is one, and the lines skipped before it."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing, self._sink.patience_s)
            items, size = [], 0
            while self._queue and size < _BATCH_BYTES:
                items.append(self._queue.popleft())
                size += len(items[-1].data)
            skipped, self._skipped = self._skipped, {}
        return items, skipped
