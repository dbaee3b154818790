"""A job array as one run: its state is that of its tasks."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from launcher import output
from launcher.console import summary
from launcher.errors import LaunchError, StorageError
from launcher.runs import cancel_notes
from launcher.service import observe
from launcher.system.question import Question

if TYPE_CHECKING:
    from launcher.results.run import RunState, Task
    from launcher.runs.records import Run
    from launcher.service.leaving import Leaving

_POLL_S = (1.0, 10.0)
_LOOK_S = 0.1


def follow(run: Run, leaving: Leaving) -> RunState:
    """Report the end of each task. Ctrl-C cancels all tasks. Returns the final state; `Detached` if the user leaves."""
    with leaving:
        return _follow(run, leaving)


def _follow(run: Run, leaving: Leaving) -> RunState:
    told: set[str] = set()
    obeyed, pause, next_look = 0, _POLL_S[0], 0.0
    interrupts = leaving.interrupts
    looks: list[Question[RunState]] = []
    errands: list[Question[None]] = []
    while True:
        leaving.look()
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
            return whole
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
    try:
        with cancel_notes.cancelling(run, force=force):
            observe.backend_of(run).cancel(run.known, force=force)
    except StorageError as error:  # a full disk is a reason to cancel
        output.warn(f"{error.message}; cancelling without recording it")
        observe.backend_of(run).cancel(run.known, force=force)
