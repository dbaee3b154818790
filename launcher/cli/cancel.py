"""`distlaunch cancel RUN`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import lock, output, runs, status
from launcher.cli import _observe
from launcher.cli._parameters import OutputOption, RunArgument  # noqa: TC001 - typer reads them
from launcher.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs import Run

_EXTRA_S = 10.0
_LOCK_S = 60.0
"""Whoever submits the run hears of it within a second, and ends what it has started; hosts that do not answer take their time."""

_POLL_S = (0.1, 3.0)


def cancel(
    run: RunArgument,
    force: Annotated[bool, typer.Option("--force", help="SIGKILL at once, without the grace time.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it has ended.")] = True,
    fmt: OutputOption = None,
) -> None:
    """End a run: SIGTERM to its workers, SIGKILL after its grace time."""
    folder = _observe.folder(fmt)
    found = _observe.whole(runs.find(folder, run))
    state = status.current(found)
    if state is None or state.get("exit_code") is None:
        try:
            with runs.cancelling(found, force=force), lock.hold(found.whole_path, "cancel", wait_s=_LOCK_S):
                found = _end(folder, found, force=force)
        except StorageError as error:
            if found.handle is None:
                raise
            output.warn(f"{error.message}; cancelling without a note of it")  # a full disk is a reason to cancel
            _observe.backend_of(found).cancel(found.handle, force=force)
        state = _wait(found, force=force) if wait else status.current(found) or {"state": "stopping"}
    data = {"run": found.id, "state": state.get("state"), "exit_code": state.get("exit_code")}
    with output.after(said := f"{found.id}: {state.get('state')}"):
        output.result(data, said)


def _end(folder: Path, found: Run, *, force: bool) -> Run:
    """Have the backend end the run, as it is now that nobody else changes it; what was never sent has ended."""
    found = _observe.whole(runs.find(folder, found.id))
    if (status.current(found) or {}).get("exit_code") is not None:
        return found
    sent = _observe.sent(found)
    if sent.handle is None or sent.attempt < found.attempt:  # nothing came of a submission, but what it needs may be there
        if found.handle is not None:
            _observe.backend_of(found).undo(_observe.begun(found.handle))
        if former := runs.as_before(found):
            runs.give_back(former)
            return former
        runs.finish(found, runs.unsubmitted("cancelled"))
        return found
    if not found.submitted and sent.whole_path == sent.path:
        sent = runs.record_handle(sent, sent.handle)
    with runs.cancelling(sent, force=force):  # whoever started it again has taken our first note away
        _observe.backend_of(sent).cancel(sent.handle or {}, force=force)
    return sent


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
    raise _observe.not_ended(run, forced=force)
