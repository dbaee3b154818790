"""The readers of pages by themselves: what they read, and until when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from launcher import output
from launcher.errors import StorageError
from launcher.server import channels
from launcher.server.channels import Channel
from launcher.server.views import View
from tests.loops import result_of

if TYPE_CHECKING:
    import pytest

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


def test_a_page_that_cannot_be_read_for_a_moment_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bug, printed = ValueError("a bug"), list[str]()
    monkeypatch.setattr(output, "bug", printed.append)

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
    assert len(printed) == 1
