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

_TIMES = 10
"""How many times longer than other requests one part may take."""

_LAST_TIMES = 15
"""The same for the last one: the environment is made then."""


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
            return {"problem": f"{source} is neither on this machine nor on {host}, node 0: {where}", "refused": True}
        try:
            with self._sending.opened(source, lambda text: self._asking.report(progress=text)) as here:
                return self._send(host, here, has_other=bool(answer.get("other")))
        except (self._sending.BringError, OSError) as error:
            return {"problem": f"env-ship {source}: {error}", "refused": True}

    def _send(self, host: str, here: Any, *, has_other: bool) -> Answer:
        asking, times = self._asking, _TIMES
        answer = asking.ask(host, {"do": "list"}, zlib.compress(here.encoded, 1), times=times)
        if answer.get("problem"):
            return answer
        there = str(answer.get("directory"))
        lacking = here.lacking(answer)
        size, done = here.size_of(lacking), 0
        self._tell(host, there, here, size, has_other=has_other)
        for part in here.parts(lacking):
            with asking.part_of(host, done, part.raw_bytes, size):
                answer = asking.ask(host, {"do": "pieces"}, part.data, times=times)
            if answer.get("problem"):
                return {**answer, "problem": f"while the environment was sent to {there}: {answer['problem']}"}
            done += part.raw_bytes
        asking.report(progress=f"making the environment in {there} of {host}")
        answer = asking.ask(host, {"do": "make"}, times=_LAST_TIMES)
        notes = [f"removed from {host}, as it was not used for longest: {one}" for one in answer.get("removed") or ()]
        asking.note([f"env-ship: {note}" for note in (*here.notes, *notes)])
        return {**answer, "sent_bytes": size}

    def _tell(self, host: str, there: str, here: Any, size: int, *, has_other: bool) -> None:
        """Say what is sent, and why, unless the host has all of it."""
        if size:
            why = "which has another one at that path" if has_other else "which does not see it"
            unit, name = (1e6, "MB") if here.total_bytes >= 1e6 else (1e3, "kB")
            amount = f"{size / unit:.0f} of {here.total_bytes / unit:.0f} {name}"
            self._asking.report(waits=f"sending {amount} of {self._about['source']} to {there} of {host}, {why}")
