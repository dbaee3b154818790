"""How an agent is asked of a fork server that was left standing: the agent is forked there, with torch imported.

    launcher, or the login on a host ──connects──> standing server ──forks──> agent ──forks──> fork server of the run
          └──────── what the agent is to be, its output; `go` ────────────────┘

The agent checks all that it has inherited before it answers: it is as if started anew, or it says why it is not and
exits. It begins only when it is told to, once it is recorded. What it can do before it knows the request, it does as
soon as there is a connection, so a launcher connects (`call`) before it makes its request.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ..channel import Channel
from ..named_tuple import NamedTuple
from . import inherited, records

Json = Dict[str, Any]
_ANSWER_S = 10.0
_CONNECT_S = 1.0
_PEER = struct.Struct("3i")
NONE = "none was standing"


class Request(NamedTuple):
    """The agent that is wanted, as for the start of a program."""

    agent: str
    """The digest of its archive."""

    argv: Sequence[str]
    """Python, its options, and the agent's own words from its archive on."""

    env: Mapping[str, str]
    cwd: str
    stay_s: float = 0.0
    """How long the server is to wait after this one, at least."""

    keeps: Sequence[int] = ()
    """Descriptors that it holds until it ends, such as locks."""


class Forked:
    """An agent that waits for `go`."""

    def __init__(self, pid: int, channel: Channel[Json, Json]) -> None:
        self.pid = pid
        self._channel = channel

    def go(self) -> bool:
        """Have it begin; False if it has exited."""
        return self._channel.send({"go": True})

    def close(self) -> None:
        """Close the connection; without `go` before, it exits."""
        self._channel.close()


class Called(NamedTuple):
    """A connection to a server, at the other end of which an agent is being prepared."""

    standing: records.Standing
    connection: socket.socket


def call(python: str) -> Optional[Called]:
    """Connect to the server of this Python that was used last; None if there is none."""
    where = records.directory()
    standing = [each for each in records.found() if each.python == python] if where else []
    for latest in sorted(standing, key=lambda each: -each.until)[:1]:
        assert where
        with contextlib.suppress(OSError):
            return Called(latest, _connected(records.socket_of(where, latest.pid, latest.start_ticks)))
    return None


def ask(request: Request, output: Tuple[int, int], called: Optional[Called] = None) -> Tuple[Optional[Forked], str]:
    """An agent with this stdout and stderr, or None and the reason. Tries each server with this agent and Python.

    `called`: a connection that there is already.
    """
    reason = NONE
    where = records.directory()
    for standing in records.found() if where else []:
        if standing.python != request.argv[0]:
            reason = f"the one that stands is for {standing.python}"
        elif standing.agent != request.agent:
            reason = "the one that stands is of another version of distlaunch"
        else:
            assert where
            path = records.socket_of(where, standing.pid, standing.start_ticks)
            early = called.connection if called and called.standing.pid == standing.pid else None
            is_open = early is not None and early.fileno() >= 0  # an earlier request may have used it
            found, reason = _ask(path, request, output, early if is_open else None)
            if found is not None:
                return found, ""
    return None, reason


def _ask(
    path: str, request: Request, output: Tuple[int, int], early: Optional[socket.socket] = None
) -> Tuple[Optional[Forked], str]:
    """`early`: a connection, which is of no use if the other end has waited too long for this request."""
    wanted: Json = {"argv": list(request.argv), "env": dict(request.env), "cwd": request.cwd}
    own = {"fixed": inherited.fixed(), "settable": inherited.settable(), "keeps": len(request.keeps)}
    wanted["stay_s"] = request.stay_s
    try:
        connection = early or _connected(path)
        channel: Channel[Json, Json] = Channel(connection)
        try:
            channel.send({**wanted, **own}, output)
            for keep in request.keeps:
                channel.send({"keep": True}, [keep])
            message = _answer(channel)
        except OSError:
            channel.close()
            raise
    except OSError as error:
        return None, f"it cannot be asked: {error.strerror or error}"
    if not message or "agent" not in message:
        channel.close()
        if not message and early:
            return _ask(path, request, output)
        return None, str(message["refused"]) if message else "it has ended meanwhile"
    connection.settimeout(None)
    return Forked(int(message["agent"]), channel), ""


def _connected(path: str) -> socket.socket:
    """Raises `OSError`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(path)
        connection.settimeout(_ANSWER_S)
        if not is_ours(connection):
            raise PermissionError("it belongs to another user")
    except OSError:
        connection.close()
        raise
    return connection


def _answer(channel: Channel[Json, Json]) -> Optional[Json]:
    if not channel.ready(_ANSWER_S):
        raise TimeoutError(f"no answer in {_ANSWER_S:.0f} s")
    return channel.receive()[0]


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(data)[1] == os.geteuid())
