"""The node's agent, as the fork server sees it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ..messages import ServerAgent


class Agent:
    """Takes reports for the agent."""

    def __init__(self, channel: ServerAgent) -> None:
        self.channel = channel

    def event(self, name: str, **fields: Any) -> None:
        """Report an event for the agent stream."""
        self.channel.send({"event": name, "fields": fields})

    def warn(self, message: str) -> None:
        """Report a warning for the agent stream."""
        self.event("warning", message=message)

    def fail(self, what: str, trace: str, *, message: str = "", module: str = "") -> NoReturn:
        """Report what has failed, and exit; while there are no workers, only once the agent has no more use for it.

        The worker group's process, which ends with this one, may have to tell the other nodes.
        """
        self.channel.send({"failed": what, "traceback": trace, "message": message, "module": module})
        while what != "server" and "quit" not in (self.channel.receive()[0] or {"quit": True}):
            pass
        os._exit(1)
