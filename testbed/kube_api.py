"""The API server over HTTPS with a token, for tests that need no client library in between."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlencode, urlsplit

from testbed.errors import TestbedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Object: TypeAlias = dict[str, Any]

PATCH = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(TestbedError):
    """The API server rejected a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server says {status}: {message}")
        self.status = status


class ClosingSocket(ssl.SSLSocket):
    """Closes itself: `SSLContext.wrap_socket` leaks a socket whose peer exits before the handshake."""

    def __del__(self) -> None:
        self.close()


class KubeApi:
    """One user's connection, for one request at a time; several threads take turns.

    Args:
        server: as `https://10.77.0.254:6443`.
        ca: the certificate that signs the server's.
    """

    def __init__(self, server: str, ca: Path, token: str) -> None:
        self._address = urlsplit(server).netloc
        self._ca = ca
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._connection: http.client.HTTPSConnection | None = None
        self._turn = threading.RLock()

    def get(self, path: str, **query: str) -> Object:
        """Read one object or a list."""
        return self._json("GET", path, None, query)

    def get_or_none(self, path: str) -> Object | None:
        """Read an object that may not be there."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def text(self, path: str, **query: str) -> str:
        """Read what is not JSON: a pod's log, /readyz."""
        return self._request("GET", path, None, query).decode(errors="replace")

    def post(self, path: str, body: Object, **query: str) -> Object:
        """Create an object, or post to a subresource (`.../eviction`, `.../token`)."""
        return self._json("POST", path, body, query)

    def patch(self, path: str, body: Any, *, kind: str = "merge", **query: str) -> Object:
        """Change an object: by a `merge` patch, a `strategic` or a `json` one, or server-side `apply`."""
        return self._json("PATCH", path, body, query, PATCH[kind])

    def delete(self, path: str, **options: Any) -> Object:
        """Delete one object or a collection; `gracePeriodSeconds=0`, `propagationPolicy="Foreground"`."""
        return self._json("DELETE", path, options, {})

    @contextmanager
    def lines(self, path: str, *, silent_s: float, **query: str) -> Iterator[Iterator[bytes]]:
        """A streamed response, line by line: a watch, a followed log. `TimeoutError` after `silent_s` without data."""
        target = _target(path, query)
        connection = self._open(silent_s)
        try:
            connection.request("GET", target, headers=self._headers)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise ApiError(answer.status, message(answer.read()))
            yield iter(answer.readline, b"")
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise TestbedError(f"GET {target}: the API server cannot be reached: {error!r}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connection; the next request opens one."""
        with self._turn:
            if self._connection:
                self._connection.close()
            self._connection = None

    def _json(
        self, method: str, path: str, body: Any, query: dict[str, str], content: str = "application/json"
    ) -> Object:
        value: Object = json.loads(self._request(method, path, body, query, content))
        return value

    def _request(
        self, method: str, path: str, body: Any, query: dict[str, str], content: str = "application/json"
    ) -> bytes:
        """Send one request; a connection that the server has closed is opened again, once."""
        target = _target(path, query)
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, **({"Content-Type": content} if data else {})}
        with self._turn:
            status, said = self._answer(method, target, data, headers)
        if status >= 300:
            raise ApiError(status, message(said))
        return said

    def _answer(self, method: str, target: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        again = self._connection is not None  # the server may have closed it
        while True:
            try:
                connection = self._connection = self._connection or self._open()
                connection.request(method, target, data, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not again:
                    raise TestbedError(f"{method} {target}: the API server cannot be reached: {error!r}") from error
                again = False

    def _open(self, silent_s: float = 60) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self._ca))
        context.sslsocket_class = ClosingSocket
        return http.client.HTTPSConnection(self._address, timeout=silent_s, context=context)


def _target(path: str, query: dict[str, str]) -> str:
    """A path with its query."""
    return path + (f"?{urlencode(query)}" if query else "")


def message(said: bytes) -> str:
    """The message of an error object, or the end of any other response."""
    try:
        return str(json.loads(said)["message"])
    except (ValueError, KeyError, TypeError):
        return said.decode(errors="replace").strip()[-300:]
