"""Notices of a run, for webhooks and through apprise: a launcher and an agent make the same, with the same id."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional

from .named_tuple import NamedTuple
from .system import files

START, FAILURE, HANG, END = "start", "failure", "hang", "end"
PLACE = "notices"
"""The directory in the run's with a file for each notice that someone has taken on to send."""

_LONGEST = 2000
_CAUSE = ("class", "message", "host", "node", "rank", "local_rank", "exit_code", "signal")


class Notice(NamedTuple):
    """One message about a run."""

    what: str
    run: str
    attempt: int
    about: Dict[str, Any]
    number: int = 0
    """Of several of its kind in one attempt."""

    @property
    def id(self) -> str:
        """The same for every repetition; a file name, too."""
        more = f"_{self.number}" if self.number else ""
        return f"{self.run.replace('/', '-')}_{self.attempt}_{self.what}{more}"

    @property
    def text(self) -> str:
        """One line for people."""
        about, again = self.about, f", attempt {self.attempt}" if self.attempt else ""
        cause = (about.get("cause") or {}).get("message")
        why = f": {cause}" if cause else ""
        if self.what == START:
            nodes, ranks = about.get("nodes"), about.get("world_size")
            said = f"started{again}: {nodes} node{'s' * (nodes != 1)}, {ranks} rank{'s' * (ranks != 1)}"
        elif self.what == FAILURE:
            said = f"first failure{why}"
        elif self.what == HANG:
            said = f"hangs: {about.get('message')}"
        else:
            took = about.get("duration_s")
            after = f" after {took:.0f} s" if isinstance(took, (int, float)) else ""
            said = f"{about.get('state')}{after}{again}{why}"
        return f"{self.run} {said}"[:_LONGEST]

    def body(self) -> Dict[str, Any]:
        """The JSON that webhooks get."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.about.get("time") or time.time()))
        data = {"run": self.run, "attempt": self.attempt, **self.about}
        return {"type": f"run.{self.what}", "timestamp": stamp, "id": self.id, "text": self.text, "data": data}


def end(result: str, cause: Any, **more: Any) -> Dict[str, Any]:
    """What the end of a run tells."""
    return {"state": result, "cause": brief(cause), **more}


def brief(cause: Any) -> Optional[Dict[str, Any]]:
    """A cause without its traceback, which may be long, and show what the run works on."""
    if not isinstance(cause, dict):
        return None
    return {name: _short(cause.get(name)) for name in _CAUSE}


def _short(value: Any) -> Any:
    return value[:_LONGEST] if isinstance(value, str) else value


def take(directory: str, notice: str) -> bool:
    """Take it on to send this notice; False if somebody has. `directory`: the run's. Raises `OSError`."""
    place = os.path.join(directory, PLACE)
    os.makedirs(place, mode=0o700, exist_ok=True)
    return files.write_once(os.path.join(place, os.path.basename(notice)), b"", 0o600, sync=False)


def taken(directory: str, notice: str) -> bool:
    """Whether somebody has."""
    return os.path.exists(os.path.join(directory, PLACE, notice))


def of_event(name: str, heard: List[str]) -> Optional[str]:
    """Which notice an event of node 0 needs; None: none. `heard`: those of this attempt so far."""
    if name == "rendezvous" and START not in heard:
        return START
    if name in ("restart", "failure") and FAILURE not in heard:
        return FAILURE
    return HANG if name == "hang" else None
