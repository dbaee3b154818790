"""Wait for runs that others follow, or no one."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from launcher import spec
from launcher.console import live_line
from launcher.errors import RequestError, RunContinuesError, RunNotFoundError, StorageError, UntrustedError
from launcher.results import run as results
from launcher.runs import directories, moves, status
from launcher.service import observe, putting_aside
from launcher.system import amounts
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.results.run import RunState
    from launcher.runs.records import Run

_POLL_S = (0.1, 10.0)
_ANSWERS_S = 10.0
"""How long a cluster may take to answer, also beyond `timeout`: the run may have ended in time."""

_LOST_S, _AWAY_S = 5.0, 300.0
"""How long nothing of a run is there until it counts as lost; the latter if its files are out of reach."""

_AWAY = "out of reach: "


def wait(runs: Sequence[Run], *, first: bool = False, timeout: str | None = None) -> list[tuple[Run, RunState]]:
    """Wait until all runs have ended, or only the first one; returns those that have, with their states.

    Raises `RunContinuesError` after `timeout`, `RequestError` for a run that will never end, or was removed, and
    `StorageError` for one whose files stay out of reach.
    """
    began = time.monotonic()
    limit_s = None if timeout is None else spec.parse_duration(timeout, "timeout")
    ended: dict[str, RunState] = {}
    by_id = {run.id: run for run in runs}
    lost: dict[str, float] = {}
    left = list(by_id)
    pause = _POLL_S[0]
    while True:
        seen = _seen([by_id[name] for name in left], None if limit_s is None else began + limit_s)
        by_id |= {name: run for name, (run, _) in seen.items()}
        states = {name: state for name, (_, state) in seen.items()}
        ended |= {name: state for name, state in states.items() if state["exit_code"] is not None}
        left = [name for name in left if name not in ended]
        if not left or (first and ended):
            found = [(by_id[name], ended[name]) for name in by_id if name in ended]
            for run, state in found:
                putting_aside.after(run, state)
            return found
        lost = lost_since(states, lost)
        waited = time.monotonic() - began
        if limit_s is not None and (waited >= limit_s or not states):
            silent = "" if states else ", as far as is known: the last question was not answered"
            raise RunContinuesError(
                f"{', '.join(left)} {'has' if len(left) == 1 else 'have'} not ended within {timeout}{silent}",
                hint=f"distlaunch attach {left[0]}",
            )
        live_line.show(f"waiting for {amounts.listed(left)} to end: {_together([states[name] for name in left])}")
        time.sleep(pause if limit_s is None else max(0.0, min(pause, limit_s - waited)))
        pause = min(pause * 1.3, _POLL_S[1])


def _together(states: Sequence[RunState]) -> str:
    """What one run does, or how many of several are in which state."""
    if len(states) == 1:
        return _about(states[0])
    return ", ".join(f"{count} {word}" for word, count in Counter(state["state"] for state in states).items())


def _about(state: RunState) -> str:
    says_more = state["detail"].lower() not in ("", state["state"])
    return f"{state['state']}: {state['detail']}" if says_more else state["state"]


def _seen(runs: Sequence[Run], limit: float | None) -> dict[str, tuple[Run, RunState]]:
    """These runs and their states; none if a cluster has not answered by `limit`, on the monotonic clock."""

    def ask() -> dict[str, tuple[Run, RunState]]:
        return {run.id: look(run) for run in runs}

    if limit is None:
        return ask()
    question = Question(ask, "wait")
    return question.answer() if question.answered(max(_ANSWERS_S, limit - time.monotonic())) else {}


def look(run: Run) -> tuple[Run, RunState]:
    """The run as it is recorded now, and its state. Raises `RunNotFoundError` if it was removed."""
    try:
        found = directories.again(run)
        if moves.pending(found) is not None:
            from launcher.service import move  # few runs need it

            found = move.caught_up(found)
        if run.race is not None:  # its launcher may have ended before a cluster got it
            from launcher.service import race_left  # few runs need it

            found = race_left.caught_up(found)
        state = observe.state_of(found)
        if state["exit_code"] is not None:
            directories.again(run)  # nothing is left to read of a run that was removed meanwhile: it would have failed
    except (StorageError, UntrustedError, RunNotFoundError) as error:  # a network file system may recover
        if isinstance(error, RunNotFoundError) and run.root.exists():
            raise
        return run, results.nothing("unknown", _AWAY + error.message)
    known = (*directories.NO_RUNS, status.nothing_found(found))
    if _is_nowhere(state) and state["detail"] not in known:
        return found, {**state, "detail": _AWAY + state["detail"]}  # its record or its streams cannot be read
    return found, state


def _is_nowhere(state: RunState) -> bool:
    """Whether nothing of the run is known. An array has no nodes; its tasks are unknown while the cluster is silent."""
    return state["state"] == "unknown" and not state["nodes"] and not state.get("tasks")


def lost_since(states: dict[str, RunState], before: dict[str, float]) -> dict[str, float]:
    """Since when nothing of which runs is there. Raises for one that stays so, as it cannot end."""
    now, since = time.monotonic(), dict[str, float]()
    for name, state in states.items():
        if _is_nowhere(state):
            away = state["detail"].startswith(_AWAY)
            key = _AWAY + name if away else name
            since[key] = before.get(key, now)
            if away and now - since[key] >= _AWAY_S:
                raise StorageError(f"{name} is {state['detail']}", hint=f"distlaunch wait {name} waits again")
            if not away and now - since[key] >= _LOST_S:
                raise RequestError(f"{name} will not end: {_about(state)}", hint=f"distlaunch status {name}")
    return since
