"""The readers of pages by themselves: what they read, and until when."""

from __future__ import annotations

import asyncio
import threading

import pytest

from launcher import output
from launcher.errors import StorageError
from launcher.server import channels
from launcher.server.channels import Channel
from launcher.server.views import View
from tests.loops import result_of

_LIMIT_S = 20.0


class Told:
    """A source of these views, the last of them again and again."""

    interval_s = 0.0

    def __init__(self, *told: str | Exception) -> None:
        """Why each is the last one, or what reading raises."""
        self._told = list(told)

    def read(self, version: str) -> View:
        """The next one."""
        told = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        if isinstance(told, Exception):
            raise told
        return View(version, "", "", {}, "", b"{}", ended=told)


class Slow(Told):
    """A source that reads until it is allowed to end."""

    def __init__(self) -> None:
        super().__init__("")
        self.allowed = threading.Event()

    def read(self, version: str) -> View:
        """The one view, in the end."""
        self.allowed.wait(_LIMIT_S)
        return super().read(version)


def test_a_page_of_a_run_that_has_ended_is_read_anew_though_somebody_asks_for_it_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have been queued again."""
    monkeypatch.setattr(channels, "IDLE_S", 0.1)

    async def ask() -> None:
        dropped = asyncio.Event()
        channel = Channel(Told("The run has ended"), dropped.set)
        while not dropped.is_set():
            await channel.first()
            await asyncio.sleep(0.01)

    result_of(ask)


def test_a_page_that_cannot_be_read_for_a_moment_is_read_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bug is reported once, and not on stdout, which has the one object of `serve --output json`."""
    bug = ValueError("a bug")
    monkeypatch.setattr(output, "as_json", lambda: True)

    async def ask() -> list[int]:
        channel = Channel(Told(StorageError("a stale file handle"), bug, bug, bug, ""), lambda: None)
        views = [await channel.first()]
        while views[-1].status != 200:
            view = await channel.after(views[-1].version, _LIMIT_S)
            assert view is not None
            views.append(view)
        channel.close()
        return [view.status for view in views]

    statuses = result_of(ask)

    assert statuses[0] == 500
    assert statuses[-1] == 200
    printed = capfd.readouterr()
    assert (printed.out, printed.err.count("error[bug]")) == ("", 1)


def test_a_first_view_may_take_longer_than_a_page_that_nobody_looks_at_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "IDLE_S", 0.02)

    async def ask() -> int:
        source, dropped = Slow(), asyncio.Event()
        channel = Channel(source, dropped.set)
        first = asyncio.ensure_future(channel.first())
        await asyncio.sleep(0.2)
        assert not dropped.is_set()
        source.allowed.set()
        status = (await first).status
        await asyncio.wait_for(dropped.wait(), _LIMIT_S)
        return status

    assert result_of(ask) == 200


def test_who_waits_for_a_first_view_is_sent_away_when_the_server_ends() -> None:
    async def ask() -> None:
        source = Slow()
        channel = Channel(source, lambda: None)
        first = asyncio.ensure_future(channel.first())
        await asyncio.sleep(0)
        channel.close()
        try:
            done, _ = await asyncio.wait([first], timeout=_LIMIT_S)
            assert done
        finally:
            source.allowed.set()
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):  # one and the same since Python 3.11
            await first

    result_of(ask)
