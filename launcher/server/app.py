"""The addresses: pages, their JSON and events, and metrics."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from launcher.errors import LaunchError
from launcher.runs import directories
from launcher.runs.metrics import EOF, Page
from launcher.server import views
from launcher.server.channels import Channels
from launcher.server.event_stream import EventStream
from launcher.service import metrics
from launcher.system import listener

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request

    from launcher.server.channels import Channel
    from launcher.server.views import View

MOST_VIEWERS = 64
"""So many pages may be open at once."""

_METRICS_S = 2.0
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ALL = ""


class Pages:
    """All runs in one directory."""

    def __init__(self, directory: Path, closing: Callable[[], bool]) -> None:
        """`closing`: whether the server ends."""
        self._directory, self._closing = directory, closing
        self._metrics, self._made = "", 0.0
        self._lock = asyncio.Lock()
        self.channels = Channels()

    def app(self) -> Starlette:
        """The application."""
        routes = [
            Route("/", self.all_runs),
            Route("/runs.json", self.all_runs),
            Route("/events", self.events),
            Route("/events/{run:path}", self.events),
            Route("/runs/{run:path}", self.one_run),
            Route("/metrics", self.metrics),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _explain, **_LATE})

    async def all_runs(self, request: Request) -> Response:
        """The list of runs."""
        return _answer(await (await self._channel(_ALL)).first(), as_json=request.url.path.endswith(".json"))

    async def one_run(self, request: Request) -> Response:
        """The report of a run. A part of its id, or `last`, leads there."""
        name: str = request.path_params["run"]
        text = name.removesuffix(".json")
        try:
            channel = await self._channel(text)
        except _MovedError as moved:
            return RedirectResponse(f"/runs/{moved.run}{name[len(text) :]}", 307)
        except LaunchError as error:
            return _answer(views.problem("none", error), as_json=text != name)
        return _answer(await channel.first(), as_json=text != name)

    async def events(self, request: Request) -> Response | EventStream:
        """What changes on a page."""
        if request.method == "HEAD":
            return Response()
        if self.channels.viewers >= MOST_VIEWERS:
            raise HTTPException(503, "too many pages are open: close some", {"retry-after": "30"})
        try:
            channel = await self._channel(request.path_params.get("run", _ALL))
        except (_MovedError, LaunchError) as error:
            raise HTTPException(404, str(error)) from error
        version = request.headers.get("last-event-id") or request.query_params.get("version", "")
        return EventStream(channel, version, self._closing)

    async def metrics(self, _request: Request) -> Response:
        """Metrics of all runs that have not ended, or not long ago."""
        async with self._lock:  # several scrapers at once are one reader
            if time.monotonic() - self._made > _METRICS_S:
                self._metrics = await asyncio.to_thread(self._read_metrics)
                self._made = time.monotonic()
        own = Page()
        for name, value in self.channels.counts():
            own.add(name, value)
        return Response(self._metrics.removesuffix(EOF) + own.text(), media_type=_OPENMETRICS)

    def _read_metrics(self) -> str:
        with listener.told_to(lambda _kind, _text: None):  # a run whose cluster does not answer has no metrics
            return metrics.page(metrics.recent(self._directory)).text()

    async def _channel(self, name: str) -> Channel:
        """What that name stands for. Raises `RunNotFoundError`, or `_MovedError` with the whole id of a part of one."""
        if name == _ALL:
            return self.channels.get(name, lambda: views.AllRuns(self._directory))
        if (known := self.channels.known(name)) is not None:
            return known
        found = await asyncio.to_thread(directories.find, self._directory, name)
        if found.id != name:
            raise _MovedError(found.id)
        return self.channels.get(name, lambda: views.of(found))


class _MovedError(Exception):
    """A run has another name."""

    def __init__(self, run: str) -> None:
        super().__init__(f"it is called {run}")
        self.run = run


def _answer(view: View, *, as_json: bool) -> Response:
    if as_json:
        return Response(view.data, view.status, media_type="application/json")
    policy = {"content-security-policy": f"{view.policy}; frame-ancestors 'none'"}
    return Response(view.html, view.status, policy, media_type="text/html")


def _explain(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


def _late(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("the run could not be read in time: reload the page\n", 504)


_LATE = {TimeoutError: _late, asyncio.TimeoutError: _late}
"""One and the same since Python 3.11."""
