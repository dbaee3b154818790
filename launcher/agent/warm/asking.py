"""How an agent is asked of a fork server that was left standing: the agent is forked there, with torch imported.

    launcher, or the login on a host ──connects──> standing server ──forks──> agent ──forks──> fork server of the run
          └──────── what the agent is to be, its output; `go` ────────────────┘

The agent checks all that it has inherited before it answers: it is as if started anew, or it says why it is not and
exits. It begins only when it is told to, once it is recorded.
"""

from __future__ import annotations

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


def ask(request: Request, output: Tuple[int, int]) -> Tuple[Optional[Forked], str]:
    """An agent with this stdout and stderr, or None and the reason. Tries each server with this agent and Python."""
    reason = NONE
    where = records.directory()
    for standing in records.found() if where else []:
        if standing.python != request.argv[0]:
            reason = f"the one that stands is for {standing.python}"
        elif standing.agent != request.agent:
            reason = "the one that stands is of another version of distlaunch"
        else:
            assert where
            found, reason = _ask(records.socket_of(where, standing.pid, standing.start_ticks), request, output)
            if found is not None:
                return found, ""
    return None, reason


def _ask(path: str, request: Request, output: Tuple[int, int]) -> Tuple[Optional[Forked], str]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel: Channel[Json, Json] = Channel(connection)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(path)
        connection.settimeout(_ANSWER_S)
        if not is_ours(connection):
            raise PermissionError("it belongs to another user")
        wanted: Json = {"argv": list(request.argv), "env": dict(request.env), "cwd": request.cwd}
        own = {"fixed": inherited.fixed(), "settable": inherited.settable(), "keeps": len(request.keeps)}
        wanted["stay_s"] = request.stay_s
        channel.send({**wanted, **own}, output)
        for keep in request.keeps:
            channel.send({"keep": True}, [keep])
        message = _answer(channel)
    except OSError as error:
        channel.close()
        return None, f"it cannot be asked: {error.strerror or error}"
    if not message or "agent" not in message:
        channel.close()
        return None, str(message["refused"]) if message else "it has ended meanwhile"
    connection.settimeout(None)
    return Forked(int(message["agent"]), channel), ""


def _answer(channel: Channel[Json, Json]) -> Optional[Json]:
    if not channel.ready(_ANSWER_S):
        raise TimeoutError(f"no answer in {_ANSWER_S:.0f} s")
    return channel.receive()[0]


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(data)[1] == os.geteuid())
