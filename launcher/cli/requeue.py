"""`distlaunch requeue RUN`."""

from __future__ import annotations

from launcher import output, runs, status
from launcher.cli import _again, _observe
from launcher.cli._parameters import OutputOption, RunArgument  # noqa: TC001 - typer reads them
from launcher.errors import RequestError


def requeue(run: RunArgument, fmt: OutputOption = None) -> None:
    """Start a run again in its folder: a script that keeps checkpoints goes on from the last one."""
    found = _observe.whole(runs.find(_observe.folder(fmt), run))
    recorded, found = found, _observe.sent(found)
    if found.handle is None and recorded.result is None and status.unsure(recorded):
        raise RequestError(f"{found.id}: {status.nothing_found(recorded)}", hint=f"distlaunch cancel {found.id}")
    if found.handle is None:
        raise RequestError(f"{found.id} was never submitted", hint="launch it anew")
    if found.tasks:
        raise RequestError(f"{found.id} is a job array", hint=f"distlaunch requeue {found.id}/{found.tasks[0]}")
    attempt = int(_observe.state_of(found).get("attempt") or 0) + 1
    _again.start(found, _observe.backend_of(found), attempt, doing="requeue")
    with output.after(f"{found.id} goes on as attempt {attempt}", f"to end it: distlaunch cancel {found.id}"):
        output.result({"run": found.id, "attempt": attempt}, f"{found.id}: attempt {attempt}")
