"""A job array as one run: its state is that of its tasks."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from launcher import output
from launcher.console import summary
from launcher.errors import LaunchError
from launcher.runs import records
from launcher.service import observe
from launcher.system.question import Question

if TYPE_CHECKING:
    from launcher.results.run import Followed, RunState, Task
    from launcher.runs.records import Run
    from launcher.service.interrupts import Interrupts

_POLL_S = (1.0, 10.0)
_LOOK_S = 0.1


def follow(run: Run, interrupts: Interrupts) -> int:
    """Report the end of each task. Ctrl-C cancels all tasks. Returns the exit code."""
    told: set[str] = set()
    since, obeyed, pause, next_look = time.monotonic(), 0, _POLL_S[0], 0.0
    looks: list[Question[RunState]] = []
    errands: list[Question[None]] = []
    while True:
        if interrupts.stops > obeyed:
            obeyed, next_look = interrupts.stops, 0.0
            errands.append(Question(partial(_cancel, run, force=obeyed > 1), "cancel"))
        _hear(errands)
        if not looks and time.monotonic() >= next_look:
            looks.append(Question(partial(observe.state_of, run), "state"))
        if not (looks and looks[0].answered(_LOOK_S)):
            time.sleep(0 if looks else _LOOK_S)
            continue
        whole = looks.pop().answer()
        for task in whole["tasks"]:
            if task["exit_code"] is not None and task["run"] not in told:
                told.add(task["run"])
                _tell(run, task)
        if whole["exit_code"] is not None:
            return _end(run, whole, time.monotonic() - since)
        next_look = time.monotonic() + pause
        pause = _POLL_S[0] if obeyed else min(pause * 1.3, _POLL_S[1])


def _hear(errands: list[Question[None]]) -> None:
    """Report cancellations that failed."""
    for errand in [errand for errand in errands if errand.answered(0)]:
        errands.remove(errand)
        try:
            errand.answer()
        except LaunchError as error:
            output.warn(error.message)


def _tell(run: Run, task: Task) -> None:
    took = summary.duration_or_none(task.get("duration_s"))
    output.note(f"{task['run']}: {task['state']}" + (f" after {took}" if took else ""))
    if task["exit_code"] and task["cause"]:
        index = int(task["run"].rpartition("/")[2])
        for line in summary.cause_lines(task["cause"], run.task(index)):
            output.note(f"  {line}")


def _cancel(run: Run, *, force: bool) -> None:
    output.note(f"killing {run.id}" if force else f"cancelling {run.id}; once more to kill it")
    with records.cancelling(run, force=force):
        observe.backend_of(run).cancel(run.known, force=force)


def _end(run: Run, whole: RunState, took_s: float) -> int:
    data: Followed = {"run": run.id, "path": str(run.path), "job_id": run.job_id, **whole}
    text = f"{whole['state']} after {summary.duration(took_s)}: {run.id}: {whole['detail']}"
    if whole["state"] == "success":
        output.note(text)
        with suppress(output.StdoutClosedError), output.after(f"{run.id} has succeeded"):
            output.result(data)
    else:
        output.report(text)
        output.failed_result(f"run_{whole['state']}", whole["detail"], f"distlaunch ls {run.id}", data)
    return whole["exit_code"] or 0
