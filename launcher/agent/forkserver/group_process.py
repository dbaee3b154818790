"""The worker group's process on this node (`group/process.py`), as the fork server sees it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Optional

from ..channel import Channel
from .agent import Agent
from .child import Task
from .setup import Setup
from .signals import Signals

if TYPE_CHECKING:
    from ..messages import GroupAgent, GroupServer, ServerGroup, ServerSetup

_LAST_WORD_S = 15.0


class GroupProcess:
    """The process that meets the other nodes and asks the fork server for workers."""

    def __init__(self, agent_end: GroupAgent) -> None:
        """`agent_end`: its channel to the agent."""
        self.channel: ServerGroup
        self._server_end: GroupServer
        self.channel, self._server_end = Channel.pair()
        self.pid = 0
        self._agent_end = agent_end

    def fork(self, setup: Setup, agent: Agent, signals: Signals) -> Optional[Task]:
        """Fork the process; returns its task in the child, and None in the fork server."""
        server = os.getpid()
        self.pid = os.fork()
        if self.pid:
            self._server_end.close()
            self._agent_end.close()
            if setup.listen_fd is not None:
                os.close(setup.listen_fd)
            return None
        self.channel.close()
        agent.channel.close()
        signals.become_group(server)
        if setup.program.directory in sys.path[:1]:
            del sys.path[0]
        server_end, agent_end = self._server_end, self._agent_end
        return lambda: _main(setup.message, server_end, agent_end, setup.listen_fd)

    def wait(self) -> None:
        """Wait, for a limited time, while it notifies the other nodes that the agent has exited."""
        limit = time.monotonic() + _LAST_WORD_S
        with contextlib.suppress(ChildProcessError):
            while not os.waitpid(self.pid, os.WNOHANG)[0] and time.monotonic() < limit:
                time.sleep(0.01)


def _main(
    setup: ServerSetup,
    server: GroupServer,
    agent: GroupAgent,
    listen_fd: Optional[int],
) -> None:
    from ..group import process

    try:
        code = process.main(setup, server, agent, listen_fd)
    except BaseException as error:  # noqa: BLE001 - it is reported as the cause
        import traceback

        process.end_broken(agent, f"{type(error).__name__}: {error}", traceback.format_exc())
    agent.end()  # it ends the fork server while the kernel takes this process apart, which takes 10 ms
    os._exit(code)
