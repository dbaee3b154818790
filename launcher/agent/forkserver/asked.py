"""What a child of a standing server becomes: the agent that was asked for, or the answer why it cannot be."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, Dict, List

from ..channel import Channel
from ..system import processes
from ..warm import inherited, records
from . import archive, forks, kept, worker
from .imported import Imported, only_for_agents

_WORD_S = 30.0
_PARTS_S = 10.0
_LOOKED_S = 1.0
"""After a longer wait for the request, files are looked at again."""

_WORDS = 3
"""Where the agent's own words begin: after Python, -u and the archive."""


class Asked:
    """The child's answer to a request, which may still be made when there is a connection."""

    def __init__(self, channel: Channel[Any, Any], imported: Imported, where: str, server: Any) -> None:
        self._channel, self._imported, self._where, self._server = channel, imported, where, server

    def prepare(self) -> None:
        """Do what does not depend on the request."""
        before = set(sys.modules)
        assert forks.prepare is not None
        with contextlib.suppress(ImportError, OSError):  # an archive that is gone; the request names another one
            forks.prepare()
        only_for_agents.extend(name for name in sys.modules if name not in before)
        self._changed, self._looked_at = kept.changed_files(self._imported.files), time.monotonic()

    def answer(self) -> List[str]:
        """Become what was asked for, and wait for `go`; returns the agent's words, and exits if there is none."""
        if not self._channel.ready(_PARTS_S):
            os._exit(0)
        wanted, fds = self._channel.receive()
        if wanted is None:
            os._exit(0)
        os.setsid()
        for number, fd in enumerate([os.open(os.devnull, os.O_RDONLY), *fds]):
            os.dup2(fd, number)
            os.close(fd)
        for _ in range(wanted["keeps"]):
            if not self._channel.ready(_PARTS_S):
                os._exit(0)
            self._channel.receive()  # they stay open
        reason = self._become(wanted)
        if reason:
            self._channel.send({"refused": reason})
            os._exit(0)
        self._prolong(wanted)
        self._channel.send({"agent": os.getpid()})
        if not self._channel.ready(_WORD_S) or self._channel.receive()[0] is None:
            os._exit(os.EX_TEMPFAIL)  # the launcher has died before it recorded this process
        self._channel.close()
        processes.set_title(wanted["argv"])
        return list(wanted["argv"][_WORDS:])

    def _become(self, wanted: Dict[str, Any]) -> str:
        """Take on all that the agent would have inherited; returns what prevents that."""
        own = json_like(inherited.fixed())
        differ = [name for name, value in wanted["fixed"].items() if own.get(name) != value]
        if differ:
            return f"the {differ[0]} of the one that stands {'is' if differ[0][-1] != 's' else 'are'} different"
        wrong = inherited.adopt(wanted["settable"])
        if wrong:
            return f"the {wrong[0]} of the one that stands cannot be set"
        if time.monotonic() - self._looked_at > _LOOKED_S:
            self._changed = kept.changed_files(self._imported.files)
        if self._changed:
            return f"{self._changed[0]} has changed since its import"
        try:
            os.chdir(wanted["cwd"])
        except OSError as error:
            return f"{wanted['cwd']}: {error.strerror}"
        if sum(len(os.fsencode(word)) + 1 for word in wanted["argv"]) > processes.title_bytes():
            return "the agent's command line is longer than that of the one that stands"
        archive.move(wanted["argv"][2])
        worker.set_environment(wanted["env"])
        sys.path[:] = [wanted["argv"][2], *self._imported.search]
        sys.argv[:] = wanted["argv"][2:]
        _renew_clocks()
        assert forks.differs is not None
        return forks.differs(wanted["argv"][_WORDS:], self._imported)

    def _prolong(self, wanted: Dict[str, Any]) -> None:
        record = records.read(self._where, *self._server)
        if record:
            until = max(record.until, time.time() + float(wanted.get("stay_s") or 0))
            with contextlib.suppress(OSError):
                records.write(self._where, record._replace(until=until, runs=record.runs + 1))


def json_like(value: Any) -> Any:
    """The value as it arrives in a message."""
    import json

    return json.loads(json.dumps(value))


def _renew_clocks() -> None:
    """Let `logging` count from now, as in a process that has just started."""
    logging: Any = sys.modules.get("logging")
    start = getattr(logging, "_startTime", None)
    if start is not None:
        logging._startTime = time.time_ns() if isinstance(start, int) else time.time()
