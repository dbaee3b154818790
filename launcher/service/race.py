"""A run that is queued on several clusters: the first whose node 0 is there gets it, and the others are cancelled."""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.failures import Failure
from launcher.console import live_line
from launcher.errors import CommandError, LaunchError, StorageError
from launcher.runs import cancel_notes, directories, lock, races, records
from launcher.service import cancel, launch, observe, undo
from launcher.service.leaving import Leaving
from launcher.service.rival import News, Rival, grant, say, submit
from launcher.system.dataclass import replace
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from launcher.backends._base import AnyBackend
    from launcher.results.race import Race, Try
    from launcher.results.run import RunState
    from launcher.runs.records import Run
    from launcher.service.candidates import Entry
    from launcher.service.interrupts import Interrupts, Unattended
    from launcher.service.launch import Launch

_LOOK_S = 0.1
_AGAIN_S = 5.0
_RETRY_S = 1.0
_SETTLE_S = 60.0


class Contest:
    """The tries of one run, until one of them has its claim. The caller holds the run's lock."""

    def __init__(self, run: Run, interrupts: Interrupts | Unattended) -> None:
        assert run.race
        self.run, self._race, self._interrupts = run, run.race, interrupts
        self._said: queue.Queue[News] = queue.Queue()
        self._rivals: list[Rival] = []
        self._cancels: list[tuple[Rival, Question[object]]] = []
        self._unwritten: set[str] = set()
        """The warnings about notes for which the disk has no room."""

    @property
    def wait_s(self) -> float:
        """How long a try that could start waits for the claim."""
        return self._race["wait_s"]

    def queue_up(self, launches: Sequence[Launch]) -> None:
        """Submit all tries at once."""
        for each in launches:
            made = launch.record_of(each.request, each.plan, each.path)
            self._add(made, each.request.backend, partial(submit, made, each))

    def go_on(self) -> None:
        """Watch the tries that another launcher has submitted."""
        for each in self._race["tries"]:
            if each["ended_at"] is None:
                found = directories.read(self.run.path / races.TRIES, each["run"])
                if found.damaged:
                    self._note(each["run"], ended_at=time.time(), problem=found.damaged)
                    continue
                self._add(found, observe.backend_of(found))

    def _add(self, run: Run, backend: AnyBackend, send: Callable[[], Run] | None = None) -> None:
        """Watch a try, which `send` submits; None: another launcher has."""
        rival = Rival(run, backend, run.cluster or backend.name, self._said)
        self._rivals.append(rival)
        rival.sent = send is None
        if send is not None:
            new: Try = {
                "cluster": rival.cluster, "run": run.id, "tried_at": round(time.time(), 3),
                "granted_at": None, "cancelled_at": None, "ended_at": None, "problem": None,
            }  # fmt: skip
            self._race = {**self._race, "tries": [*self._race["tries"], new]}
            self._write()
        if self._unwritten and send is not None:  # nothing starts of which there is no record
            self._said.put(News(rival, "ended", "there is no room to record it"))
        else:
            rival.begin(send or rival.found)

    def decided(self, leaving: Leaving, *, wait: bool = True) -> Run | None:
        """Wait until a try has the claim, and return the run as that try; without `wait`, until all are submitted.

        Raises `CommandError` once no try is left, `KeyboardInterrupt` if the user or another process cancels the run,
        and `Detached` if the user leaves.
        """
        with live_line.waiting("queueing"), leaving:
            while True:
                if self._interrupts.stops:
                    raise KeyboardInterrupt
                if all(each.over for each in self._rivals):
                    raise self._none_left()
                if all(each.sent or each.over for each in self._rivals):
                    if not wait:
                        return None
                    leaving.look()  # not before: this process's end would cut a submission off
                try:
                    news = self._said.get(timeout=_LOOK_S)
                except queue.Empty:
                    continue
                if self._unwritten:
                    self._write()
                if self._takes(news):
                    return self._won(news.rival)
                self._show()

    def _show(self) -> None:
        waiting = [f"{each.cluster} ({each.detail})" for each in self._rivals if not each.over]
        output.progress(f"queued on {', '.join(waiting)}")

    def _takes(self, news: News) -> bool:
        """Take the news into account; returns whether the try has the claim."""
        rival = news.rival
        if news.what in ("note", "detail", "warning"):
            say(news.what, news.text, *news.more)
        elif news.what == "submitted":
            rival.sent, rival.detail = True, "submitted"
            job = f" as job {rival.run.job_id}" if rival.run.job_id else ""
            output.note(f"queued on {rival.cluster}{job}: {rival.run.id}")
        elif news.what == "ended":
            rival.over = True
            self._note(rival.run.id, problem=news.text, **({} if rival.unsure else {"ended_at": time.time()}))
            if rival.unsure:  # it is cancelled with the others, and ends by itself if it starts before that
                with suppress(StorageError):
                    cancel_notes.note(rival.run, force=True)
            output.warn(f"{rival.cluster} is left out: {news.text}")
        elif not rival.over and (news.what == "held" or (news.what == "wants" and self._race["claim"] is None)):
            return self._decides(news)
        return False

    def _decides(self, news: News) -> bool:
        """Whether the try of that news gets the claim. If the disk is full, the news is put off until it has ended."""
        rival = news.rival
        try:
            return races.decide(self.run, rival.run.id, rival.cluster)["run"] == rival.run.id
        except StorageError as error:
            self._warn_of(f"{rival.cluster} could start it: {error.message}")
        time.sleep(_RETRY_S)
        self._said.put(news)
        return False

    def _won(self, rival: Rival) -> Run:
        """Grant the claim, and begin to cancel all other tries."""
        if self._race["claim"] is None:
            self._grant(rival)
        self._note(rival.run.id, granted_at=time.time())
        others = [each for each in self._left() if each is not rival]
        told = f"; cancelling it on {', '.join(each.cluster for each in others)}" if others else ""
        output.note(f"{rival.cluster} starts first and gets the run{told}")
        for each in (rival, *others):
            each.over = True
        self._cancel(others)
        rival.leave()  # its stream is followed by others from now on
        return directories.read(self.run.path.parent, self.run.id)

    def _grant(self, rival: Rival) -> None:
        """Tell node 0's agent of the winning try; it gives up at its limit, so this does, too."""
        limit = time.monotonic() + self._race["wait_s"]
        while True:
            try:
                return grant(rival.run, rival.backend)
            except LaunchError as error:
                if time.monotonic() > limit or self._interrupts.stops:
                    return output.warn(f"{rival.cluster} was not told that it has the run: {error.message}")
                output.warn(f"{rival.cluster} is told again that it has the run: {error.message}")
                time.sleep(_AGAIN_S)

    def _left(self) -> list[Rival]:
        """The tries of which something is left, or may come."""
        return [each for each in self._rivals if each.unsure or not each.over]

    def _none_left(self, limit_s: float = _SETTLE_S) -> CommandError:
        """Record that no try can run, once that is certain."""
        self._cancel(self._left())
        certain = self.settled(limit_s)
        told = "; ".join(f"{each['cluster']}: {each['problem']}" for each in self._race["tries"])
        error = CommandError(f"no cluster is left: {told}", hint=f"distlaunch status -v {self.run.id}")
        if certain:
            self._finish(undo.unsubmitted("failed", error))
        return error

    def abandon(self) -> None:
        """Cancel all tries, as the run was cancelled."""
        left = self._left()
        for each in left:
            each.over = True
        self._cancel(left)
        if self.settled():
            self._finish(undo.unsubmitted(Failure.CANCELLED))

    def _cancel(self, rivals: Sequence[Rival]) -> None:
        for each in rivals:
            self._cancels.append((each, Question(partial(cancel.cancel, each.run), f"cancel {each.cluster}")))

    def tidied(self) -> None:
        """Once a try has the run: wait until the others have ended and all is recorded, up to a limit."""
        limit = time.monotonic() + _SETTLE_S
        self.settled()
        while self._unwritten and time.monotonic() < limit:
            self._write()
            if self._unwritten:
                time.sleep(_RETRY_S)

    def settled(self, limit_s: float = _SETTLE_S) -> bool:
        """Wait until the cancelled tries have ended, up to a limit. Returns whether they all have."""
        limit, whole = time.monotonic() + limit_s, True
        for rival, question in self._cancels:
            done = question.answered(max(0.0, limit - time.monotonic()))
            now = time.time()
            try:
                if not done:
                    raise CommandError(f"not within {limit_s:.0f} s")
                question.answer()
                self._note(rival.run.id, cancelled_at=now, ended_at=now)
            except LaunchError as error:
                whole = False
                self._note(rival.run.id, cancelled_at=now)
                output.warn(f"{rival.run.id} on {rival.cluster} may still be queued, and will not run: {error.message}")
        self._cancels = []
        return whole

    def _note(self, name: str, *, problem: str | None = None, **times: float) -> None:
        """Record what has become of a try."""
        more = {key: round(value, 3) for key, value in times.items()}
        tries = [
            {**each, **more, "problem": problem or each["problem"]} if each["run"] == name else each
            for each in self._race["tries"]
        ]
        race: Race = {**self._race, "tries": tries}  # type: ignore[typeddict-item]
        self._race = race
        self._write()

    def _write(self) -> None:
        """Record the race as it is. A full disk ends none: it is written again later."""
        self.run = replace(self.run, race=self._race)
        try:
            records.note_race(self.run, self._race)
            self._unwritten.clear()
        except StorageError as error:
            self._warn_of(error.message)

    def _warn_of(self, why: str) -> None:
        """Say once, until there is room again, that something cannot be recorded."""
        if why not in self._unwritten:
            output.warn(f"{why}; it is tried again")
        self._unwritten.add(why)

    def _finish(self, result: RunState) -> None:
        try:
            records.finish(self.run, result)
        except StorageError as error:
            output.warn(error.message)


def create(path: Path, race: Race, launches: Sequence[Launch]) -> Run:
    """Create the run, with none of its tries."""
    first = launches[0].request
    made = launch.record_of(first, launches[0].plan, path)
    plan = {"grace_s": made.plan["grace_s"]}
    names = ",".join(str(each.request.cluster) for each in launches)
    run = replace(made, backend="", options={}, cluster=names, plan=plan, race=race)
    records.create(run)
    return run


def first(entry: Entry, interrupts: Interrupts | Unattended) -> Run:
    """Queue the run on several clusters, and wait until one of them has it and the others have cancelled it."""
    run = create(entry.path, entry.about, entry.tries)
    with hold(run, interrupts):
        contest = Contest(run, interrupts)
        try:
            contest.queue_up(entry.tries)
            won = contest.decided(Leaving(interrupts))
        except KeyboardInterrupt:
            contest.abandon()
            raise
        contest.tidied()
    assert won is not None
    return won


def hold(run: Run, interrupts: Interrupts | Unattended) -> AbstractContextManager[None]:
    """The lock of a run whose tries this process watches; a request to cancel the run stops this process."""
    watch = partial(launch.hear_of_cancel, run, interrupts)
    return lock.hold(run.path, "run", submits=True, wait_s=_AGAIN_S, watch=watch)
