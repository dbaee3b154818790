"""Runs with their states, as plain JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from launcher.errors import RequestError
from launcher.runs import directories, status, stream_pass
from launcher.service import observe, watched
from launcher.service.selection import EVERY, Selection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.results.run import Listed, RunState, Status
    from launcher.results.usage import MaybeUsage
    from launcher.runs.records import Run


def states(
    directory: Path, array: str | None = None, limit: int = 0, selection: Selection = EVERY
) -> list[tuple[Run, RunState]]:
    """The newest `limit` selected runs (0: all), or tasks of an array, each with its state; oldest first."""
    found: list[tuple[Run, RunState]] = []
    for run in _newest_first(directory, array):
        if not selection.takes(run.id.partition("/")[0], run.created):
            continue
        state = observe.state_of(run)
        if selection.takes_state(state["state"]):
            found.append((run, state))
        if 0 < limit == len(found):
            break
    return found[::-1]


def row(run: Run, state: RunState, *, used: bool = False) -> Listed:
    """One row of a list of runs; `used`: with what the run has used."""
    more: MaybeUsage = {"usage": stream_pass.usage_of(run, state)} if used else {}
    return {
        **more,
        "run": run.id,
        "state": state["state"],
        "exit_code": state["exit_code"],
        "backend": run.backend,
        "cluster": run.cluster,
        "nodes": nodes(run, state),
        "job_id": run.job_id,
        "tasks": list(run.tasks),
        "created": run.created or None,
        "command": list(run.command),
        "cwd": run.cwd,
        "path": str(run.path),
    }


def nodes(run: Run, state: RunState) -> str:
    """The number of nodes: of an elastic run those that have started, of any other those of its plan."""
    started = sum(node.get("started") is not None for node in state["nodes"])
    known = started if run.elastic else len(run.hosts)
    return str(known) if known else run.nodes


def whole(run: Run, state: RunState) -> Status:
    """All details of a run."""
    race, told = run.won or run.race, stream_pass.read(run)
    found = {
        "run": run.id,
        "path": str(run.path),
        "job_id": run.job_id,
        "output_dir": status.output_dir(run, state),
        "backend": run.backend,
        "cluster": run.cluster,
        "command": list(run.command),
        "cwd": run.cwd,
        "created": run.created or None,
        **watched.by(told.samples(), told.hanging, state),
        "usage": told.usage(state),
        "links": told.links(),
        **state,
        "restarts": told.restarts(state),
    }
    return cast("Status", {**found, "race": race} if race else found)


def _newest_first(directory: Path, array: str | None) -> Iterator[Run]:
    """The runs, or the tasks of one of them."""
    if array is None:
        yield from directories.newest_first(directory, directories.ids(directory))
        return
    found = directories.find(directory, array)
    if not found.tasks:
        raise RequestError(f"{found.id} is not a job array", hint=f"distlaunch status {found.id}")
    yield from (found.task(index) for index in reversed(found.tasks))
