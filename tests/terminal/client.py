"""A client of a worker's terminal that its agent serves."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

from launcher.agent.terminal import attach, frames
from tests.agent.harness import LIMIT_S

if TYPE_CHECKING:
    from tests.agent.harness import Run


class Client:
    """A client of a worker's terminal, as the launcher is one."""

    def __init__(self, run: Run, *, looks: bool = True) -> None:
        """`looks`: it asks for what the worker writes."""
        run.until(lambda: run.of("terminal_opened"))
        self._run = run
        self.line = frames.Connection(
            attach.connect(str(run.directory / "nodes" / "0"), run.of("terminal_opened")[-1]["rank"])
        )
        if looks:
            self.line.send(show=True)
        self.out = ""
        self.modes: dict[str, bool] = {}
        self.exited = False

    def until(self, text: str) -> None:
        """Read until the worker has written `text`."""
        self._until(lambda: text in self.out, text)

    def until_end(self) -> None:
        """Read until the agent closes the connection."""
        self._until(lambda: self.line.ended, "the end")

    def _until(self, met: Any, what: str) -> None:
        limit = time.monotonic() + LIMIT_S
        while not met():
            assert time.monotonic() < limit, f"no {what} in {LIMIT_S} s: {self.out!r} {self._run.agent_stderr()}"
            select.select([self.line], [self.line] if self.line.waiting else [], [], 0.1)
            self.line.flush()
            for message in self.line.receive():
                self.out += message.get("out", "")
                self.modes = message.get("modes", self.modes)
                self.exited = self.exited or "exited" in message
