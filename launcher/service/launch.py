"""Launches: plan, then submit; `following` follows them to their end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.failures import Failure
from launcher.agent.named_tuple import NamedTuple
from launcher.agent.roles import IGNORE
from launcher.agent.secret_files import NOTIFY_FILE
from launcher.console import live_line
from launcher.errors import RequestError, StorageError
from launcher.runs import cancel_notes, directories, lock, records
from launcher.service import undo
from launcher.system import storage
from launcher.system.dataclass import asdict

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from launcher.backends._base import AnyBackend
    from launcher.backends._plan import Plan
    from launcher.runs.handle import Handle
    from launcher.service.interrupts import Interrupts, Unattended
    from launcher.service.request import Request
    from launcher.settings.config import Setting
    from launcher.spec import JobSpec

_LOCK_S = 30.0


class Launch(NamedTuple):
    """A request and its plan; nothing is written yet."""

    request: Request
    plan: Plan
    path: Path
    """The future run's directory; its name is the run's id."""


def planned(request: Request) -> Launch:
    """Plan the request under a new id."""
    path = directories.root(request.runs_root) / directories.new_id(request.job.name)
    return Launch(request, request.plan(path), path)


def start(launch: Launch, interrupts: Interrupts | Unattended) -> records.Run:
    """Create the run's directory and submit the run. With `--unique`, returns a run of its name that has not ended."""
    run = record_of(launch.request, launch.plan, launch.path)
    options = launch.request.options
    if options.if_running != "new" and (options.unique or options.if_running):
        from launcher.service import unique  # few launches need it

        request = launch.request
        with unique.name_of(launch.path.parent, request.job.name, request.backend_name, request.cluster) as other:
            if other is not None and options.if_running == "fail":
                raise RequestError(f"{other.id} has not ended", hint=f"distlaunch attach {other.id}")
            if other is not None:
                return other
            records.create(run)
    else:
        records.create(run)
    return send(launch.request.backend, launch.plan, run, interrupts)


def record_of(request: Request, plan: Plan, path: Path) -> records.Run:
    """The run's record, which outlives this process; it is not written yet."""
    may_fail = _may_fail(request.job)
    return records.Run(
        id=path.name,
        path=path,
        created=round(time.time(), 3),
        backend=request.backend_name,
        options=asdict(request.backend.opts),
        cluster=request.cluster,
        command=request.job.command,
        cwd=request.job.cwd,
        given=request.given,
        settings={key: recorded(item) for key, item in request.settings.items()},
        nodes=str(len(plan.nodes) if request.job.all_nodes else request.job.nodes),
        workers=str(request.job.workers_per_node),
        plan={
            "nodes": [asdict(node) for node in plan.nodes],
            "master": plan.master,
            "min_nodes": len(plan.nodes) if request.job.all_nodes else max(1, request.job.nodes.min - len(may_fail)),
            **({"may_fail": may_fail} if may_fail else {}),
            "grace_s": request.job.grace_s,
            "has_queue": request.backend.has_queue,
            "may_start_again": request.backend.may_start_again,
            **({"tasks": list(tasks)} if (tasks := plan.tasks) else {}),
        },
    )


def recorded(setting: Setting) -> dict[str, Any]:
    """A setting as a record has it; `given`: what of a list that adds up comes from flags and variables."""
    known = {"value": setting.value, "source": setting.source}
    if len(setting.layers) < 2 or setting.source == setting.layers[-1].source:
        return known
    return {**known, "given": [part for layer in setting.layers if not layer.file for part in layer.value]}


def _may_fail(job: JobSpec) -> list[int]:
    """The nodes of roles whose failures are ignored."""
    every = [role.on_failure for role in job.roles for _ in range(role.job.nodes.max)]
    return [node for node, how in enumerate(every) if how == IGNORE]


def send(backend: AnyBackend, plan: Plan, run: records.Run, interrupts: Interrupts | Unattended) -> records.Run:
    """Submit the plan. On failure, end what was started and record that; warn if something may be left."""
    begun: Handle | None = None
    if receivers := plan.job.notify:
        storage.write_whole(run.path / NOTIFY_FILE, receivers.encode("ascii"), mode=0o600)
    ships = plan.job.env_ship

    def record(handle: Handle) -> None:
        nonlocal begun
        begun = handle
        records.record_handle(run, {**handle, "submitting": True})

    with lock.hold(run.path, backend.name, submits=True, wait_s=_LOCK_S, watch=lambda: hear_of_cancel(run, interrupts)):
        try:
            hear_of_cancel(run, interrupts)  # requested before the lock was held
            if ships:
                from launcher.service import shipping  # few runs bring an environment

                shipping.prepare(ships, run.path, backend)
            with interrupts.at_once(), live_line.waiting(f"submitting to {backend.name}"):
                begun = backend.submit(plan, record)
            return records.record_handle(run, begun)
        except BaseException as error:
            stopped = interrupts.stops > 0 or isinstance(error, KeyboardInterrupt)
            try:
                if left := _left(backend, begun, error, interrupts):
                    _leave(run, {**(begun or run.known), "submitting": left}, stopped=stopped)
                else:
                    records.finish(run, undo.unsubmitted(Failure.CANCELLED if stopped else "failed", error))
            except StorageError as storage_error:
                output.warn(storage_error.message)
            if stopped and isinstance(error, Exception):
                raise KeyboardInterrupt from error
            raise


def hear_of_cancel(run: records.Run, interrupts: Interrupts | Unattended) -> None:
    """Turn a request to cancel the run into a request to stop its submission."""
    if run.cancel_requested is not None:
        interrupts.cancelled()


def _left(backend: AnyBackend, begun: Handle | None, error: BaseException, interrupts: Interrupts | Unattended) -> str:
    """End what was started, unless there is no time. Returns why something may be left; empty if nothing is."""
    hurry = "its launcher had to exit at once"
    try:
        with interrupts.at_once():
            return hurry if begun and interrupts.stops > 1 else undo.undo(backend, begun, error)
    except KeyboardInterrupt:
        return hurry


def _leave(run: records.Run, handle: Handle, *, stopped: bool) -> None:
    """Record that the run may not have ended. If it was stopped, agents that start later find a request to cancel."""
    if directories.root_of(run.path) == run.path.parent:
        left, then = "parts of the run may still be running", f"to end it: distlaunch cancel --force {run.id}"
    else:  # a try, which its launcher cancels: the run itself may be queued or run elsewhere
        left, then = "parts of it may still be there", "without the run they start nothing, and they are cancelled"
    output.warn(f"{left}: {handle['submitting']}; {then}")
    if stopped:
        cancel_notes.note(run, force=True)
    records.record_handle(run, handle)


def note_places(launch: Launch, run: records.Run) -> None:
    """Print the table of nodes, with the master address."""
    from launcher.console import summary  # agents start meanwhile

    output.note(*summary.plan_table(launch.plan, run.known.get("rendezvous"), run.hosts).splitlines())
