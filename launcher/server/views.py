"""What is shown: a run's report, or a list of runs. Each is read by one thread, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from launcher.agent.named_tuple import NamedTuple
from launcher.errors import LaunchError, RunNotFoundError
from launcher.pages import index, page, template
from launcher.pages.template import Live
from launcher.payload import credentials
from launcher.runs import directories
from launcher.service import listing, observe, watched
from launcher.service.live_report import LiveReport
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.results.progress import Progress
    from launcher.results.run import Listed, RunState
    from launcher.runs.records import Run

MOST_RUNS = 500
"""The list has the newest ones."""


class View(NamedTuple):
    """A page as it was at one time."""

    version: str
    title: str
    html: str
    parts: Mapping[str, str]
    """Its header, navigation and sections."""

    policy: str
    """Its content security policy."""

    data: bytes
    """The same as JSON."""

    status: int = 200
    ended: str = ""
    """Why nothing will change any more; empty if something may."""


class Source(Protocol):
    """What a view is made from."""

    interval_s: float
    """The least time between two reads."""

    def read(self, version: str) -> View:
        """The view as of now, by that name. Raises `LaunchError`."""
        ...


class AllRuns:
    """All runs of this user."""

    interval_s = 5.0

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, version: str) -> View:
        """The newest runs first."""
        found = listing.states(self._directory, limit=MOST_RUNS)[::-1]
        more = len(directories.ids(self._directory)) - len(found)
        rows: list[tuple[Listed, Progress | None]] = []
        for run, state in found:
            going = state["exit_code"] is None
            rows.append((_row(run, state), watched.of(run, state)["progress"] if going else None))
        text = index.html("Runs", str(self._directory), rows, Live(version, "/events"), more=more)
        return _view(version, "Runs", text, {"runs": [row for row, _ in rows[::-1]]})


class OneRun:
    """One run, or one task of a job array."""

    interval_s = 2.0

    def __init__(self, run: Run) -> None:
        self._run = run
        self._report = LiveReport(run)

    def read(self, version: str) -> View:
        """Its report."""
        report = self._report.read()
        ended = "" if report["exit_code"] is None else "The run has ended"
        events = "" if ended else f"/events/{self._run.id}"
        title = f"{report['verdict']}: {report['run']}"
        return _view(version, title, page.html(report, Live(version, events)), report, ended=ended)


class OneArray:
    """The tasks of a job array."""

    interval_s = 5.0

    def __init__(self, run: Run) -> None:
        self._run = run

    def read(self, version: str) -> View:
        """All tasks, in order."""
        run = observe.whole(directories.again(self._run))
        found = listing.states(run.root, run.id)
        ended = "All tasks have ended" if all(state["exit_code"] is not None for _, state in found) else ""
        rows: list[tuple[Listed, Progress | None]] = [(_row(*pair), None) for pair in found]
        title = f"Job array {run.id}"
        text = index.html(title, "", rows, Live(version, "" if ended else f"/events/{run.id}"))
        return _view(version, title, text, {"runs": [row for row, _ in rows]}, ended=ended)


def of(run: Run) -> Source:
    """What a run is shown by."""
    return OneArray(run) if run.tasks else OneRun(run)


def problem(version: str, error: LaunchError) -> View:
    """The page for what cannot be shown."""
    text = template.rendered(
        "problem.html", Live(version, ""), (), title="This cannot be shown", message=error.message, hint=error.hint
    )
    data = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    if isinstance(error, RunNotFoundError):
        return _view(version, error.message, text, data, status=404, ended="This cannot be shown any more")
    return _view(version, error.message, text, data, status=500)


def _row(run: Run, state: RunState) -> Listed:
    """A row of a list; values of the command that look like credentials are masked."""
    return {**listing.row(run, state), "command": credentials.masked_command(run.command)}


def _view(version: str, title: str, text: str, data: Mapping[str, Any], *, status: int = 200, ended: str = "") -> View:
    whole = text.encode(errors="backslashreplace").decode()
    shown, policy = template.parts(whole), template.policy_in(whole)
    return View(version, title, whole, shown, policy, storage.encode_json(data), status, ended)
