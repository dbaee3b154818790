"""Start a run again in its directory: at the user's request, or after it lost a host and has spares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.secret_files import NOTIFY_FILE
from launcher.errors import BackendUnavailableError, RequestError
from launcher.runs import directories, lock, records, status
from launcher.service import observe, undo
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from launcher.backends._base import AnyBackend
    from launcher.runs.handle import Handle
    from launcher.runs.records import Run


def start(run: Run, backend: AnyBackend, attempt: int, *, doing: str) -> Run:
    """Start the run again. On failure, its previous outcome is restored, unless something may be left running."""
    if not backend.can_requeue:
        raise BackendUnavailableError(f"{backend.name} cannot start a run again", hint="launch it again")
    with lock.hold(run.whole_path, doing, submits=True):
        now = (
            observe.sent(observe.whole(directories.read(run.path.parent, run.path.name)))
            if run.whole_path == run.path
            else run
        )
        if (known := now.handle) is None or now.attempt >= attempt:
            raise RequestError(f"{run.id} was started again meanwhile", hint=f"distlaunch status {run.id}")
        now = replace(now, ended=now.result)
        begun: Handle | None = None

        def note(handle: Handle, submitting: str | bool) -> None:
            records.start_again(run, records.before({**handle, "submitting": submitting}, now), attempt)

        def record(handle: Handle) -> None:
            nonlocal begun
            begun = handle
            note(handle, submitting=True)

        try:
            return records.start_again(run, backend.requeue(known, attempt, record), attempt)
        except BaseException as error:
            if left := undo.undo(backend, begun, error):
                output.warn(
                    f"parts of the run may still be running: {left}; to end it: distlaunch cancel --force {run.id}"
                )
                note(begun or run.known, left)
            elif begun is not None:
                records.give_back(now)
            raise


def requeue(recorded: Run) -> int:
    """Start a run again at the user's request. Returns the number of the new attempt."""
    found = observe.sent(observe.whole(recorded))
    if found.handle is None and recorded.result is None and status.unsure(recorded):
        raise RequestError(f"{found.id}: {status.nothing_found(recorded)}", hint=f"distlaunch cancel {found.id}")
    if found.handle is None:
        raise RequestError(f"{found.id} was never submitted", hint="launch it again")
    if found.tasks:
        raise RequestError(f"{found.id} is a job array", hint=f"distlaunch requeue {found.id}/{found.tasks[0]}")
    attempt = int(observe.state_of(found).get("attempt") or 0) + 1
    if (recorded.path / NOTIFY_FILE).exists():
        from launcher.service import notices  # few runs tell anybody

        notices.leave_to_agents(recorded)
    start(found, observe.backend_of(found), attempt, doing="requeue")
    return attempt
