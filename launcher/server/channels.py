"""One reader for each page, however many browsers show it, and none while no one looks."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
import traceback
from typing import TYPE_CHECKING

from launcher import output
from launcher.errors import LaunchError, StorageError
from launcher.server import views
from launcher.system import listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from launcher.server.views import Source, View

IDLE_S = 10.0
"""For this time after somebody has looked, reading continues: a page asks for its events right after it was loaded."""

_PAUSES = 10
"""A reader pauses for so many times as long as it has read."""

_FIRST_S = 60.0


class Channel:
    """What one source shows, for all who look. All methods but the thread's belong to the event loop."""

    def __init__(self, source: Source, dropped: Callable[[], None]) -> None:
        self.reads = 0
        self.viewers = 0
        self._source, self._dropped = source, dropped
        self._view: View | None = None
        self._news = asyncio.Event()
        self._stop = threading.Event()
        self._bug = ""
        """The one that was printed last."""

        self._name, self._loop = secrets.token_hex(4), asyncio.get_running_loop()
        self._idle: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._read, daemon=True, name="serve")
        self._thread.start()
        self._rest()

    async def first(self) -> View:
        """The view; waits for the first one. Raises `TimeoutError`."""
        if self._view is not None:
            if not self._view.ended:  # one that is final would be kept as long as somebody asks
                self._rest()
            return self._view
        limit = self._loop.time() + _FIRST_S
        self.look()  # else it would end before a first view that takes longer than `IDLE_S`
        try:
            while self._view is None:
                if self._stop.is_set():
                    raise TimeoutError
                await asyncio.wait_for(self._news.wait(), limit - self._loop.time())
        finally:
            self.leave()
        return self._view

    async def after(self, version: str, limit_s: float) -> View | None:
        """A view that is newer than this version; None if there is none within that time, or at the end."""
        if self._view is not None and self._view.version != version:
            return self._view
        news = self._news
        try:
            await asyncio.wait_for(news.wait(), limit_s)
        except (TimeoutError, asyncio.TimeoutError):  # one and the same since Python 3.11
            return None
        return self._view if self._view is not None and self._view.version != version else None

    def look(self) -> None:
        """Somebody looks at it from now on."""
        self.viewers += 1
        if self._idle is not None:
            self._idle.cancel()

    def leave(self) -> None:
        """Somebody does not any more."""
        self.viewers -= 1
        self._rest()

    def close(self) -> None:
        """Wake all who wait, and read no more; a backend that does not answer is not waited for."""
        self._stop.set()
        if self._idle is not None:
            self._idle.cancel()
        self._news.set()

    def _rest(self) -> None:
        """End soon, unless somebody looks by then."""
        if self._idle is not None:
            self._idle.cancel()
        if not self.viewers:
            self._idle = self._loop.call_later(IDLE_S, self._end)

    def _end(self) -> None:
        self.close()
        self._dropped()

    def _publish(self, view: View) -> None:
        self.reads += 1
        same = self._view is not None and self._view.parts == view.parts and self._view.status == view.status
        if same and not view.ended:
            return
        self._view = view
        self._news.set()
        self._news = asyncio.Event()

    def _read(self) -> None:
        """The thread: read, tell, pause."""
        number = 0
        with listener.told_to(lambda _kind, _text: None):  # a cluster that does not answer is named in the report
            while not self._stop.is_set():
                number += 1
                begun = time.monotonic()
                view = self._now(f"{self._name}-{number}")
                try:
                    self._loop.call_soon_threadsafe(self._publish, view)
                except RuntimeError:  # the loop has ended meanwhile
                    return
                if view.ended:
                    return
                self._stop.wait(max(self._source.interval_s, _PAUSES * (time.monotonic() - begun)))

    def _now(self, version: str) -> View:
        try:
            return self._source.read(version)
        except LaunchError as error:
            return views.problem(version, error)
        except Exception as error:  # noqa: BLE001 - whatever a damaged run leads to, the others are shown
            if self._bug != repr(error):
                self._bug = repr(error)
                output.bug(traceback.format_exc(), ends=False)
            return views.problem(version, StorageError(f"this cannot be read: {error!r}"))


class Channels:
    """Those that are read now, by what they show."""

    def __init__(self) -> None:
        self._open: dict[str, Channel] = {}
        self.reads = 0
        """By those that have ended."""

    def get(self, name: str, source: Callable[[], Source]) -> Channel:
        """The channel of that name, which is opened if it is not."""
        if name not in self._open:
            self._open[name] = Channel(source(), lambda: self._drop(name))
        return self._open[name]

    def known(self, name: str) -> Channel | None:
        """The channel of that name, if it is open."""
        return self._open.get(name)

    @property
    def viewers(self) -> int:
        """How many look."""
        return sum(channel.viewers for channel in self._open.values())

    def counts(self) -> Iterator[tuple[str, int]]:
        """Metrics of the server itself."""
        yield "serve_viewers", self.viewers
        yield "serve_reads", self.reads + sum(channel.reads for channel in self._open.values())

    def close(self) -> None:
        """End all of them."""
        for channel in self._open.values():
            channel.close()

    def _drop(self, name: str) -> None:
        self.reads += self._open.pop(name).reads
