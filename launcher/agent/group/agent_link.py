"""The worker group's process and its node's agent: events go there, and what it says is taken at any moment."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from ..messages import AgentToGroup, GroupAgent, GroupToAgent


class AgentLink:
    """The agent of this node: events go to it, and a thread takes what it says at any moment."""

    def __init__(self, channel: GroupAgent, on_end: Callable[[bool], None]) -> None:
        """`on_end` is called when the agent is gone, before this process ends: with whether it has said that it ends."""
        self.on_stop: Callable[[AgentToGroup], None] = lambda _: None
        self._on_end = on_end
        self._channel = channel
        self._lock = threading.Lock()  # also other threads have something to tell
        self._answers: queue.Queue[AgentToGroup] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True, name="agent").start()

    def _listen(self) -> None:
        ends = False
        while True:
            message = self._channel.receive()[0]
            if message is None:
                self._on_end(ends)
                os._exit(1)  # the agent is gone, and the fork server ends the workers
            if "stop" in message:
                self.on_stop(message)
            elif "ends" in message:
                ends = True
            else:
                self._answers.put(message)

    def send(self, message: GroupToAgent) -> bool:
        """Send one message; False when the agent is gone."""
        with self._lock:
            return self._channel.send(message)

    def answer(self) -> AgentToGroup:
        """The next thing it says that is not a stop."""
        return self._answers.get()

    def event(self, name: str, **fields: Any) -> None:
        """Write an event to the agent stream."""
        self.send({"event": name, "fields": fields})
