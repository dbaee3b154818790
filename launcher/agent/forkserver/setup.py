"""What a fork server is asked for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional

from ..channel import Message
from ..system import processes
from .program import Program

if TYPE_CHECKING:
    from ..messages import ServerAgent, ServerSetup


class Setup(NamedTuple):
    """The agent's first message, and what follows from it; it does not change."""

    message: ServerSetup
    job: Message
    env: Dict[str, str]
    """The workers'."""

    scratch: str
    program: Program
    archive: str
    """The agent's, which is not in `sys.path` any more."""

    listen_fd: Optional[int]
    """Node 0's socket for the store, which the worker group's process takes over."""

    @property
    def elastic(self) -> bool:
        """Whether torch's rendezvous is used."""
        return bool(self.job["min_nodes"] != self.job["max_nodes"])

    def other_python(self) -> str:
        """What runs the workers instead of this interpreter, or nothing."""
        return _other_python(self.env)


def receive(agent: ServerAgent) -> Setup:
    """The agent's first message; without one this process ends."""
    message, fds = agent.receive()
    if message is None or "quit" in message:  # the agent has ended, or failed before it could begin
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
