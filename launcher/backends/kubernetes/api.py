"""Requests to the API server. Objects are plain JSON."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from launcher import output
from launcher.backends.kubernetes import admission, library, login
from launcher.errors import BackendUnavailableError, CommandError, LaunchError, SpecError
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from launcher.backends.kubernetes.access import Access
    from launcher.login.forward import Forward

T = TypeVar("T")

_CONNECT_S = 10.0
_PIECE_BYTES = 1 << 14
"""Requests are sent in pieces, each within `_CONNECT_S`: urllib3 would apply that limit to a whole body."""

_ANSWER_S = 60.0
_TRIES = 4
_RETRIES_S = 5.0
"""Behind a login node, what takes longer is not tried again: its network is gone, and it lasts to notice that."""

PASSING = (408, 429, 500, 502, 503, 504)
"""States of an API server, and of proxies before it, that pass."""

CONFLICT = "Conflict"
"""The reason if something that the request changes, as a quota, was changed at the same time: it has no effect."""

_REVIEWS = "reviews"
"""The end of the paths of questions about rights, which change nothing."""

FORBIDDEN = re.compile(r'User "([^"]*)" cannot (\S+) resource "([^"]*)"')
"""A missing right; other refusals with that status are those of quotas and webhooks."""

_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')
_PAGE, _PAGE_OF_PODS = 100, 500
"""How many objects are listed at once; of pods, as many as kubectl lists."""

_BLOCK_BYTES = 1 << 18
_LINE_BYTES = 16 << 20
"""More than any object or record has; a pod may write a line that never ends."""


MERGE = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"
"""`Accept` header for a list of objects with only their metadata."""

_JSON = "application/json, */*"


class ApiError(Exception):
    """The API server's refusal of a request."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.reason = status, message, reason


class UnreachableError(Exception):
    """The API server did not answer; whether it acted on the request is unknown."""

    def __init__(self, message: str, why: LaunchError | None = None) -> None:
        """`why`: what says it better, as the error of a login node, which repeats itself."""
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True)
class Cluster:
    """A context of a kubeconfig, and a namespace in it."""

    context: str
    namespace: str
    access: Access
    tunnel: Forward | None = None
    """The way to the API server through a login node."""

    warned: set[str] = field(default_factory=set)
    """Warnings that were shown already, and are not repeated."""

    @property
    def configuration(self) -> Any:
        """The client library's, with what is needed to reach and to convince the API server."""
        return self.access.configuration

    def now(self) -> float:
        """The time in unix seconds by the clock of the API server, for comparison with what objects say."""
        return self.access.now()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        content: str = "application/json",
        accept: str = "",
    ) -> dict[str, Any]:
        """Send one request, with retries where they are safe. Raises `ApiError` or `UnreachableError`."""
        once = method == "POST" and not path.endswith(_REVIEWS) and "dryRun" not in (query or {})
        pause, limit = 0.2, time.monotonic() + (_RETRIES_S if self.tunnel else _ANSWER_S * _TRIES)
        for last in range(_TRIES - 1, -1, -1):
            try:
                response = self._send(method, path, body, query, content, stream=False, accept=accept or _JSON)
                value: dict[str, Any] = json.loads(response.data or b"{}")
            except ApiError as error:
                again = error.status in PASSING or (method == "PATCH" and error.reason == CONFLICT)
                if not last or not again or once:
                    raise
            except (UnreachableError, ValueError) as error:
                why: LaunchError | None = getattr(error, "why", None)
                if not last or once or why or time.monotonic() > limit:
                    raise UnreachableError(str(error), why) from error
            else:
                return value
            time.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")

    def find(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Get an object; None if it does not exist."""
        try:
            return self.call("GET", path, query=query)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def open(self, path: str, query: Mapping[str, Any], *, silent_s: float) -> Any:
        """Open a response to be read as it arrives (`read1`, `close`); `silent_s` without a byte is an error."""
        return self._send("GET", path, None, query, "", stream=True, answer_s=silent_s)

    def _credentials(self) -> dict[str, str]:
        try:
            return self.access.credentials()
        except login.LoginError as error:
            raise UnreachableError(str(error), login.failed(error)) from error

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Any,
        content: str,
        *,
        stream: bool,
        answer_s: float = _ANSWER_S,
        accept: str = _JSON,
    ) -> Any:
        import urllib3

        own = {"Accept": accept, "User-Agent": "distlaunch"}
        pieces = None
        if body is not None:
            data = json.dumps(body).encode()
            pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]
            own |= {"Content-Type": content, "Content-Length": str(len(data))}
        how = {"body": pieces, "timeout": urllib3.Timeout(connect=_CONNECT_S, read=answer_s)}
        where = path + ("?" + urlencode(query) if query else "")
        headers = lambda: {**own, **self._credentials()}  # noqa: E731
        with self._errors():
            response = self.access.request(method, where, headers, preload_content=not stream, **how)
            if response.status >= 300:
                raise api_error(response.status, response.data)
        if method != "GET":
            self._warn(response.headers.getlist("Warning"))
        return response

    def dialled(self, path: str, query: Mapping[str, Any]) -> tuple[str, list[str], socket.socket]:
        """A connection for a websocket, made as requests make theirs, with its URL and headers.

        Raises `UnreachableError`.
        """
        with self._errors():
            sock = library.dial(self.access.pool, self.configuration.host, _CONNECT_S)
        url = "ws" + self.configuration.host.removeprefix("http") + path + "?" + urlencode(query, doseq=True)
        return url, [f"{name}: {value}" for name, value in self._credentials().items()], sock

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of connections as `UnreachableError`."""
        import urllib3

        try:
            yield
        except LaunchError as error:
            raise UnreachableError(error.message, error) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(f"{self.configuration.host}: {login.plain(error)}") from error

    def _warn(self, headers: list[str]) -> None:
        """Show the API server's warnings about what it accepts, each one once."""
        for text in (re.sub(r"\\(.)", r"\1", found) for header in headers for found in _WARNING.findall(header)):
            if text not in self.warned:
                self.warned.add(text)
                more = f"; {admission.mend(text)}" if "would violate" in text else ""
                output.warn(f"the API server says: {login.one_line(text)}{more}")


def collect(
    cluster: Cluster, path: str, query: Mapping[str, Any], take: Callable[[dict[str, Any]], T], *, accept: str = ""
) -> tuple[list[T], str]:
    """What `take` makes of all objects of a collection, and its version; fetched in pages, as objects may be large."""
    found: list[T] = []
    page = {"limit": _PAGE_OF_PODS if path.endswith("/pods") else _PAGE, **query}
    while True:
        try:
            listed = cluster.call("GET", path, query=page, accept=accept)
        except ApiError as error:
            if error.status != 410 or "continue" not in page:
                raise
            found, page = [], {**query, "limit": 0}  # the API server no longer knows the version that we have listed
            continue
        found += map(take, listed["items"] or ())  # null: a list of metadata without objects
        if not listed["metadata"].get("continue"):
            return found, str(listed["metadata"].get("resourceVersion", ""))
        page["continue"] = listed["metadata"]["continue"]


def explained(error: Exception, cluster: Cluster, doing: str) -> LaunchError:
    """The `LaunchError` for an API error that occurred while `doing` something."""
    where = f"context {cluster.context!r}" if cluster.context else "the cluster"
    if isinstance(error, UnreachableError):
        return error.why or _unreached(error, cluster, where)
    assert isinstance(error, ApiError)
    refused = FORBIDDEN.search(error.message)
    if error.status == 401 or (refused and refused[1] == "system:anonymous"):
        return BackendUnavailableError(
            f"the API server does not accept the credentials of {where}: they are wrong, or have expired",
            hint="log in to the cluster again",
        )
    if error.status == 403 and refused:
        return BackendUnavailableError(
            f"{refused[1]} may not {refused[2]} {refused[3]} in namespace {cluster.namespace!r}, "
            f"which is needed {doing}",
            hint="`distlaunch k8s --print-role`, with the run's --kind, prints the Role that grants it; or name "
            "another namespace: --namespace NAME",
        )
    if error.status == 404 and f'namespaces "{cluster.namespace}"' in error.message:
        return SpecError(f"there is not a namespace {cluster.namespace!r}", hint="name another: --namespace NAME")
    if error.status in (400, 403, 404, 409, 422):
        hint = admission.mend(error.message) if error.status == 403 else None
        return SpecError(f"the API server refuses, {doing}: {error.message}", hint=hint)
    return CommandError(f"the API server failed, {doing}: {error.status} {error.message}")


def _unreached(error: UnreachableError, cluster: Cluster, where: str) -> LaunchError:
    if cluster.tunnel and cluster.tunnel.is_refused():
        return BackendUnavailableError(
            f"{cluster.tunnel.login.name} does not let a connection through to {cluster.tunnel.there}, the API server",
            hint="it does not answer there, its name is not known there, or the login node's sshd forwards nothing "
            "(AllowTcpForwarding, PermitOpen)",
        )
    return BackendUnavailableError(f"the API server cannot be reached: {error}", hint=f"it is the one of {where}")


def blocks(response: Any, *, cut: bool = False) -> Iterator[list[bytes]]:
    """Blocks of whole lines, as they arrive; overlong lines come in pieces. `cut`: also an unterminated last line.

    Raises `UnreachableError`.
    """
    import urllib3

    rest = b""
    try:
        while block := response.read1(_BLOCK_BYTES):
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) > _LINE_BYTES:
                whole, rest = [*whole, rest], b""
            yield whole
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise UnreachableError(login.plain(error)) from error
    if rest and cut:
        yield [rest]


def api_error(status: int, data: bytes) -> ApiError:
    """The error of an answer with this body."""
    try:
        told = json.loads(data)
        return ApiError(status, str(told["message"]), str(told.get("reason", "")))
    except (ValueError, KeyError, TypeError):
        return ApiError(status, data.decode(errors="replace").strip()[:500] or f"HTTP {status}")
