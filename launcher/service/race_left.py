"""A run on several clusters whose launcher has ended: what it has left is done, or found out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher import output
from launcher.errors import LaunchError
from launcher.runs import directories, lock, races, status
from launcher.service import observe
from launcher.service.interrupts import Unattended
from launcher.service.race import Contest
from launcher.service.rival import Rival, grant, has_claim, why_ended
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.results.run import RunState
    from launcher.runs.records import Run

_SOON_S = 10.0


class Abandoned(Contest):
    """A race that no process decides. Notes are kept until `record`: other commands may change the run meanwhile."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, Unattended())
        self._before, self._claim = run.race, races.claim(run)
        self._holder: Run | None = None
        self._result: RunState | None = None

    def tidy(self, winner: Run) -> None:
        """Do what the launcher has left after the decision, as far as clusters answer soon: grant, and cancel."""
        name = winner.path.name
        if self._race["claim"] is None and any(
            each["run"] == name for each in self._race["tries"] if not each["granted_at"]
        ):
            if winner.result is not None or has_claim(winner):  # it was granted, and the disk had no room for that note
                self._note(name, granted_at=time.time())
            else:
                self._grant_soon(winner)
        for each in self._tries():
            if each.id != name and not each.damaged:
                rival = Rival(each, observe.backend_of(each), each.cluster or each.backend, self._said)
                self._cancel([rival])
        self.settled(_SOON_S)

    def _grant_soon(self, winner: Run) -> None:
        told = Question(lambda: grant(winner, observe.backend_of(winner)), "grant")
        try:
            if told.answered(_SOON_S):
                told.answer()
                self._note(winner.path.name, granted_at=time.time())
        except LaunchError as error:
            output.warn(f"{winner.cluster} was not told that it has the run: {error.message}")

    def look(self) -> None:
        """Look at the tries: one may have claimed the run at a shared place, or none may be left."""
        left = not self._race["tries"] and time.time() - self.run.created < status.SUBMISSION_S
        for each in self._tries():
            state = observe.state_of(each)
            if self._race["claim"] and has_claim(each):
                self._holder = each
                self._note(each.id, granted_at=time.time())
                return
            if state["exit_code"] is not None:
                self._note(each.id, ended_at=time.time(), problem=why_ended(state))
            elif not _was_never_sent(each, state):
                left = True
            elif status.unsure(each):
                self._note(each.id, problem=state["detail"])
                self._rivals.append(self._unsure(each))
            else:
                self._note(each.id, ended_at=time.time(), problem=state["detail"])
        if not left:
            self._none_left(_SOON_S)

    def record(self) -> None:
        """Record what was found, unless the run has changed meanwhile. The caller holds the run's lock."""
        now = directories.recorded(self.run.root, self.run.id)
        if now.damaged or now.race != self._before or races.claim(now) != self._claim:
            return
        if self._claim is None and now.result is not None:  # it was cancelled
            return
        self.run = now
        if self._holder is not None:
            races.decide(now, self._holder.id, self._holder.cluster or self._holder.backend)
        if self._race != self._before:
            super()._write()
        if self._result is not None:
            super()._finish(self._result)

    def _write(self) -> None:
        """Nothing yet."""

    def _finish(self, result: RunState) -> None:
        self._result = result

    def _unsure(self, each: Run) -> Rival:
        """A try of which something may still start."""
        rival = Rival(each, observe.backend_of(each), each.cluster or each.backend, self._said)
        rival.over = rival.unsure = True
        return rival

    def _tries(self) -> Iterator[Run]:
        """The tries that have not ended, as far as is recorded."""
        for each in self._race["tries"]:
            if each["ended_at"] is None and each["granted_at"] is None:
                yield directories.read(self.run.path / races.TRIES, each["run"])


def _was_never_sent(each: Run, state: RunState) -> bool:
    """Whether nothing of the try exists, and nothing will, as its launcher has ended."""
    if each.damaged:
        return not races.was_made(each)
    young = time.time() - each.created < status.SUBMISSION_S  # a scheduler may be about to show it
    return state["state"] == "unknown" and state["detail"] == status.nothing_found(each) and not young


def caught_up(run: Run) -> Run:
    """The run after what its launcher has left: tries without the claim are cancelled, and a claim elsewhere is found.

    Nothing is done while its launcher lives.
    """
    if not _is_left(run):
        return run
    own = run.root / run.id
    with lock.at_once(own) as ours:  # else another command may be about to pass the claim on
        now = directories.read(run.root, run.id)
        if not ours or not _is_left(now):
            return now if ours else run
        contest = Abandoned(directories.recorded(run.root, run.id))
    if now.won is None:
        contest.look()
    else:
        contest.tidy(now)
    with lock.at_once(own) as ours:
        if ours:
            contest.record()
    return directories.read(run.root, run.id)


def _is_left(run: Run) -> bool:
    """Whether there may be something to do or to find out."""
    undecided = run.race is not None and run.result is None
    return not run.damaged and (undecided or run.won is not None) and _leaves_something(run)


def _leaves_something(run: Run) -> bool:
    """Whether the decision is open, or one that was made may not have been carried out."""
    if run.won is None:
        return True
    shared = run.won["claim"] is not None  # nothing has to be granted there
    return any(
        each["ended_at"] is None and each["granted_at"] is None and not (shared and each["run"] == run.path.name)
        for each in run.won["tries"]
    )
