"""What launches and `attach` share: a run is followed on this terminal, and left or ended with closing lines."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from launcher import output
from launcher.console import json_lines, keys, summary
from launcher.errors import CommandError, RunContinuesError
from launcher.runs import status
from launcher.service.leaving import Detached, Leaving, left_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.results.run import Followed, RunState, Started
    from launcher.runs.records import Run
    from launcher.service.attaching import Asked
    from launcher.service.fetching import Fetching
    from launcher.service.interrupts import Interrupts


_USAGE_S = 600.0
"""After a run of this length, the closing lines have what it has used."""


def attach(found: Run, asked: Asked, interrupts: Interrupts) -> int:
    """Follow a run that something else has started. Returns its exit code."""
    from launcher.service import attaching, following, observe  # launches do not need them

    try:
        with left_alone(interrupts):
            found = attaching.submitted(found)
            output.note(summary.heading(found))
            state = attaching.end(found)
    except Detached:
        json_lines.begin(found)
        return detached(found)
    if state is not None:
        json_lines.begin(found)
        return close(found, state, state["duration_s"] or 0.0)
    backend = observe.backend_of(found)

    def follow(leaving: Leaving) -> tuple[Run, RunState]:
        return following.attach(found, backend, asked, leaving)

    return to_end(found, interrupts, follow, asks=True, since=found.created)


def to_end(
    run: Run,
    interrupts: Interrupts,
    follow: Callable[[Leaving], tuple[Run, RunState]],
    *,
    asks: bool,
    since: float,
    fetching: Fetching | None = None,
) -> int:
    """Call `follow`, and print how the run ended or that it continues. Returns the exit code.

    `asks`: the keyboard is ours. `since`: Unix seconds.
    """
    json_lines.begin(run)
    typed = keys.Keys() if asks and keys.available() else None
    try:
        run, state = follow(Leaving(interrupts, typed))
    except Detached:
        if fetching is not None:
            fetching.give_up(run)
        return detached(run)
    took_s = time.time() - since
    if fetching is not None:
        interrupts.obeyed()  # what has ended the run does not end this, too
        try:
            with interrupts.at_once():
                fetching.finish(run)
        except KeyboardInterrupt:
            fetching.error = CommandError("stopped", hint=f"distlaunch fetch {run.id} PATTERN")
    return close(run, state, took_s, fetching)


def detached(run: Run) -> int:
    """Print that the run continues, and how to come back."""
    data: Started = {"run": run.id, "path": str(run.path), "job_id": run.job_id}
    back = f"distlaunch attach {run.id}"
    output.report(f"{run.id} continues", f"  to come back: {back}   to end it: distlaunch cancel {run.id}")
    output.failed_result(RunContinuesError.code, f"{run.id} continues", back, data)
    return RunContinuesError.exit_code


def interrupted(run: Run) -> None:
    """Print, as JSON, that the run was stopped before all of it was submitted."""
    json_lines.begin(run)
    data: Started = {"run": run.id, "path": str(run.path), "job_id": run.job_id}
    message = f"{run.id} was stopped while it was submitted"
    output.failed_result("run_cancelled", message, f"distlaunch status {run.id}", data)


def close(run: Run, state: RunState, took_s: float, fetching: Fetching | None = None) -> int:
    """Print the closing lines of a run. Returns its exit code, or if it has succeeded that of a failed `fetching`."""
    started: Started = {"run": run.id, "path": str(run.path), "job_id": run.job_id}
    data = cast("Followed", {**started, **state, "output_dir": status.output_dir(run, state)})
    closing = summary.closing(run, state, took_s)
    if took_s >= _USAGE_S:
        closing[-1:-1] = _used(run, state)
    failure = fetching.error if fetching is not None else None
    if fetching is not None and fetching.result is not None:
        data["fetched"] = fetching.result
        closing += summary.fetched(fetching.result)
    if failure is not None:
        output.report(f"not fetched: {failure.message}", *([f"  {failure.hint}"] if failure.hint else []))
        if state["state"] == "success":
            output.note(*closing)
            output.failed_result(failure.code, failure.message, failure.hint, data)
            return failure.exit_code
    if state["state"] == "success":
        output.note(*closing)
        # A reader of our stdout may have seen enough; the run's result is what counts.
        with suppress(output.StdoutClosedError), output.after(f"{run.id} has succeeded"):
            output.result(data)
    else:
        output.report(*closing)
        cause = state["cause"]
        message = (cause["message"] if cause else "") or state["detail"] or state["state"]
        look = f"distlaunch {'ls' if run.tasks else 'logs'} {run.id}"
        output.failed_result(f"run_{state['state']}", message, look, data)
    return state["exit_code"] or 0


def _used(run: Run, state: RunState) -> list[str]:
    """What the run has used, as a closing line."""
    from launcher.console import usage_text  # short runs do not need it
    from launcher.runs import stream_pass

    found = stream_pass.usage_of(run, state)
    return [f"  used: {usage_text.line(found)}"] if found is not None else []
