"""Agents that are forked from a fork server that an earlier run has left standing (`--warm`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.system.processes import start_ticks
from launcher.agent.warm import asking
from launcher.backends.local import ahead
from launcher.payload import agent_archive
from launcher.system import detached, hangup, proc

if TYPE_CHECKING:
    from collections.abc import Sequence

_ARCHIVE = 2
_ROOM = "-" * 2048
"""In the command line of an agent that may leave a server: the place for the longest one of later runs."""


def start(argv: Sequence[str], place: detached.Place, *, stay_s: float) -> str | None:
    """Have a standing server fork the agent, in its place; the reason if none can.

    It begins once it is recorded; without a record, it exits.
    """
    name = agent_archive.name(Path(argv[_ARCHIVE]).read_bytes())
    request = asking.Request(agent=name, argv=argv, env=os.environ, cwd=place.cwd, stay_s=stay_s)
    with detached.private(place.stdout) as out, detached.private(place.stderr) as err, hangup.as_found():
        agent, reason = asking.ask(request, (out.fileno(), err.fileno()), ahead.called())
    if agent is None:
        return reason
    try:
        ticks = start_ticks(agent.pid)
        if ticks is not None:  # otherwise it has been killed, and following the run reveals that
            place.record(proc.Identity(agent.pid, ticks))
            agent.go()
    finally:
        agent.close()
    return None


def words(reason: str) -> tuple[str, ...]:
    """What the command line of an agent that is started anew has beside the usual words."""
    return ("--cold", reason, "--room", _ROOM)
