"""Sends the Python environment of a run (`--env-ship`) to the host of node 0, if that does not see it.

What is listed and sent is decided by the agent's own modules, from its archive. The other end is
`launcher/agent/ssh/environment.py`.
"""

from __future__ import annotations

import sys
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distlaunch_asking import Answer, Asking

_TIMES = {"list": 10, "pieces": 3, "make": 15}
"""How many times longer than other requests these may take: another run may make the same environment, a part of some
megabytes is sent, and programs of the environment run."""


class Environment:
    """The environment of one run; `about`: what its job says of it."""

    def __init__(self, asking: Asking, agent: str, about: Mapping[str, Any]) -> None:
        """`agent`: the path of the agent's archive."""
        self._asking, self._about = asking, about
        if agent not in sys.path:
            sys.path.insert(0, agent)
        import_module("distlaunch_agent.bytecode").use()
        self._sending = import_module("distlaunch_agent.environment.sending")

    def bring(self, host: str, directory: str) -> Answer:
        """Whether the host sees the environment; if not, how many bytes were sent. `directory`: the run's, there."""
        source = self._about["source"]
        mark = self._sending.mark_of(source)
        request = {"call": "environment", "source": source, "mark": mark, "directory": directory}
        request.update(dir=self._about.get("dir"), quota_bytes=self._about["quota_bytes"])
        answer = self._asking.ask(host, request)
        if answer.get("problem") or answer.get("sees"):
            return answer
        if mark is None:
            where = "name one that is here, or on a disk that all hosts see"
            return {"problem": f"{source} is neither on this machine nor on {host}, node 0: {where}", "here": True}
        try:
            with self._sending.opened(source, lambda text: self._asking.report(progress=text)) as here:
                return self._send(host, here, has_other=bool(answer.get("other")))
        except (self._sending.BringError, OSError) as error:
            return {"problem": f"env-ship {source}: {error}", "here": True}

    def _send(self, host: str, here: Any, *, has_other: bool) -> Answer:
        asking = self._asking
        answer = self._ask(host, "list", zlib.compress(here.encoded, 1))
        there = str(answer.get("directory"))
        lacking = None if answer.get("problem") else here.lacking(answer)
        if lacking is None:
            return {"problem": "its answer is not an agent's: it does not tell what it lacks", **answer}
        size, done = here.size_of(lacking), 0
        self._tell(host, there, here, size, has_other=has_other)
        for part in here.parts(lacking):
            with asking.part_of(host, done, part.raw_bytes, size):
                answer = self._ask(host, "pieces", part.data)
            if answer.get("problem"):
                return {**answer, "problem": f"while the environment was sent to {there}: {answer['problem']}"}
            done += part.raw_bytes
        asking.report(progress=f"making the environment in {there} of {host}")
        answer = self._ask(host, "make")
        removed = answer.get("removed")
        why = f"removed from {host}, as it was not used for longest: the environment from"
        notes = [f"{why} {path}" for path in (removed if isinstance(removed, list) else [])]
        asking.note([f"env-ship: {note}" for note in (*here.notes, *notes)])
        return {**answer, "sent_bytes": size}

    def _ask(self, host: str, what: str, payload: bytes | None = None) -> Answer:
        return self._asking.ask(host, {"do": what}, payload, times=_TIMES[what])

    def _tell(self, host: str, there: str, here: Any, size: int, *, has_other: bool) -> None:
        """Say what is sent, and why, unless the host has all of it."""
        if size:
            why = "which has another one at that path" if has_other else "which does not see it"
            unit, name = (1e6, "MB") if here.total_bytes >= 1e6 else (1e3, "kB")
            amount = f"{size / unit:.0f} of {here.total_bytes / unit:.0f} {name}"
            self._asking.report(waits=f"sending {amount} of {self._about['source']} to {there} of {host}, {why}")
