"""The node's agent, as the fork server sees it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ..messages import ServerAgent


class Agent:
    """Takes what there is to tell."""

    def __init__(self, channel: ServerAgent) -> None:
        self.channel = channel

    def event(self, name: str, **fields: Any) -> None:
        """For the agent stream."""
        self.channel.send({"event": name, "fields": fields})

    def warn(self, message: str) -> None:
        """For whoever follows the run."""
        self.event("warning", message=message)

    def fail(self, what: str, trace: str, *, message: str = "", module: str = "") -> NoReturn:
        """Tell what has failed, and end this process."""
        self.channel.send({"failed": what, "traceback": trace, "message": message, "module": module})
        os._exit(1)
