"""The request to a fork server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Dict, Optional

from ..channel import Message
from ..named_tuple import NamedTuple
from ..system import processes
from .program import Program

if TYPE_CHECKING:
    from ..messages import ServerAgent, ServerSetup


class Setup(NamedTuple):
    """The agent's first message, and what follows from it; it never changes."""

    message: ServerSetup
    job: Message
    env: Dict[str, str]
    """The workers' environment."""

    scratch: str
    program: Program
    archive: str
    """The agent's archive, which has been removed from `sys.path`."""

    listen_fd: Optional[int]
    """The socket of the run's store, on node 0, which the worker group's process takes over."""

    def other_python(self) -> str:
        """The interpreter that runs the workers instead of this one; empty if there is none."""
        return _other_python(self.env)


def receive(agent: ServerAgent) -> Setup:
    """Receive the agent's first message; exits without one."""
    message, fds = agent.receive()
    if message is None or "quit" in message:  # the agent has exited, or failed before it could start
        os._exit(0)
    request = message["setup"]
    job, env = request["job"], request["env"]
    options = [] if _other_python(env) else processes.options()
    program = Program(job["command"], job["kind"], job["cwd"], options)
    archive = sys.path[0]
    sys.path.remove(archive)
    return Setup(request, job, env, request["scratch"], program, archive, next(iter(fds), None))


def _other_python(env: Dict[str, str]) -> str:
    named = env.get("PYTHON_EXEC", "")
    return named if named and os.path.realpath(named) != os.path.realpath(sys.executable) else ""
