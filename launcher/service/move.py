"""Go on elsewhere: a run is stopped, its files come to another cluster, and it starts there as its next attempt.

The attempt there is a try of the run (`runs/races.py`), whose node 0 starts nothing without the claim. It gets the
claim once the former attempt has ended and the files are there: at no moment can two attempts run.
"""

from __future__ import annotations

import os
import queue
import shutil
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.failures import Failure
from launcher.console import live_line
from launcher.errors import CommandError, LaunchError, RequestError
from launcher.runs import directories, lock, moves, races, records
from launcher.service import cancel, carrying, fetch, launch, observe, request
from launcher.service.rival import Rival, grant, say, submit
from launcher.settings import config
from launcher.system import storage
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from launcher.results.race import Race, Try
    from launcher.results.run import RunState
    from launcher.runs.records import Run
    from launcher.service.carrying import Carried
    from launcher.service.launch import Launch
    from launcher.service.rival import News

_WAIT_S = 3600.0
"""How long node 0 on the other cluster waits for its files."""

_LOOK_S, _LOCK_S = 0.1, 5.0


def move(run: Run, to: str, patterns: Sequence[str], nodes: str) -> Run:
    """Stop the run, bring the files of these nodes that match to the cluster, and start it there.

    `nodes`: as for `fetch.nodes_of`. Returns the run as it is there, once it may start. Raises `LaunchError`: before
    the run is stopped if the cluster cannot take it; later, the run can be started again where it was.
    """
    _check(run)
    tries = run.root / run.id / races.TRIES
    with storage.storage_errors(tries):
        tries.mkdir(mode=0o700, exist_ok=True)
    with lock.hold(tries, "move"), moves.cancellable(run):  # the run's own lock is needed to stop it
        return _stopped_and_moved(directories.read(run.root, run.id), to, patterns, nodes)


def _stopped_and_moved(run: Run, to: str, patterns: Sequence[str], nodes: str) -> Run:
    """The same; the caller holds the lock for moves of the run."""
    state = observe.state_of(run)
    _check_end(run, state)
    attempt, loses = int(state["attempt"] or 0), observe.backend_of(run).loses_outputs
    planned = _planned(run, to, attempt + 1)
    fetch.nodes_of(run, nodes)
    directory = run.root / run.id / f"carried-{attempt}"
    try:
        state, files = carrying.stopped(run, state, patterns, nodes, directory)
        _check_end(run, state)
        moved = _moved(run, planned, files)
    except BaseException:
        if not loses:
            shutil.rmtree(directory, ignore_errors=True)
        _say_what_is_left(run, to, directory)
        raise
    if files:  # else an earlier move may have left the only copy there
        shutil.rmtree(directory, ignore_errors=True)
    return moved


def _say_what_is_left(run: Run, to: str, directory: Path) -> None:
    """Say how a run that was not moved can go on. `directory`: of the files, if they are lost where it was."""
    now = directories.again(run)
    if now.path != run.path:
        return  # it is there, with its files
    if directory.exists():
        rest = f"what was fetched of its files is kept in {directory}"
        if carrying.complete(directory):
            rest = (
                f"its files are kept in {directory}: the same command continues with them; distlaunch requeue {run.id} "
                "starts it where it was, without them unless its cluster has kept them"
            )
        output.warn(f"{run.id} was not started on {to}, and {rest}")
    elif (now.result or {}).get("state", "success") != "success":
        output.warn(
            f"{run.id} is stopped, and was not started on {to}; distlaunch requeue {run.id} continues where it was"
        )


def _check_end(run: Run, state: RunState) -> None:
    if state["state"] == "success":
        raise RequestError(f"{run.id} has succeeded", hint="launch it again there")


def _moved(run: Run, planned: Launch, files: Carried) -> Run:
    """Start the run there, which has stopped here."""
    own = run.root / run.id
    with ExitStack() as held:
        for directory in [own] if run.path == own else [own, run.path]:  # `requeue` takes that of the try
            held.enter_context(lock.hold(directory, "move", submits=True, wait_s=_LOCK_S))
        run = directories.read(run.root, run.id)
        _check_wanted(run)
        if observe.state_of(run)["exit_code"] is None:
            raise RequestError(f"{run.id} was started again meanwhile", hint=f"distlaunch status {run.id}")
        return _Move(run, planned).start(files)


def _check_wanted(run: Run) -> None:
    """Raise `CommandError` if another command has cancelled the run since it began to be moved."""
    if moves.cancelled(run):
        raise CommandError(f"{run.id} was cancelled while it was moved")


def _check(run: Run) -> None:
    """Raise `RequestError` for a run that cannot be moved."""
    if run.tasks or "/" in run.id:
        raise RequestError(f"{run.id} is a job array, or a task of one", hint="move takes a single run")
    if run.race is not None:
        raise RequestError(f"{run.id} is still queued on {run.cluster}", hint=f"distlaunch cancel {run.id}")
    observe.whole(run)
    if not run.given:
        raise RequestError(f"{run.id} does not record how it was launched", hint="launch it on the other cluster")
    if os.path.realpath(run.cwd) != os.path.realpath(os.getcwd()):
        raise RequestError(f"{run.id} was launched in {run.cwd}", hint=f"cd {run.cwd}")


def _planned(run: Run, to: str, attempt: int) -> Launch:
    """The launch as it was asked for, with the settings of the other cluster, as this attempt of the run."""
    asked = request.resolve(None, {**run.given, "cluster": to, "detach": True}, config.load())
    if not asked.backend.has_outputs:
        raise RequestError(f"{to}: {asked.backend_name} takes no run from elsewhere")
    agents: dict[str, Any] = {
        **asked.job.agents, "attempt": attempt, "why_again": Failure.PREEMPTED,
        "claim": {"wait_s": _WAIT_S, "race": run.id}, "tracked_as": run.id,
    }  # fmt: skip
    asked = replace(asked, job=replace(asked.job, agents=agents))
    own = run.root / run.id / races.TRIES / directories.new_id(asked.job.name)
    planned = launch.Launch(asked, asked.plan(own), own)
    if planned.plan.tasks:
        raise RequestError(f"{to}: its settings make a job array of it", hint="move takes a single run")
    return planned


class _Move:
    """The try on the other cluster, until it may start. The caller holds the run's lock."""

    def __init__(self, run: Run, planned: Launch) -> None:
        self._run, self._recorded = run, directories.recorded(run.root, run.id)
        made = launch.record_of(planned.request, planned.plan, planned.path)
        made = replace(made, attempt=int(planned.request.job.agents["attempt"]))
        self._said: queue.Queue[News] = queue.Queue()
        self._try = Rival(made, planned.request.backend, str(planned.request.cluster), self._said)
        self._submit = partial(submit, made, planned)

    def start(self, files: Carried) -> Run:
        """Submit it, bring the files once its node 0 is there, and let it start."""
        moves.begin(self._recorded, self._try.run.id)
        self._try.begin(self._submit)
        try:
            with live_line.waiting(f"queueing on {self._try.cluster}"):
                self._wait()
            if files:
                with live_line.waiting(f"bringing files to {self._try.cluster}"):
                    carrying.bring(self._try.run, self._try.backend, files)
                _check_wanted(self._run)
        except BaseException:
            self._give_up()
            raise
        self._begin()
        self._try.over = True
        self._try.leave()
        return directories.read(self._run.root, self._run.id)

    def _wait(self) -> None:
        """Wait until node 0 asks for the claim. Raises `CommandError` if the try ends instead."""
        while True:
            try:
                news = self._said.get(timeout=_LOOK_S)
            except queue.Empty:
                _check_wanted(self._run)
                continue
            if news.what == "wants":
                return
            if news.what == "ended":
                raise CommandError(f"{self._try.cluster} does not run it: {news.text}")
            if news.what == "waits":
                output.progress(f"queued on {self._try.cluster} ({self._try.detail})")
            elif news.what in ("note", "detail", "warning"):
                say(news.what, news.text, *news.more)

    def _begin(self) -> None:
        """Record that the run is there from now on, then let it start."""
        now = round(time.time(), 3)
        new: Try = {
            "cluster": self._try.cluster, "run": self._try.run.id, "tried_at": self._try.run.created,
            "granted_at": None, "cancelled_at": None, "ended_at": None, "problem": None,
        }  # fmt: skip
        former = [_left(each, now) for each in (self._recorded.race or {"tries": [_first(self._run)]})["tries"]]
        before: Race = self._recorded.race or {
            "start": "move", "limit": 1, "claim": None, "wait_s": _WAIT_S, "asked": [], "tries": [],
        }  # fmt: skip
        noted = records.note_race(self._recorded, {**before, "claim": None, "tries": [*former, new]})
        races.move(noted, self._try.run.id, self._try.cluster)
        try:
            grant(self._try.run, self._try.backend)
        except LaunchError:
            output.warn(f"{self._run.id} is on {self._try.cluster} now; distlaunch status {self._run.id} lets it start")
            raise
        assert noted.race
        new = {**new, "granted_at": now}
        moves.end(records.note_race(noted, {**noted.race, "tries": [*former, new]}))

    def _give_up(self) -> None:
        """End the try: the run stays where it was."""
        self._try.over = True
        undone(self._recorded, directories.read(self._try.run.path.parent, self._try.run.id))


def undone(recorded: Run, there: Run) -> None:
    """End the try of a move that will not happen; a warning if it cannot be ended, which then gets no claim."""
    _end(there)
    moves.undo(recorded)


def _end(there: Run) -> None:
    try:
        if not there.damaged:
            cancel.cancel(there)
    except LaunchError as error:
        output.warn(f"{there.id} on {there.cluster} may still be queued, and will not run: {error.message}")


def caught_up(run: Run) -> Run:
    """The run after what a command that was moving it has left: undone, unless the run was there already."""
    there = _left_there(run)
    if there is not None:
        _end(there)  # without the lock: it can get the claim from no one any more, and its cluster may be slow
        _left_there(run, ended=there.id)
    return directories.read(run.root, run.id)


def _left_there(run: Run, ended: str = "") -> Run | None:
    """The try of a move that was cut off before the run was there, unless another command has the run's lock.

    If that is `ended`, the move is undone. A move that was cut off later has happened.
    """
    with lock.at_once(run.root / run.id) as ours:
        there = moves.pending(run)
        if there is None or not ours:
            return None
        recorded = directories.recorded(run.root, run.id)
        holder = races.claim(recorded)
        if holder is not None and holder["run"] == there.id:  # it gets its claim like every try that was chosen
            moves.end(recorded)
            return None
        if there.id == ended:
            moves.undo(recorded)
        return there


def _first(run: Run) -> Try:
    """The run itself, before it was moved for the first time."""
    return {
        "cluster": run.cluster or run.backend, "run": run.id, "tried_at": run.created,
        "granted_at": run.created, "cancelled_at": None, "ended_at": None, "problem": None,
    }  # fmt: skip


def _left(each: Try, now: float) -> Try:
    """The try after the run has left it, if it had the run."""
    return {**each, "cancelled_at": now, "ended_at": now} if each["granted_at"] and not each["ended_at"] else each
