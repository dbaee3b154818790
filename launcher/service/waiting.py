"""Wait for runs that others follow, or no one."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from launcher import spec
from launcher.console import live_line
from launcher.errors import RequestError, RunContinuesError
from launcher.service import observe
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.results.run import RunState
    from launcher.runs.records import Run

_POLL_S = (0.1, 10.0)


def wait(runs: Sequence[Run], *, first: bool = False, timeout: str | None = None) -> list[tuple[Run, RunState]]:
    """Wait until all runs have ended, or only the first one; returns those that have, with their states.

    Raises `RunContinuesError` after `timeout`, and `RequestError` for a run that will never end.
    """
    began = time.monotonic()
    limit_s = None if timeout is None else spec.parse_duration(timeout, "timeout")
    ended: dict[str, RunState] = {}
    by_id = {run.id: run for run in runs}
    left = list(by_id)
    pause = _POLL_S[0]
    while True:
        states = {name: observe.state_of(by_id[name]) for name in left}
        ended |= {name: state for name, state in states.items() if state["exit_code"] is not None}
        left = [name for name in left if name not in ended]
        if not left or (first and ended):
            return [(by_id[name], ended[name]) for name in by_id if name in ended]
        _check(states, left)
        waited = time.monotonic() - began
        if limit_s is not None and waited >= limit_s:
            raise RunContinuesError(
                f"{', '.join(left)} {'has' if len(left) == 1 else 'have'} not ended within {timeout}",
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


def _check(states: dict[str, RunState], left: Sequence[str]) -> None:
    """Raise for a run of which nothing runs, so that it cannot end."""
    for name in left:
        if states[name]["state"] == "unknown" and not states[name]["nodes"]:
            raise RequestError(f"{name} will not end: {_about(states[name])}", hint=f"distlaunch status {name}")
