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
    """A race that no process decides."""

    def tidy(self, winner: Run) -> None:
        """Do what the launcher has left after the decision, as far as clusters answer soon: grant, and cancel."""
        name = winner.path.name
        if self._race["claim"] is None and any(
            each["run"] == name for each in self._race["tries"] if not each["granted_at"]
        ):
            told = Question(lambda: grant(winner, observe.backend_of(winner)), "grant")
            try:
                if told.answered(_SOON_S):
                    told.answer()
                    self._note(name, granted_at=time.time())
            except LaunchError as error:
                output.warn(f"{winner.cluster} was not told that it has the run: {error.message}")
        for each in self._tries():
            if each.id != name and not each.damaged:
                rival = Rival(each, observe.backend_of(each), each.cluster or each.backend, self._said)
                self._cancel([rival])
        self.settled(_SOON_S)

    def looked_at(self) -> Run:
        """The run as its tries are now: one may have claimed it at a shared place, or none may be left."""
        left = not self._race["tries"] and time.time() - self.run.created < status.SUBMISSION_S
        for each in self._tries():
            state = observe.state_of(each)
            if self._race["claim"] and has_claim(each):
                races.decide(self.run, each.id, each.cluster or each.backend)
                self._note(each.id, granted_at=time.time())
                return directories.read(self.run.root, self.run.id)
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
        return self.run

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
    if (run.result is not None and run.won is None) or not _leaves_something(run):
        return run
    with lock.at_once(run.root / run.id) as ours:
        if not ours:
            return run
        run = directories.read(run.root, run.id)  # it may have been decided meanwhile
        if run.damaged or (run.result is not None and run.won is None):
            return run
        contest = Abandoned(directories.recorded(run.root, run.id), Unattended())
        if run.won is None:
            return contest.looked_at()
        contest.tidy(run)
    return directories.read(run.root, run.id)


def _leaves_something(run: Run) -> bool:
    """Whether the decision is open, or one that was made may not have been carried out."""
    if run.won is None:
        return True
    shared = run.won["claim"] is not None  # nothing has to be granted there
    return any(
        each["ended_at"] is None and each["granted_at"] is None and not (shared and each["run"] == run.path.name)
        for each in run.won["tries"]
    )
