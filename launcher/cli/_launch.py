"""What all backend commands do: plan, submit, follow. Their parameters come from options dataclasses."""

from __future__ import annotations

import inspect
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import backends, config, lock, output, runs, storage, summary, trust
from launcher.cli import _again, _observe, _parameters, _rendered, _spellings, _undo
from launcher.cli._request import LaunchOptions, chosen, resolve
from launcher.errors import LaunchError, SpecError, StorageError
from launcher.options import JobOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.backends._base import Backend, Handle, Plan
    from launcher.cli._request import Request
    from launcher.interrupts import Interrupts

_LOCK_S = 30.0

SCRIPT_LAST: dict[str, Any] = {"allow_interspersed_args": False, "token_normalize_func": lambda name: name.replace("_", "-")}
"""Everything after the first word that is no option belongs to the script; underscores in our options' names are dashes."""


def backend_command(name: str) -> Callable[..., int]:
    """The function behind `distlaunch NAME`, with a parameter for each option of the job and of that backend."""
    backend = backends.load(name)
    cluster = Annotated[str | None, typer.Option(metavar="NAME", help="Take settings from [clusters.NAME].")]
    more = [_parameters.keyword("cluster", cluster, None), *_parameters.from_fields(backend.options)]
    for flag, text in backend.prints.items():
        shown = typer.Option("--" + flag.replace("_", "-"), help=text)
        more.append(_parameters.keyword(flag, Annotated[bool, shown], False))
    return launching(backend.summary, lambda values: _print_or_launch(name, values), more, needs_script=not backend.prints)


def launching(
    summary: str,
    run: Callable[[dict[str, Any]], int],
    parameters: list[inspect.Parameter],
    *,
    leave_out: tuple[str, ...] = ("runs_dir",),
    needs_script: bool = True,
) -> Callable[..., int]:
    """A command function with SCRIPT, ARGS, all job options and the given parameters; `run` gets the values.

    `leave_out` are those of them, by name, that the command does not take; `needs_script`: typer sees to SCRIPT being given.
    """

    def command(**values: Any) -> int:
        return run(values)

    script = typer.Argument(metavar="SCRIPT", show_default=False, help="Python file, or one that comes with distlaunch.")
    args = typer.Argument(metavar="ARGS", show_default=False, help="The script's own; distlaunch reads none of them.")
    shared = [
        *_parameters.from_fields(JobOptions),
        *parameters,
        *_parameters.from_fields(LaunchOptions),
        *_parameters.from_fields(config.GlobalOptions, leave_out=("trust",)),
        *_spellings.parameters(),
    ]
    every = [
        _parameters.keyword("script", *((Annotated[str, script],) if needs_script else (Annotated[str | None, script], None))),
        _parameters.keyword("args", Annotated[list[str] | None, args], None),
        *{item.name: item for item in shared}.values(),
    ]
    ordered = [item for item in every if item.name not in leave_out]
    command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in ordered}
    command.__doc__ = summary
    return command


def _print_or_launch(name: str, values: dict[str, Any]) -> int:
    """What one of the backend's `prints` prints, or a launch."""
    for flag in backends.load(name).prints:
        if values.pop(flag):
            text = chosen(name, values).backend.printed(flag)
            output.document({flag.removeprefix("print_"): text}, text)
            return 0
    if values["script"] is None:
        from launcher.cli._main import UsageError

        raise UsageError("missing argument 'SCRIPT'", hint=f"see distlaunch {name} --help")
    return launch(name, values)


def launch(backend_name: str | None, values: dict[str, Any]) -> int:
    """Resolve, plan, and submit; then follow the run to its end. Returns the exit code."""
    request = resolve(backend_name, values)
    path = runs.root(request.runs_root) / runs.new_id(request.job.name)
    plan = request.plan(path)
    if (ranks := _spellings.local_ranks(values, plan)) is not None:
        typed = request.options.interactive
        request = replace(request, ranks=ranks | {int(typed)} if typed else ranks, ranks_asked=True)
    _check_ranks(request, plan)
    if request.options.dry_run or request.options.render_to:
        _render(request, plan)
        return 0
    # Imported here: only a launch pays for it.
    from launcher.interrupts import Interrupts

    run = _run(request, plan, path)
    with Interrupts() as interrupts:
        runs.create(run)
        run = _submit(request.backend, plan, run, interrupts)
        if request.options.detach and not interrupts.stops:
            with output.after(f"{run.id} goes on", f"to end it: distlaunch cancel {run.id}", read=True):
                output.result({"run": run.id, "path": str(run.path)}, run.id)
            return 0
        try:
            return _follow(request, plan, run, interrupts)
        except KeyboardInterrupt:
            output.warn(f"{run.id} may go on; to end it: distlaunch cancel --force {run.id}")
            raise


def _check_ranks(request: Request, plan: Plan) -> None:
    """Say which of the ranks whose lines are wanted there cannot be; where no line would be shown, a flag is a mistake."""
    counts = [node.workers for node in plan.nodes]
    if None in counts:
        return
    world = sum(count or 0 for count in counts)
    if request.options.interactive and int(request.options.interactive) >= world:
        hint = f"ranks: {summary.ranks_text(range(world))}"
        name = "debug" if request.options.debug else "interactive"
        raise SpecError(f"--{name} {request.options.interactive}: there is no such rank", hint=hint)
    if not request.ranks:
        return
    missing = [rank for rank in request.ranks if rank >= world]
    if len(missing) == len(request.ranks) and request.ranks_asked:
        hint = f"ranks: {summary.ranks_text(range(world))}"
        raise SpecError(f"--{summary.missing_ranks(missing, world)}", hint=hint)
    if len(missing) == len(request.ranks):
        output.warn(f"{summary.missing_ranks(missing, world)}, so no line of its workers is shown")
    elif missing and request.ranks_asked:
        output.warn(f"--{summary.missing_ranks(missing, world)}")


def _run(request: Request, plan: Plan, path: Path) -> runs.Run:
    """What will be known of the run once it is over and this process is gone."""
    return runs.Run(
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


def _submit(backend: Backend[Any], plan: Plan, run: runs.Run, interrupts: Interrupts) -> runs.Run:
    """Send the plan; whatever goes wrong, nothing is left running and the run's folder says so, or what may be left is told."""
    begun: Handle | None = None

    def record(handle: Handle) -> None:
        nonlocal begun
        begun = handle
        runs.record_handle(run, {**handle, "submitting": True})

    with lock.hold(run.path, backend.name, submits=True, wait_s=_LOCK_S, watch=lambda: _hear_of_cancel(run)):
        try:
            _hear_of_cancel(run)  # before we had the lock
            with interrupts.at_once():
                begun = backend.submit(plan, record)
            return runs.record_handle(run, begun)
        except BaseException as error:
            stopped = interrupts.stops > 0 or isinstance(error, KeyboardInterrupt)
            try:
                if left := _left(backend, begun, error, interrupts):
                    _leave(run, {**(begun or {}), "submitting": left}, stopped=stopped)
                else:
                    runs.finish(run, runs.unsubmitted("cancelled" if stopped else "failed", error))
            except StorageError as storage_error:
                output.warn(storage_error.message)
            if stopped and isinstance(error, Exception):
                raise KeyboardInterrupt from error
            raise


def _hear_of_cancel(run: runs.Run) -> None:
    """`distlaunch cancel` of a run that is being submitted is a signal to who submits it."""
    if run.cancel_requested is not None:
        os.kill(os.getpid(), signal.SIGTERM)


def _left(backend: Backend[Any], begun: Handle | None, error: BaseException, interrupts: Interrupts) -> str:
    """End what was started, unless there is no time for that; why something may be left, if so."""
    hurry = "its launcher was told to leave at once"
    try:
        with interrupts.at_once():
            return hurry if begun and interrupts.stops > 1 else _undo.undo(backend, begun, error)
    except KeyboardInterrupt:
        return hurry


def _leave(run: runs.Run, handle: Handle, *, stopped: bool) -> None:
    """Nobody knows whether something is left: the run has not ended. What comes to life later sees whether it is wanted."""
    output.warn(f"what was started may still run there: {handle['submitting']}; to end it: distlaunch cancel --force {run.id}")
    if stopped:
        runs.note_cancel(run, force=True)
    runs.record_handle(run, handle)


def _follow(request: Request, plan: Plan, run: runs.Run, interrupts: Interrupts) -> int:
    from launcher.follow import Follower

    output.note(summary.heading(run))
    _note_places(plan, run)
    if run.tasks:
        from launcher.cli import _array

        return _array.follow(run, interrupts)
    since = time.monotonic()
    how: dict[str, Any] = {"ranks": request.ranks, "interrupts": interrupts, "explain": request.options.explain}
    how["terminal"] = request.lent
    outcome = Follower(run, request.backend, **how).follow()
    while run.handle and not interrupts.stops and request.backend.goes_on(run.handle, outcome):
        output.warn(str((outcome.cause or {}).get("message")) + "; starting again without it")
        offsets = {node: path.stat().st_size for node in range(len(run.hosts)) if (path := run.stream_path(node)).exists()}
        attempt = outcome.attempt + 1
        try:
            with interrupts.at_once():
                run = _again.start(run, request.backend, attempt, doing=request.backend_name)
        except LaunchError as error:
            output.warn(f"not started again: {error.message}")
            break
        _note_places(plan, run)
        # For this terminal alone, which has shown the rest: `logs` shows all.
        told = replace(run, handle={**(run.handle or {}), "shown": offsets})
        outcome = Follower(told, request.backend, **how).follow()
    if outcome.exit_code is None:
        raise _observe.not_ended(run, forced=True)
    data = {"run": run.id, "path": str(run.path), **outcome.to_json()}
    closing = summary.closing(run, outcome, time.monotonic() - since)
    if outcome.state == "success":
        output.note(*closing)
        # Whoever read our stdout may have seen enough; the run is what counts.
        with suppress(output.StdoutClosedError), output.after(f"{run.id} has ended well"):
            output.result(data)
    else:
        output.report(*closing)
        message = str((outcome.cause or {}).get("message") or outcome.state)
        output.failed_result(f"run_{outcome.state}", message, f"distlaunch logs {run.id}", data)
    return outcome.exit_code


def _note_places(plan: Plan, run: runs.Run) -> None:
    output.note(*summary.plan_table(plan, (run.handle or {}).get("rendezvous"), run.hosts).splitlines())


def _render(request: Request, plan: Plan) -> None:
    """Print, or write to files, what would be sent."""
    folder = request.options.render_to
    if folder:
        with storage.storage_errors(folder):
            trust.make("--render-to", folder)
        trust.require("--render-to", folder, searched=True)  # what is in it is run
        _rendered.check(Path(folder), request.backend.marks(plan))
        texts, more = request.backend.write(plan, Path(folder))
    else:
        texts, more = request.backend.render(plan), ()
        output.note(*summary.plan_table(plan).splitlines())
    nodes = [asdict(node) for node in plan.nodes]
    sent = request.backend.files(plan)
    if listed := summary.sent(sent, request.job.env, request.job.secrets):
        output.note(*listed.splitlines())
    data = {"backend": request.backend_name, "nodes": nodes, "master": plan.master, "files": dict(texts)}
    data["sent"] = {
        "files": [{"path": file.path, "bytes": file.size} for file in sent.files] if sent else [],
        "variables": dict(request.job.env),
        "secrets": list(request.job.secrets),
    }
    data["plan"] = plan.to_json()
    if folder:
        written = [os.path.join(folder, name) for name in (*texts, *more)]
        output.result({**data, "written": written}, *written)
    else:
        output.document(data, summary.files(texts))
