"""`distlaunch cancel RUN`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import output, runs, status
from launcher.cli import _observe
from launcher.cli._parameters import OutputOption, RunArgument  # noqa: TC001 - typer reads them
from launcher.errors import CommandError, RequestError

if TYPE_CHECKING:
    from launcher.runs import Run

_EXTRA_S = 10.0
_POLL_S = (0.1, 3.0)


def cancel(
    run: RunArgument,
    force: Annotated[bool, typer.Option("--force", help="SIGKILL at once, without the grace time.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it has ended.")] = True,
    fmt: OutputOption = None,
) -> None:
    """End a run: SIGTERM to its workers, SIGKILL after its grace time."""
    found = runs.find(_observe.folder(fmt), run)
    state = status.current(found)
    if state is None:
        for task in [found, *map(found.task, found.tasks)]:
            runs.request_cancel(task, force=force)
        backend = _observe.backend_of(found)
        backend.cancel(found.handle or {}, force=force)
        state = _wait(found, force=force) if wait else {"state": "stopping"}
    elif state.get("exit_code") is None:
        raise RequestError(f"{found.id} cannot be cancelled: {state.get('detail')}")
    data = {"run": found.id, "state": state.get("state"), "exit_code": state.get("exit_code")}
    output.result(data, f"{found.id}: {state.get('state')}")


def _wait(run: Run, *, force: bool) -> dict[str, Any]:
    """The final state; raises `CommandError` when it does not come in time."""
    limit = time.monotonic() + _EXTRA_S + (0.0 if force else run.grace_s)
    pause = _POLL_S[0]
    while time.monotonic() < limit:
        state = _observe.state_of(run)
        if state.get("exit_code") is not None:
            return state
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_S[1])
    raise CommandError(f"{run.id} has not ended yet", hint=f"distlaunch cancel --force {run.id}")
