"""Server-sent events: the parts of a page that have changed, as long as a browser shows it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import Receive, Scope, Send

    from launcher.server.channels import Channel
    from launcher.server.views import View

_BEAT_S = 15.0
"""Proxies and tunnels end connections on which nothing is sent."""

_SEND_S = 30.0
"""A browser that takes nothing for this time has gone."""

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


class EventStream:
    """An answer that continues until its browser leaves, nothing more can change, or the server ends."""

    def __init__(self, channel: Channel, version: str, closing: Callable[[], bool]) -> None:
        """`version`: the one that the browser has."""
        self._channel, self._version, self._closing = channel, version, closing

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send events; ends with the first of sending and the browser's connection."""
        self._channel.look()
        tasks = [asyncio.ensure_future(each) for each in (self._send(send), _left(receive))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (OSError, TimeoutError, asyncio.TimeoutError):  # it has gone in the middle of an event
            pass
        finally:
            self._channel.leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async def put(text: str, *, more: bool = True) -> None:
            body = {"type": "http.response.body", "body": text.encode(), "more_body": more}
            await asyncio.wait_for(send(body), _SEND_S)

        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await put("retry: 2000\n\n")
        async for event in self._events():
            await put(event)
        await put("", more=False)

    async def _events(self) -> AsyncIterator[str]:
        """Everything that the browser lacks, then what changes."""
        shown: View | None = None
        while not self._closing():
            view = await self._channel.after(self._version, _BEAT_S)
            if view is None:
                yield ": still there\n\n"
                continue
            if view.parts and not (view.status != 200 and shown is None):
                yield _parts(view, shown)
            if view.ended:
                yield f"event: end\ndata: {view.ended}\n\n"
                return
            shown, self._version = view, view.version


def _parts(view: View, shown: View | None) -> str:
    """What of a page differs from what is shown; all of it, if that is not known."""
    known = shown.parts if shown else {}
    changed = {name: text for name, text in view.parts.items() if known.get(name) != text}
    order = [name for name in view.parts if name not in ("header", "nav")]
    data = json.dumps({"title": view.title, "order": order, "changed": changed})
    return f"id: {view.version}\nevent: parts\ndata: {data}\n\n"


async def _left(receive: Receive) -> None:
    """Until the browser has closed the connection."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
