"""Node 0 offers its notices of the run to a launcher that follows it, and sends those that none takes on.

Each notice is an event of the stream first. Only the process that creates its file in the run's directory sends it.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from typing import Any, Dict, List, Optional

from .. import notice, webhook
from ..failures import Failure
from ..job import Job
from ..notice import END, HANG, Notice
from ..stream.writer import Writer

_TAKEN_S, _TAKEN_AT_END_S, _TAKEN_AT_STOP_S = 30.0, 20.0, 3.0
"""How long a launcher has to take on a notice; the last one if the node may be killed soon."""

_SEND_S, _SEND_AT_STOP_S = 12.0, 4.0
"""How long sending may take; the latter also once something could not be sent."""

_LOOK_S = 0.05
_STOPPED = (Failure.CANCELLED, Failure.PREEMPTED, Failure.TIMEOUT)


class Telling(Writer):
    """A stream that makes notices of its events."""

    def __init__(self, notices: Notices, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._notices = notices

    def event(self, name: str, **fields: Any) -> None:
        """Write an event, and offer a notice of it. `done` is written after its notice was taken on or sent."""
        for trouble in self._notices.troubles():
            super().event("warning", message=f"not told: {trouble}")
        if name == "done":
            self._offer(self._notices.end(fields))
            for trouble in self._notices.finish(fields):
                super().event("warning", message=f"not told: {trouble}")
        super().event(name, **fields)
        what = notice.of_event(name, self._notices.heard)
        if what:
            self._offer(self._notices.made(what, fields))
            self._notices.begin()

    def _offer(self, made: Notice) -> None:
        data = json.dumps({"about": made.about, "number": made.number})
        super().event("notice", what=made.what, run=made.run, id=made.id, data=data)


class Notices:
    """The notices of the run, in a thread, in their order: no receiver holds up the node."""

    def __init__(self, job: Job) -> None:
        asked = json.loads(job.notify or "{}")
        self._urls: List[str] = list(asked.get("urls") or ())
        self._secret = str(asked.get("secret") or "")
        self._others = len(asked.get("apprise") or ())
        self._followed = bool(asked.get("followed")) and not job.array
        """Whether a launcher has followed the run so far, as far as is known."""

        self._job = job
        self.heard: List[str] = []
        self._waiting: List[Notice] = []
        self._asked: queue.Queue[Optional[Notice]] = queue.Queue()
        self._thread: Optional[threading.Thread] = None
        self._troubles: List[str] = []
        self._failed = False
        self._until = math.inf
        """When a launcher has had its time, at the end of the node."""

    def made(self, what: str, fields: Dict[str, Any]) -> Notice:
        """The notice for an event."""
        self.heard.append(what)
        about: Dict[str, Any] = {"time": time.time()}
        if what == notice.START:
            about.update({name: fields.get(name) for name in ("nodes", "world_size", "master_addr")})
        elif what == HANG:
            about["message"] = str(fields.get("message") or "")[:2000]
        else:
            about["cause"] = notice.brief(fields.get("cause"))
        made = Notice(
            what,
            self._job.tracked_as or self._job.run,
            self._job.attempt,
            about,
            self.heard.count(HANG) if what == HANG else 0,
        )
        self._waiting.append(made)
        return made

    def end(self, fields: Dict[str, Any]) -> Notice:
        """The notice for the end of the node, and so of this attempt of the run."""
        more = {name: fields.get(name) for name in ("exit_code", "restarts", "duration_s")}
        about = {"time": time.time(), **notice.end(fields["result"], fields.get("cause"), **more)}
        made = Notice(END, self._job.tracked_as or self._job.run, self._job.attempt, about)
        self._waiting.append(made)
        return made

    def begin(self) -> None:
        """Have the last notice sent, by a launcher or from here, after those before it."""
        self._asked.put(self._waiting.pop())
        if self._thread is None:
            self._thread = threading.Thread(target=self._tell_all, name="notices", daemon=True)
            self._thread.start()

    def finish(self, fields: Dict[str, Any]) -> List[str]:
        """Have the end told, after all before it, and wait for that; returns what could not be told."""
        stopped = fields["result"] in _STOPPED
        taken_s, send_s = (_TAKEN_AT_STOP_S, _SEND_AT_STOP_S) if stopped else (_TAKEN_AT_END_S, _SEND_S)
        self._until = time.monotonic() + taken_s
        limit = self._until + send_s
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(max(0.0, limit - time.monotonic()))
        self._tell(self._waiting.pop(), taken_s, send_s)
        return self.troubles()

    def troubles(self) -> List[str]:
        """What could not be told since the last call."""
        found, self._troubles = self._troubles, []
        return found

    def _tell_all(self) -> None:
        while (made := self._asked.get()) is not None:
            self._tell(made, _TAKEN_S, _SEND_S)

    def _tell(self, made: Notice, taken_s: float, send_s: float) -> None:
        limit = time.monotonic() + taken_s
        try:
            while self._followed and time.monotonic() < min(limit, self._until):
                if notice.taken(self._job.directory, made.id):
                    return
                time.sleep(_LOOK_S)
            if not notice.take(self._job.directory, made.id):
                return
        except OSError as error:  # a full disk: better twice than not at all
            self._troubles.append(f"{made.what} may be told twice: {error.strerror}")
        self._followed = False
        limit_s = min(send_s, _SEND_AT_STOP_S) if self._failed else send_s
        failed = webhook.send(self._urls, webhook.Post(made.id, made.body(), self._secret), limit_s)
        self._failed = self._failed or bool(failed)
        self._troubles += failed
        if self._others:
            self._troubles.append(f"{made.what} to {self._others} services that need a launcher (apprise)")
