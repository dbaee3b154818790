"""Agents that are forked from a fork server that an earlier run has left standing (`--warm`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.system import trust
from launcher.agent.system.processes import start_ticks
from launcher.agent.warm import asking
from launcher.system import detached, hangup, proc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_ROOM = "-" * 2048
"""In the command line of an agent that may leave a server: the place for the longest one of later runs."""


def start(
    argv: Sequence[str], *, cwd: str, archive: Path, outputs: tuple[Path, Path], stay_s: float
) -> tuple[asking.Forked | None, str]:
    """An agent that waits for `go`, with its output in these files, or None and the reason."""
    request = asking.Request(
        agent=trust.agent_name(archive.read_bytes()), argv=argv, env=os.environ, cwd=cwd, stay_s=stay_s
    )
    with detached.private(outputs[0]) as out, detached.private(outputs[1]) as err, hangup.as_found():
        return asking.ask(request, (out.fileno(), err.fileno()))


def begin(agent: asking.Forked, record: Callable[[proc.Identity], None]) -> None:
    """Record the agent, then have it begin; without a record, it exits."""
    try:
        ticks = start_ticks(agent.pid)
        if ticks is not None:  # otherwise it has been killed, which following the run reveals
            record(proc.Identity(agent.pid, ticks))
            agent.go()
    finally:
        agent.close()


def words(reason: str) -> tuple[str, ...]:
    """What the command line of an agent that is started anew has beside the usual words."""
    return ("--cold", reason, "--room", _ROOM)
