"""Attach to a run that another process, another user or another machine has started."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.console import live_line
from launcher.errors import RequestError, SpecError
from launcher.runs import directories, lock, status
from launcher.service import observe, putting_aside
from launcher.settings import checks, config
from launcher.settings.options import JobOptions

if TYPE_CHECKING:
    from launcher.results.run import RunState
    from launcher.runs.reader import Wanted
    from launcher.runs.records import Run

_LOOK_S = 0.1
TAIL = 10
"""How many of the last lines of each node are shown, unless asked for otherwise."""


class Asked(NamedTuple):
    """How the run is to be followed."""

    ranks: Wanted | None
    on_hangup: str
    tail: int | None
    """Begin with this many of the last lines of each node; None: with all."""


def options(log_ranks: str | None, on_hangup: str | None, tail: str) -> Asked:
    """The options, from these flags, the environment and the settings files."""
    settings = config.load()
    general = settings.resolve(config.GlobalOptions, flags={"log_ranks": log_ranks})
    job = settings.resolve(JobOptions, flags={"on_hangup": on_hangup})
    checks.check(config.GlobalOptions, general)
    checks.check(JobOptions, job)
    if tail != "all" and not (tail.isascii() and tail.isdecimal() and len(tail) < 8):
        raise SpecError(f"tail {tail!r} is not a number of lines", hint="write --tail 100, or --tail all")
    ranks = config.ranks(general["log_ranks"].value)
    return Asked(ranks, job["on_hangup"].value, None if tail == "all" else int(tail))


def is_undecided(found: Run) -> bool:
    """Whether the run waits on several clusters, and no process decides which of them gets it."""
    if found.race is None or found.result is not None:
        return False
    owner = lock.owner(found.path)
    return owner is None or owner.seems_gone


def submitted(found: Run) -> Run:
    """The run, once all of it was submitted, or none of its clusters is chosen any more (`is_undecided`).

    Raises `RequestError` if there is nothing to follow.
    """
    found = observe.whole(found)
    with live_line.waiting(f"waiting for {found.id} to be submitted"):
        while (known := status.current(found)) is not None and known["state"] == "pending":
            if is_undecided(found):
                return found
            time.sleep(_LOOK_S)
            found = directories.again(found)
    found = found if found.result is not None else observe.sent(found)
    if found.handle is None and found.result is None:
        raise RequestError(f"{found.id}: {status.nothing_found(found)}", hint=f"distlaunch rm {found.id}")
    return found


def end(found: Run) -> RunState | None:
    """How the run has ended; None if it has not."""
    state = status.current(found)
    if state is None and (found.tasks or not any(found.stream_path(node).exists() for node in range(len(found.hosts)))):
        return None
    state = state or observe.state_of(found)
    if state["exit_code"] is None:
        return None
    putting_aside.after(found, state)
    return state
