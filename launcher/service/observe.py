"""Query a run's backend, for commands that inspect runs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from launcher import output
from launcher.agent.failures import WORST_FIRST
from launcher.errors import CommandError, LaunchError, RequestError, RunContinuesError, StorageError
from launcher.results import run as results
from launcher.runs import directories, records, restarts, status
from launcher.runs.outcome import EXIT_CODES, TOO_LATE
from launcher.settings import checks, config
from launcher.system.dataclass import fields, replace

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends._base import AnyBackend
    from launcher.results.run import RunState, State, Task
    from launcher.runs.handle import Handle
    from launcher.runs.records import Run


def runs_root(runs_dir: str | None = None) -> Path:
    """The directory that holds all runs: `runs_dir`, else the one in the settings."""
    settings = config.load().resolve(config.GlobalOptions, flags={"runs_dir": runs_dir})
    return directories.root(settings["runs_dir"].value)


def directory(fmt: str | None, *, lines: bool = False) -> Path:
    """The directory that holds all runs. Also sets the output format; `lines`: the command can print JSON lines."""
    settings = config.load().resolve(config.GlobalOptions, flags={"output": fmt})
    checks.blame("output", settings["output"].layers[-1:], lambda fmt: output.setup(fmt=fmt))
    if not lines and output.form() == "jsonl":  # one object, as there are no lines
        output.setup(fmt="json")
    return directories.root(settings["runs_dir"].value)


def backend_of(run: Run) -> AnyBackend:
    """The backend that a run was submitted with, with the options of that time."""
    # Imported here: a list of finished runs needs no backend.
    from launcher import backends

    cls = backends.load(run.backend)
    known = {item.name for item in fields(cls.options)}
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in run.options.items()}
    found = cls(cls.options(**{key: value for key, value in options.items() if key in known}))
    found.cluster = run.cluster or ""
    return found


def sent(run: Run) -> Run:
    """The run with all that was sent, even if its launcher died during submission; without a handle if nothing was.

    A run whose restart never started is returned as it was before, unless that restart may still take effect.
    """
    if run.handle is None or run.submitted:
        return run
    found = backend_of(run).recover(begun(run.handle))
    former = restarts.as_before(run) if found is None and not status.unsure(run) else None
    return former or replace(run, handle=found)


def whole(run: Run) -> Run:
    """The run itself. Raises `RequestError` with the reason if its directory cannot be read as a run."""
    if run.damaged:
        raise RequestError(
            f"{run.id} cannot be read as a run: {run.damaged}", hint=f"its processes may still run: see {run.path}"
        )
    return run


def begun(handle: Handle) -> Handle:
    """The handle as the backend recorded it, without the launcher's own notes on the submission."""
    found = handle.copy()
    found.pop("submitting", None)
    found.pop("before", None)
    return found


def not_ended(run: Run, *, forced: bool) -> CommandError:
    """The error for a run that continues when it should have ended; names what is left after a SIGKILL."""
    left = backend_of(run).left(run.handle) if forced and run.handle else ""
    hint = f"distlaunch cancel --force {run.id}"
    return CommandError(f"{run.id} has not ended", hint=f"still there: {left}; {hint}" if left else hint)


def state_of(run: Run) -> RunState:
    """The run's state, in the form of `Outcome.to_json`. The backend is asked once if the directory has no answer."""
    if run.tasks and run.handle and run.result is None:
        return _array_state(run)
    known = status.current(run)
    if known is not None:
        return known
    try:
        seen = status.observe(run)
    except StorageError as error:
        return results.nothing("unknown", error.message)
    if seen.final:
        return seen.to_json()
    try:
        found = _asked(run)
    except Exception as error:  # noqa: BLE001 - a damaged handle, a broken backend: one run must not break a listing
        why = error.message if isinstance(error, LaunchError) else repr(error)
        return {**status.observe(run).to_json(), "detail": f"{run.backend} cannot be asked: {why}"}
    return found


def exit_code(run: Run) -> int:
    """The run's exit code; `RunContinuesError.exit_code` if it has not ended."""
    code = state_of(directories.again(run))["exit_code"]
    return RunContinuesError.exit_code if code is None else code


def _asked(run: Run) -> RunState:
    """The state, including what the backend reports."""
    whole = sent(run)
    if whole.result is not None:
        return status.ended(whole.result)
    if whole.handle is None:  # it has no nodes, unless they may still start
        known = status.observe(run).to_json() if status.unsure(run) else results.nothing("unknown")
        return {**known, "state": "unknown", "detail": status.nothing_found(run)}
    backend = backend_of(run)
    outcome = status.observe(whole, backend.liveness(whole.handle))
    found = outcome.to_json()
    if whole.private and found["exit_code"] is None:  # only the cluster tells how it is
        found["state"] = "running" if found["state"] == "starting" else found["state"]
        found["detail"] = "; ".join(filter(None, [found["detail"], whole.private]))
    if outcome.comes_too_late:  # and no launcher follows the run to do this
        found["detail"] = TOO_LATE
        try:
            backend.cancel(whole.handle)
        except LaunchError as error:
            found["detail"] += f", which cannot be done: {error.message}"
    if not run.submitted and found["exit_code"] is None:
        found["detail"] = "; ".join(filter(None, [status.partly_sent(run), found["detail"]]))
    return found


def _array_state(run: Run) -> RunState:
    """The combined state of the tasks, in the form of `Outcome.to_json`, with `tasks`. Recorded once all are final."""
    found = [(task, state_of(task)) for task in map(run.task, run.tasks)]
    tasks: list[Task] = [
        {
            "run": task.id,
            "state": of["state"],
            "exit_code": of["exit_code"],
            "cause": of["cause"],
            "duration_s": of["duration_s"],
        }
        for task, of in found
    ]
    counts = Counter(of["state"] for of in tasks)
    whole: RunState = {**results.nothing(_whole(counts)), "tasks": tasks}
    whole["exit_code"] = EXIT_CODES.get(whole["state"])
    whole["cause"] = next((of["cause"] for of in tasks if of["cause"] and of["state"] == whole["state"]), None)
    whole["detail"] = ", ".join(f"{count} {word}" for word, count in counts.items())
    if whole["exit_code"] is not None:
        with suppress(StorageError):
            records.finish(run, whole)
    return whole


def _whole(counts: Counter[State]) -> State:
    """The worst of all final states; while tasks remain, whether any of them runs."""
    if all(word in EXIT_CODES for word in counts):
        return cast("State", next((word for word in WORST_FIRST if word in counts), "success"))
    if set(counts) & {"running", "starting", "stopping"}:
        return "running"
    return "pending" if "pending" in counts else "unknown"
