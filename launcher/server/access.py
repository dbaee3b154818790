"""Access to the pages: with the token, by a name of this machine, and only to read."""

from __future__ import annotations

import hmac
import secrets
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD")
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""In every answer, unless it has its own."""


def is_loopback(host: str) -> bool:
    """Whether this name or address can only be this machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Access:
    """Lets a request pass that has the token, as a bearer or as the cookie for which a URL with it is exchanged."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        """`cookie`: its name. Browsers send a cookie to all ports of a host, so each server needs its own."""
        self._app, self._token, self._cookie = app, token, cookie
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.decode("latin-1") for name, _ in message["headers"]}
                more = [(name.encode(), text.encode()) for name, text in _HEADERS.items() if name not in own]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        answer = self._answer(scope)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer to a request that must not pass, and to the first one of a browser."""
        asked = HTTPConnection(scope)
        headers = asked.headers
        if not is_loopback(_host(headers.get("host", ""))):  # another site's name that was made to lead here
            return PlainTextResponse("this server answers to 127.0.0.1 and localhost only\n", 421)
        if scope["method"] not in METHODS:
            return PlainTextResponse("these pages can only be read\n", 405, {"allow": ", ".join(METHODS)})
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if given and _same(given[0], self._token):
            return self._exchanged(scope["path"])
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(bearer.strip(), self._token):
            return None
        if not given and _same(asked.cookies.get(self._cookie, ""), self._session):
            return None
        text = "open the URL that distlaunch serve has printed: its token is missing here, or that of another start\n"
        return PlainTextResponse(text, 401, {"www-authenticate": "Bearer"})

    def _exchanged(self, path: str) -> Response:
        """A cookie instead of the token in the address, and on to the same page without it.

        A redirection would do, but not for a link on another site's page: the cookie, which is for this site only,
        would not be sent along.
        """
        target = "/" + quote(path.lstrip("/\\"))
        text = f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">All runs</a>\n'
        answer = HTMLResponse(f"<!doctype html><title>distlaunch</title>{text}")
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer


def _same(given: str, wanted: str) -> bool:
    """In a time that does not depend on how much of it is right."""
    return hmac.compare_digest(given.encode(), wanted.encode())


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    return header.partition("]")[0] + "]" if header.startswith("[") else header.partition(":")[0]
