"""The claim of a run that is queued on several clusters: without it, node 0 starts nothing.

At most one try of a run gets the claim. Either the launcher grants it: it records one decision before it grants
anything (`launcher/runs/races.py`). Or node 0 claims it itself, by the creation of one file in a place that all
clusters reach, which succeeds for one of them. An agent without an answer starts nothing: it ends after a stated time.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, List, Optional, Tuple

from ..failures import Failure
from ..outputs.signs import GRANTED
from ..stream.writer import Writer
from ..system import files
from .place import Place
from .stops import Stops

if TYPE_CHECKING:
    from .loop import Loop
    from .outcome import Outcome

SCHEME = "ssh://"
_LOOK_S = 0.1
_CANCELLED_S = 1.0
_RETRY_S = 2.0
_SSH_S = 30.0
_CREATE = """\
mkdir -p -- "$1" && cd -- "$1" || exit 1
if [ ! -e "$2" ]; then
    printf %s "$3" > ".$2.$$" || exit 1
    ln ".$2.$$" "$2" 2>/dev/null
    rm -f ".$2.$$"
fi
cat -- "$2"
"""
"""Claim the file $2 in the directory $1 for $3, and print whose it is: `ln` creates it whole, or fails if it exists."""


class Claim:
    """Node 0's attempt to get the claim."""

    def __init__(self, place: Place, out: Writer) -> None:
        assert place.job.claim
        self._place, self._out, self._about = place, out, place.job.claim
        self._holder = ""
        """The run that has the claim, according to the shared place."""

        self._trouble = ""
        """Why the shared place cannot be used."""

    def gained(self, loop: Loop, stops: Stops, outcome: Outcome) -> bool:
        """Wait for the claim; False if there is none: then the node has a reason to end."""
        job = self._place.job
        limit_s = float(self._about["wait_s"])
        self._out.event("claim_wanted", limit_s=limit_s, place=self._about.get("place"))
        began = time.monotonic()
        heartbeat_at = began + job.heartbeat_s
        look_at = began
        if self._about.get("place"):
            threading.Thread(target=self._ask, daemon=True, name="claim").start()
        while not self._held():
            now = time.monotonic()
            if self._holder or now >= began + limit_s:
                outcome.fail(self._why_not(limit_s), Failure.NOT_CHOSEN)
                outcome.group_gone = True
                return False
            if self._is_stopped(loop, stops, look=now >= look_at):
                outcome.group_gone = True
                return False
            look_at = now + _CANCELLED_S if now >= look_at else look_at
            if now >= heartbeat_at:
                heartbeat_at = now + job.heartbeat_s
                self._out.heartbeat(0)
                self._place.project.note()
            loop.wait_for_signal(_LOOK_S)
        self._out.event("claim_held", waited_s=round(time.monotonic() - began, 3))
        return True

    def _held(self) -> bool:
        if self._about.get("place"):
            return self._holder == self._place.job.run
        places = (os.path.join(self._place.job.directory, GRANTED), self._about.get("kept"))
        return any(path and os.path.exists(path) for path in places)

    def _why_not(self, limit_s: float) -> str:
        if self._holder:
            return f"{self._holder} has the run's claim"
        if self._trouble:
            return f"the claim could not be made at {self._about['place']} within {limit_s:.0f} s: {self._trouble}"
        return f"no launcher granted the run's claim within {limit_s:.0f} s"

    @staticmethod
    def _is_stopped(loop: Loop, stops: Stops, *, look: bool) -> bool:
        """Whether the run is to end; `look`: also if only a file asks for that."""
        for number in loop.signals():
            ask = stops.asked_by(number)
            if ask is not None and stops.reason is None:
                stops.begin(ask.reason, ask.deadline)
        if look and stops.reason is None and stops.cancelled():
            stops.begin(Failure.CANCELLED, None)
        return stops.reason is not None

    # -- a shared place -----------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Claim it at the place that all clusters reach, in a thread: that place may not answer."""
        while not self._holder:
            self._holder, self._trouble = claim_at(self._about["place"], self._about["race"], self._place.job.run)
            time.sleep(0.0 if self._holder else _RETRY_S)


def claim_at(place: str, race: str, run: str) -> Tuple[str, str]:
    """Claim the race at this place for the run, unless one has it: the run that has it, or why that is not known.

    The name of the file is that of the race, and its content the run.
    """
    try:
        if place.startswith(SCHEME):
            return _over_ssh(place, race, run)
        os.makedirs(place, exist_ok=True)
        path = os.path.join(place, race)
        files.write_once(path, run.encode("ascii"))
        return files.read_word(path).decode("ascii").strip(), ""
    except (OSError, ValueError) as error:
        return "", str(error)


def _over_ssh(place: str, race: str, run: str) -> Tuple[str, str]:
    import shlex
    import subprocess

    host, directory = split(place)
    words = ["sh", "-s", "--", directory, race, run]
    try:
        done = subprocess.run(
            [*ssh_words(), host, " ".join(map(shlex.quote, words))],
            input=_CREATE.encode("ascii"), capture_output=True, timeout=_SSH_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", f"ssh {host} has not answered within {_SSH_S:.0f} s"
    said = done.stdout.decode(errors="replace").strip()
    if done.returncode == 0 and said:
        return said.splitlines()[-1], ""
    return "", done.stderr.decode(errors="replace").strip() or f"ssh {host} ended with exit code {done.returncode}"


def ssh_words(ssh: Optional[str] = None) -> List[str]:
    """The command line of ssh, which asks for nothing."""
    return [ssh or "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]


def split(place: str) -> Tuple[str, str]:
    """Host and directory of `ssh://HOST/DIRECTORY`. Raises `ValueError`."""
    host, slash, directory = place[len(SCHEME) :].partition("/")
    if not host or host.startswith("-") or not directory:
        raise ValueError(f"{place!r} is not ssh://HOST/DIRECTORY")
    return host, slash + directory
