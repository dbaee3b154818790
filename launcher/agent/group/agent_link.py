"""The link from the worker group's process to its node's agent: sends events, and receives messages at any time."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from ..messages import AgentToGroup, Cause, GroupAgent, GroupToAgent


class AgentLink:
    """The channel to this node's agent, read by a thread."""

    def __init__(self, channel: GroupAgent, on_end: Callable[[bool], None]) -> None:
        """`on_end` is called once the agent has exited, before this process does, with whether it announced that."""
        self.on_stop: Callable[[AgentToGroup], None] = lambda _: None
        self.on_hang_message: Callable[[AgentToGroup], None] = lambda _: None
        self.failure: Optional[Cause] = None
        """Why this node has no workers."""

        self._on_end = on_end
        self._channel = channel
        self._lock = threading.Lock()  # other threads send, too
        self._answers: queue.Queue[AgentToGroup] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True, name="agent").start()

    def _listen(self) -> None:
        ends = False
        while True:
            message = self._channel.receive()[0]
            if message is None:
                self._on_end(ends)
                os._exit(1)  # the agent has exited; the fork server ends the workers
            if "stop" in message:
                self.on_stop(message)
            elif "stacks" in message or "quiet" in message or "act" in message:
                self.on_hang_message(message)
            elif "fail" in message:
                self.failure = message["fail"]
            elif "ends" in message:
                ends = True
            else:
                self._answers.put(message)

    def send(self, message: GroupToAgent) -> bool:
        """Send one message; False if the agent has exited."""
        with self._lock:
            return self._channel.send(message)

    def answer(self) -> AgentToGroup:
        """Wait for the agent's next message that is none of `stop`, `fail` and `ends`."""
        return self._answers.get()

    def event(self, name: str, **fields: Any) -> None:
        """Write an event to the agent stream."""
        self.send({"event": name, "fields": fields})
