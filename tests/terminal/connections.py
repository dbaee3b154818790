"""Connections from the launcher to agents that a test plays."""

from __future__ import annotations

import json
import socket
from queue import SimpleQueue
from typing import Any

from launcher.agent.terminal import frames
from launcher.errors import CommandError
from launcher.system.pipes import Bridge

LIMIT_S = 60
BEGAN = [24, 80]


def refused() -> Bridge:
    raise CommandError("srun: no steps from here")


class Agents:
    """The agents' ends of connections."""

    def __init__(self) -> None:
        self.met: SimpleQueue[socket.socket] = SimpleQueue()

    def connect(self) -> Bridge:
        """Connect to another agent."""
        mine, theirs = socket.socketpair()
        theirs.settimeout(LIMIT_S)
        self.met.put(theirs)
        return Bridge(mine)

    def next(self) -> socket.socket:
        """The agent's end of the next connection."""
        return self.met.get(timeout=LIMIT_S)


def received(agent: socket.socket, *, ends: bool = False) -> dict[str, Any]:
    """The next message; with `ends` the connection has ended instead."""
    size = agent.recv(frames.LENGTH.size, socket.MSG_WAITALL)
    if ends:
        assert size == b""
        return {}
    found: dict[str, Any] = json.loads(agent.recv(frames.LENGTH.unpack(size)[0], socket.MSG_WAITALL))
    return found
