"""Start a run again in its directory: at the user's request, or after it lost a host and has spares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from launcher import output
from launcher.agent.secret_files import NOTIFY_FILE
from launcher.errors import BackendUnavailableError, RequestError
from launcher.runs import directories, lock, restarts, status
from launcher.service import observe, undo
from launcher.settings import job_checks
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from launcher.backends._base import AnyBackend
    from launcher.results.run import RunState
    from launcher.runs.handle import Handle
    from launcher.runs.records import Run


_LOCK_S = 600.0
"""How long a process that follows the run waits for another that starts it again: hosts may not answer."""


def start(run: Run, backend: AnyBackend, attempt: int, *, doing: str, ended: RunState | None = None) -> Run:
    """Start the run again. On failure, its previous outcome is restored, unless something may be left running.

    `ended`: how it has ended, as the caller has seen, which starts it again unasked, unless it is cancelled meanwhile.
    """
    if not backend.can_requeue:
        raise BackendUnavailableError(f"{backend.name} cannot start a run again", hint="launch it again")
    with lock.hold(run.whole_path, doing, submits=True, wait_s=_LOCK_S if ended else 0.0):
        now = (
            observe.sent(observe.whole(directories.read(run.path.parent, run.path.name)))
            if run.whole_path == run.path
            else run
        )
        if (known := now.handle) is None or now.attempt >= attempt:
            raise RequestError(f"{run.id} was started again meanwhile", hint=f"distlaunch status {run.id}")
        if ended and run.cancel_requested is not None:
            raise RequestError(f"{run.id} is cancelled")
        recorded = now.result
        now = replace(now, ended=recorded or cast("dict[str, Any] | None", ended))
        known = {**known, "restarts": known.get("restarts", 0) + (ended is not None)}
        begun: Handle | None = None

        def note(handle: Handle, submitting: str | bool) -> None:
            restarts.start_again(run, restarts.before({**handle, "submitting": submitting}, now), attempt)

        def record(handle: Handle) -> None:
            nonlocal begun
            begun = handle
            note(handle, submitting=True)

        try:
            return restarts.start_again(run, backend.requeue(known, attempt, record), attempt)
        except BaseException as error:
            if left := undo.undo(backend, begun, error):
                output.warn(
                    f"parts of the run may still be running: {left}; to end it: distlaunch cancel --force {run.id}"
                )
                note(begun or run.known, left)
            elif begun is not None:
                restarts.give_back(replace(now, ended=recorded))  # a follower records the end, unless another tries
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
    backend = observe.backend_of(found)
    attempt = max(int(observe.state_of(found).get("attempt") or 0), backend.last_attempt(found.known)) + 1
    if (recorded.path / NOTIFY_FILE).exists():
        from launcher.service import notices  # few runs tell anybody

        notices.leave_to_agents(recorded)
    if backend.is_here and isinstance(secret := found.settings.get("secret"), dict):
        job_checks.check_secrets_here(map(str, secret.get("value") or ()))  # workers have those of this process
    start(found, backend, attempt, doing="requeue")
    return attempt
