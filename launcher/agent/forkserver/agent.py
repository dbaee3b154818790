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
        """Report what has failed, and exit."""
        self.channel.send({"failed": what, "traceback": trace, "message": message, "module": module})
        os._exit(1)
