"""A launch: planned, sent, followed to its end."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher import output
from launcher.agent.failures import Failure
from launcher.console import live_line, summary
from launcher.errors import LaunchError, StorageError
from launcher.runs import directories, lock, records
from launcher.service import again, observe, undo

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends._base import AnyBackend, Plan
    from launcher.runs.handle import Handle
    from launcher.runs.outcome import Outcome
    from launcher.service.interrupts import Interrupts, Unattended
    from launcher.service.request import Request

_LOCK_S = 30.0


class Launch(NamedTuple):
    """A request with what would be sent for it; nothing is written yet."""

    request: Request
    plan: Plan
    path: Path
    """The directory that its run will have; the run's id is its name."""


def planned(request: Request) -> Launch:
    """What would be sent, under a new id."""
    path = directories.root(request.runs_root) / directories.new_id(request.job.name)
    return Launch(request, request.plan(path), path)


def start(launch: Launch, interrupts: Interrupts | Unattended) -> records.Run:
    """Make the run's directory, and send the run."""
    run = _run(launch.request, launch.plan, launch.path)
    records.create(run)
    return _submit(launch.request.backend, launch.plan, run, interrupts)


def _run(request: Request, plan: Plan, path: Path) -> records.Run:
    """What will be known of the run once it is over and this process is gone."""
    return records.Run(
        id=path.name,
        path=path,
        created=round(time.time(), 3),
        backend=request.backend_name,
        options=asdict(request.backend.opts),
        cluster=request.cluster,
        command=request.job.command,
        cwd=request.job.cwd,
        nodes=str(request.job.nodes),
        workers=str(request.job.workers_per_node),
        plan={
            "nodes": [asdict(node) for node in plan.nodes],
            "master": plan.master,
            "min_nodes": request.job.nodes.min,
            "grace_s": request.job.grace_s,
            "may_start_again": request.backend.may_start_again,
            **({"tasks": list(tasks)} if (tasks := getattr(plan, "tasks", ())) else {}),
        },
    )


def _submit(backend: AnyBackend, plan: Plan, run: records.Run, interrupts: Interrupts | Unattended) -> records.Run:
    """Send the plan; whatever goes wrong, nothing is left running and the run's record says so, or what may be left is told."""
    begun: Handle | None = None

    def record(handle: Handle) -> None:
        nonlocal begun
        begun = handle
        records.record_handle(run, {**handle, "submitting": True})

    with lock.hold(run.path, backend.name, submits=True, wait_s=_LOCK_S, watch=lambda: _hear_of_cancel(run, interrupts)):
        try:
            _hear_of_cancel(run, interrupts)  # before we had the lock
            with interrupts.at_once(), live_line.waiting(f"submitting to {backend.name}"):
                begun = backend.submit(plan, record)
            return records.record_handle(run, begun)
        except BaseException as error:
            stopped = interrupts.stops > 0 or isinstance(error, KeyboardInterrupt)
            try:
                if left := _left(backend, begun, error, interrupts):
                    _leave(run, {**(begun or run.known), "submitting": left}, stopped=stopped)
                else:
                    records.finish(run, records.unsubmitted(Failure.CANCELLED if stopped else "failed", error))
            except StorageError as storage_error:
                output.warn(storage_error.message)
            if stopped and isinstance(error, Exception):
                raise KeyboardInterrupt from error
            raise


def _hear_of_cancel(run: records.Run, interrupts: Interrupts | Unattended) -> None:
    """A request to cancel a run that is being submitted is one to stop for who submits it."""
    if run.cancel_requested is not None:
        interrupts.cancelled()


def _left(backend: AnyBackend, begun: Handle | None, error: BaseException, interrupts: Interrupts | Unattended) -> str:
    """End what was started, unless there is no time for that; why something may be left, if so."""
    hurry = "its launcher was told to leave at once"
    try:
        with interrupts.at_once():
            return hurry if begun and interrupts.stops > 1 else undo.undo(backend, begun, error)
    except KeyboardInterrupt:
        return hurry


def _leave(run: records.Run, handle: Handle, *, stopped: bool) -> None:
    """Nobody knows whether something is left: the run has not ended. What comes to life later sees whether it is wanted."""
    output.warn(f"what was started may still run there: {handle['submitting']}; to end it: distlaunch cancel --force {run.id}")
    if stopped:
        records.note_cancel(run, force=True)
    records.record_handle(run, handle)


def follow(launch: Launch, run: records.Run, interrupts: Interrupts | Unattended) -> tuple[records.Run, Outcome]:
    """See the run to its end, and start it again where that is due; the run as it is then. Raises where it does not end."""
    from launcher.service.follow import Follower  # only who follows a run pays for it

    request = launch.request
    how: dict[str, Any] = {"ranks": request.ranks, "interrupts": interrupts, "explain": request.options.explain}
    how["terminal"] = request.lent
    outcome = Follower(run, request.backend, **how).follow()
    while run.handle and not interrupts.stops and request.backend.goes_on(run.handle, outcome):
        output.warn(str((outcome.cause or {}).get("message")) + "; starting again without it")
        offsets = {node: path.stat().st_size for node in range(len(run.hosts)) if (path := run.stream_path(node)).exists()}
        attempt = outcome.attempt + 1
        try:
            with interrupts.at_once():
                run = again.start(run, request.backend, attempt, doing=request.backend_name)
        except LaunchError as error:
            output.warn(f"not started again: {error.message}")
            break
        note_places(launch, run)
        # For this terminal alone, which has shown the rest: `logs` shows all.
        told = replace(run, handle={**run.known, "shown": offsets})
        outcome = Follower(told, request.backend, **how).follow()
    if outcome.exit_code is None:
        raise observe.not_ended(run, forced=True)
    return run, outcome


def note_places(launch: Launch, run: records.Run) -> None:
    """Say which nodes there are, and where they meet."""
    output.note(*summary.plan_table(launch.plan, run.known.get("rendezvous"), run.hosts).splitlines())
