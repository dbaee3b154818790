"""Programs run in a pod's container, beside the agent: to completion, or with stdin and stdout as a byte stream."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from launcher.backends.kubernetes.api import ApiError, UnreachableError, api_error
from launcher.errors import CommandError
from launcher.system import pipes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends.kubernetes.api import Cluster

_ANSWER_S = 60.0
"""How long the API server may take to start a program, and then that program to end."""

_ENDS_S = 2.0
_ALIVE_S = 25.0
"""How often something is sent: proxies between us and the cluster close silent connections."""

_BLOCK_BYTES = 64 * 1024
_SAID_BYTES = 4096
_PROTOCOLS = "v5.channel.k8s.io,v4.channel.k8s.io"
_STDOUT, _STDERR, _STATUS = 1, 2, 3
_TEXT, _BINARY, _CLOSE = 1, 2, 8
"""Types of frames; a binary one starts with the number of its channel."""


def execute(cluster: Cluster, pod: str, container: str, command: list[str]) -> None:
    """Run a program to its success. Raises `ApiError` or `UnreachableError`."""
    websocket = _exec(cluster, pod, container, command, stdin=False)
    limit, said = time.monotonic() + _ANSWER_S, b""
    try:
        while (left := limit - time.monotonic()) > 0:
            websocket.settimeout(left)
            kind, frame = websocket.recv_data_frame(True)
            if kind == _CLOSE:
                break
            if kind in (_TEXT, _BINARY) and frame.data[:1] == bytes([_STATUS]):
                said = frame.data[1:]
    except Exception as error:
        raise UnreachableError(f"pod {pod}: {error}") from error
    finally:
        websocket.close(timeout=_ENDS_S)
    if why := _failure(said):
        raise UnreachableError(why, CommandError(f"pod {pod}: {why}"))


def _failure(said: bytes) -> str:
    """Why a program failed, as the API server reports; empty if it succeeded, or its container has ended."""
    with contextlib.suppress(ValueError, AttributeError):
        ended = json.loads(said)
        why = str(ended.get("message") or "it failed") if ended.get("status") != "Success" else ""
        return "" if why.endswith("exit code 137") else why
    return ""


def bridge(cluster: Cluster, pod: str, container: str, command: list[str]) -> pipes.Bridge | None:
    """Start a program; None if the container has ended. Raises `ApiError` or `UnreachableError`."""
    try:
        return PodBridge(_exec(cluster, pod, container, command, stdin=True))
    except UnreachableError as error:
        if "container not found" in str(error):  # the pod's status may not tell yet
            return None
        raise


def _exec(cluster: Cluster, pod: str, container: str, command: list[str], *, stdin: bool) -> Any:
    """A websocket to a program that has started in the pod."""
    how = {"container": container, "command": command, "stdin": stdin, "stdout": True, "stderr": True, "tty": False}
    query = {name: str(value).lower() if isinstance(value, bool) else value for name, value in how.items()}
    known = cluster.access.pool
    try:
        return _connected(cluster, pod, query)
    except ApiError as error:
        if error.status != 401 or not cluster.access.renew(known):
            raise
    return _connected(cluster, pod, query)


def _connected(cluster: Cluster, pod: str, query: Mapping[str, Any]) -> Any:
    from websocket import WebSocket, WebSocketBadStatusException

    url, headers, sock = cluster.dialled(f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/exec", query)
    sock.settimeout(_ANSWER_S)
    websocket: Any = WebSocket()
    try:
        websocket.connect(url, socket=sock, header=[*headers, f"sec-websocket-protocol: {_PROTOCOLS}"])
    except WebSocketBadStatusException as error:
        sock.close()
        raise _refused(pod, api_error(error.status_code, error.resp_body or b"")) from error
    except Exception as error:
        sock.close()
        raise UnreachableError(f"pod {pod}: {error}") from error
    sock.settimeout(None)
    return websocket


def _refused(pod: str, error: ApiError) -> ApiError | UnreachableError:
    """The error of a request that was answered: the pod's, unless the credentials or a right are at fault."""
    if error.status == 401:
        return error
    if error.status == 403:
        return ApiError(403, f'User "you" cannot create resource "pods/exec": {error.message}')
    why = f"pod {pod}: {error.message}"
    return UnreachableError(why, CommandError(why))


class PodBridge(pipes.Bridge):
    """Two threads carry the stream between a websocket and `sock`."""

    def __init__(self, websocket: Any) -> None:
        ours, self._theirs = socket.socketpair()
        super().__init__(ours)
        self._typed = self._theirs.dup()  # each thread closes its own
        self._websocket = websocket
        self._said = {_STDERR: b"", _STATUS: b""}
        self._reader = threading.Thread(target=self._read, name="from-pod", daemon=True)
        self._reader.start()
        threading.Thread(target=self._write, name="to-pod", daemon=True).start()

    def end(self) -> str:
        """Close it; returns the program's last line on stderr, or the API server's message about its end."""
        super().end()
        self._reader.join(_ENDS_S)
        lines = [line.strip() for line in self._said[_STDERR].decode(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1]
        with contextlib.suppress(ValueError, AttributeError):
            return str(json.loads(self._said[_STATUS]).get("message") or "")
        return ""

    def _read(self) -> None:
        from websocket import WebSocketException

        with self._theirs:
            with contextlib.suppress(OSError, WebSocketException):
                while True:
                    kind, frame = self._websocket.recv_data_frame(True)
                    if kind == _CLOSE:
                        break
                    if kind not in (_TEXT, _BINARY) or not frame.data:
                        continue
                    channel, data = frame.data[0], frame.data[1:]
                    if channel == _STDOUT:
                        self._theirs.sendall(data)
                    elif channel in self._said:
                        self._said[channel] = (self._said[channel] + data)[-_SAID_BYTES:]
            with contextlib.suppress(OSError):
                self._theirs.shutdown(socket.SHUT_RDWR)  # the other thread has a duplicate: give the reader EOF now

    def _write(self) -> None:
        from websocket import WebSocketException

        poll = select.poll()  # a timeout on the socket would also affect the other thread
        poll.register(self._typed, select.POLLIN)
        with contextlib.suppress(OSError, WebSocketException), self._typed:
            while True:
                if not poll.poll(_ALIVE_S * 1000):
                    self._websocket.ping()
                elif data := self._typed.recv(_BLOCK_BYTES):
                    self._websocket.send(b"\0" + data, opcode=_BINARY)
                else:
                    break
        with contextlib.suppress(OSError, WebSocketException):
            self._websocket.close(timeout=_ENDS_S)  # also closes the program's stdin
