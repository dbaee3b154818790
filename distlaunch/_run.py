"""Runs that were submitted, by any process, at any time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distlaunch import _events
from distlaunch._events import CauseKnown, StateChanged
from distlaunch._messages import logged, quiet, told
from distlaunch._result import Result
from distlaunch._waiting import Wait
from launcher.errors import RequestError
from launcher.runs import directories, records
from launcher.service import again, finding, listing, observe, removal, report_file, reports, top
from launcher.service import cancel as ending
from launcher.service import fetch as fetching
from launcher.service import logs as streams
from launcher.service import move as moving
from launcher.service import stacks as looking
from launcher.service.selection import Selection

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from datetime import datetime, timedelta
    from pathlib import Path

    from distlaunch._events import Event, WorkerLine
    from launcher.results.files import Fetched
    from launcher.results.report import Report
    from launcher.results.run import RunState, Status
    from launcher.results.stacks import Stacks
    from launcher.results.top import Top


class Run:
    """One run. It holds no connection and no state: each call inspects the run as it is then. Threads may share it."""

    def __init__(self, record: records.Run) -> None:
        self._record = record

    @property
    def id(self) -> str:
        """Its id, as `distlaunch ls` prints it."""
        return self._record.id

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._record.path

    @property
    def backend(self) -> str:
        """The backend that it was submitted with."""
        return self._record.backend

    @property
    def cluster(self) -> str | None:
        """The cluster of the settings that it was submitted to."""
        return self._record.cluster

    @property
    def command(self) -> tuple[str, ...]:
        """Script, module or program, then its arguments."""
        return self._record.command

    @property
    def job_id(self) -> str | None:
        """The scheduler's own id; None if there is none, or none is known yet."""
        return directories.again(self._record).job_id

    @property
    def created(self) -> float:
        """When it was submitted, in Unix seconds."""
        return self._record.created

    @property
    def tasks(self) -> tuple[Run, ...]:
        """The tasks of a job array, each a run of its own; empty for any other run."""
        return tuple(Run(self._record.task(index)) for index in self._record.tasks)

    @quiet
    def status(self) -> Status:
        """All that is known about it now, node by node: the `result` of `distlaunch status --output json`."""
        record = directories.again(self._record)
        return listing.whole(record, observe.state_of(record))

    @quiet
    def top(self) -> Top:
        """Its nodes and ranks now, the odd first: the `result` of `distlaunch top RUN --output json`."""
        return top.once(directories.again(self._record))

    @quiet
    def report(self, path: str | os.PathLike[str] | None = None) -> Report:
        """The run with its history. Also writes it to a file, as HTML if its name does not end in .md or .json."""
        found = reports.make(directories.again(self._record))
        if path is not None:
            report_file.write(found, report_file.format_of(None, path), path)
        return found

    @property
    @quiet
    def state(self) -> str:
        """Its current state, as listed in docs/cli.md. The cluster is asked if the run's directory has no answer."""
        return observe.state_of(directories.again(self._record))["state"]

    @property
    @quiet
    def result(self) -> Result | None:
        """How it ended; None if it has not."""
        return self._result(observe.state_of(directories.again(self._record)))

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for its end. Raises `TimeoutError` after `timeout` seconds; the run continues, as after Ctrl-C.

        Raises `RequestError` for a run that will never end, as its launcher died before it was sent, or was removed.
        """
        wait = Wait(self._record)
        for pause in wait.pauses(timeout):
            if (found := wait.ended()) is not None:
                return found
            time.sleep(pause)
        raise TimeoutError(f"{self.id} has not ended within {timeout:g} s")

    async def wait_async(self, timeout: float | None = None) -> Result:
        """`wait` for asyncio. A task that waits may be cancelled, and the run continues."""
        import asyncio

        wait = Wait(self._record)
        for pause in wait.pauses(timeout):
            if (found := await asyncio.to_thread(wait.ended)) is not None:
                return found
            await asyncio.sleep(pause)
        raise TimeoutError(f"{self.id} has not ended within {timeout:g} s")

    def events(self, *, follow: bool = True) -> Iterator[Event]:
        """Events of the run until its end; of a run that has ended, from its record, node by node, with its end last.

        `follow=False`: only the events so far. Leaving the loop does not affect the run.
        """
        with logged():
            record = streams.readable(directories.again(self._record), follow=follow)
        known = None
        for event in told(_events.of_streams(record, follow=follow)):
            known = event.cause if isinstance(event, CauseKnown) else known
            yield event
        result = self.wait() if follow else self.result
        if result is not None:
            if result.cause is not None and result.cause != known:
                yield CauseKnown(cause=result.cause)
            yield StateChanged(state=result.state, detail=str(self.status().get("detail") or ""))

    def logs(
        self, *, rank: int | str | Iterable[int] | None = None, node: int | None = None, follow: bool = False
    ) -> Iterator[WorkerLine]:
        """Lines that its workers wrote. `rank`: one, several, or `"0,3-5"`; None: all. `follow`: until its end."""
        with logged():
            record = streams.readable(directories.again(self._record), follow=follow)
        yield from told(_events.lines(record, _events.ranks(rank), node, follow=follow))

    @quiet
    def cancel(self, *, force: bool = False, wait: bool = True) -> Result | None:
        """End it: SIGTERM to its workers, SIGKILL after its grace time; `force`: SIGKILL at once.

        A run that has ended does not change. Returns how the run ended, or None if its end was not awaited. Raises
        `CommandError` if it does not end.
        """
        return self._result(ending.cancel(directories.again(self._record), force=force, wait=wait))

    @quiet
    def signal(self, signum: int) -> None:
        """Pass a signal, such as `signal.SIGUSR1`, on to every worker."""
        record = observe.sent(observe.whole(directories.again(self._record)))
        if record.handle is None or record.result is not None:
            raise RequestError(f"{self.id} does not run", hint=f"distlaunch status {self.id}")
        observe.backend_of(record).signal(record.handle, int(signum))

    @quiet
    def stacks(self, *, rank: int | str | Iterable[int] | None = None) -> Stacks:
        """Where its ranks are now: the `result` of `distlaunch stacks`. `rank` as in `logs`."""
        return looking.take(directories.again(self._record), _events.ranks(rank))

    @quiet
    def requeue(self) -> int:
        """Start it again in its directory; a script that keeps checkpoints continues. Returns the attempt's number."""
        return again.requeue(directories.again(self._record))

    @quiet
    def move(self, to: str, *, carry: Iterable[str] = (), node: int | str | None = None) -> Run:
        """Stop it as a preemption does, and start it on the cluster `to` as its next attempt: the run as it is there.

        `carry`: patterns of the files to bring there, `node`: as for `fetch`. Returns once it may start there. Raises
        `LaunchError`: before it is stopped if that cluster cannot take it; later, `requeue` continues it where it was,
        on Kubernetes without files that it has lost; another `move` brings those that were fetched.
        """
        record = directories.again(self._record)
        patterns = (carry,) if isinstance(carry, str) else tuple(carry)
        return Run(moving.move(record, to, patterns, fetching.default_nodes(record, node)))

    @quiet
    def fetch(self, *patterns: str, to: str | os.PathLike[str] | None = None, node: int | str | None = None) -> Fetched:
        """Fetch files that its workers have written: the `result` of `distlaunch fetch`.

        `node`: a rank, or `"all"`; None: the setting `fetch_node`. `to`: the directory here; None: one of the run's
        name. Raises `RequestError` if nothing matches.
        """
        record = directories.again(self._record)
        target = fetching.target(record, None if to is None else str(to))
        return fetching.fetch(record, patterns, target, fetching.default_nodes(record, node))

    @quiet
    def remove(self, *, force: bool = False) -> None:
        """Remove it, here and on its hosts and cluster. Raises `RequestError` if it has not ended.

        `force`: also if the cluster does not answer, or no one can tell whether it has ended.
        """
        record = directories.again(self._record)
        removal.check(record, force=force)
        removal.remove(record, force=force)

    def _result(self, state: RunState) -> Result | None:
        return None if state.get("exit_code") is None else Result.from_json(self.id, state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Path, str]:
        """What stays when the run moves, unlike its directory."""
        return self._record.root, self._record.id

    def __repr__(self) -> str:
        return f"<distlaunch.Run {self.id}>"


@quiet
def get(run: str, *, cluster: str | None = None, runs_dir: str | os.PathLike[str] | None = None) -> Run:
    """The run with that id, a unique start or part of it, or its scheduler's id; `last` is the newest, `ID/3` a task.

    If there is none here, `cluster` (or a backend's name) is asked for it. Raises `RunNotFoundError`.
    """
    return Run(finding.find(_root(runs_dir), run, cluster))


@quiet
def runs(
    *,
    state: str | Iterable[str] | None = None,
    since: str | float | timedelta | datetime | None = None,
    name: str | None = None,
    backend: str | None = None,
    cluster: str | None = None,
    limit: int = 0,
    runs_dir: str | os.PathLike[str] | None = None,
) -> list[Run]:
    """Runs with these states, of this backend and cluster, oldest first; with a `limit`, only the newest.

    `since`: only runs submitted since that time, or within that many seconds. `name`: only runs of that name.
    """
    root, wanted = _root(runs_dir), Selection.parse(state, since, name)
    found: list[Run] = []
    for record in directories.newest_first(root, directories.ids(root)):
        if backend not in (None, record.backend) or cluster not in (None, record.cluster):
            continue
        if not wanted.takes(record.id, record.created):
            continue
        if wanted.states and not wanted.takes_state(observe.state_of(record)["state"]):
            continue
        found.append(Run(record))
        if len(found) == limit:
            break
    return found[::-1]


@quiet
def prune(
    *,
    older_than: float,
    keep_failed: bool = False,
    dry_run: bool = False,
    runs_dir: str | os.PathLike[str] | None = None,
) -> list[Run]:
    """Remove runs that ended more than `older_than` seconds ago; returns them. `keep_failed`: only successful ones.

    `dry_run`: only return them. Raises at the first one that cannot be removed.
    """
    found = [each.run for each in removal.prunable(_root(runs_dir), older_than, keep_failed=keep_failed)]
    for run in () if dry_run else found:
        removal.remove(run)
    return [Run(run) for run in found]


def _root(runs_dir: str | os.PathLike[str] | None) -> Path:
    return observe.runs_root(None if runs_dir is None else str(runs_dir))
