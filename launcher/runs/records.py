"""Create and change runs, each a record in its own directory (`directories.py` finds and reads them).

run.json     the request, and the backend's handle once it was submitted
cancel.json  the last request to cancel
result.json  the final outcome, written once
lock-N       the command that is changing the run (`lock.py`)
lock-seen    since when that of another host is silent (`sightings.py`)
nodes/K/     node K's agent stream and errors
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import launcher
from launcher.errors import StorageError
from launcher.runs.sources import JOB_OUTPUT
from launcher.system import numbers, storage, trust
from launcher.system.dataclass import dataclass, field, fields, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.results.race import Race
    from launcher.runs.handle import Handle
    from launcher.runs.sources import Source


_RESULT = "result.json"
DIRECTORY_HINT = "set DISTLAUNCH_RUNS_DIR to a writable directory; on a cluster, to one that all nodes see"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One submission, as recorded in its `run.json`."""

    id: str
    path: Path
    created: float = 0.0
    """Unix seconds."""

    backend: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The backend's own options, for later queries about this run."""

    cluster: str | None = None
    command: tuple[str, ...] = ()
    cwd: str = ""
    nodes: str = ""
    workers: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """`nodes` (node_rank, host, workers, role), `master`, `min_nodes`, `may_fail`, `grace_s`, `may_start_again`,
    `has_queue`; `tasks` of an array."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """Script, arguments and options of the job as they were given, without what files and variables set."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """All options with their values and sources, as `config.Setting` has them."""

    handle: Handle | None = None
    """None until submission begins. With `submitting`, that is incomplete, and only part of the run may exist.

    With `before`, the run had ended and is being started again: `before` holds its previous state.
    """

    attempt: int = 0
    """The attempt that was last started by request. What nodes reported in earlier attempts does not count."""

    race: Race | None = None
    """Of a run that is queued on several clusters, what was asked and tried (`races.py`)."""

    won: Race | None = None
    """Of the try that has the claim of such a run, and goes by that run's id: the run's `race`."""

    launcher_version: str = launcher.__version__
    ended: dict[str, Any] | None = None
    """The result before a restart that never took effect."""

    damaged: str = ""
    """Why the directory cannot be read as a run, if so."""

    @property
    def tasks(self) -> tuple[int, ...]:
        """Indices of a job array; each task is a run of its own, `ID/INDEX`."""
        tasks = self.plan.get("tasks")
        return tuple(task for task in tasks if isinstance(task, int)) if isinstance(tasks, list) else ()

    def task(self, index: int) -> Run:
        """The run of one index of the array."""
        plan = {key: value for key, value in self.plan.items() if key != "tasks"}
        handle: Handle | None = None if self.handle is None else {**self.handle, "task": index}
        return replace(self, id=f"{self.id}/{index}", path=self.path / "tasks" / str(index), plan=plan, handle=handle)

    @property
    def whole_path(self) -> Path:
        """The directory of the run, or of the array that it belongs to. This directory is locked."""
        return self.path.parents[1] if "/" in self.id else self.path

    @property
    def root(self) -> Path:
        """The directory of all runs, where it is found by its id."""
        return self.path.parents[2] if self.won is not None else self.whole_path.parent

    @property
    def known(self) -> Handle:
        """The handle; before submission begins, one with only the run's directory."""
        return self.handle or {"run_dir": str(self.path)}

    @property
    def job_id(self) -> str | None:
        """The scheduler's own id of the run, an array's task or a step; None without one, or before it is known."""
        if "step" in self.known:  # it gets its number when it starts, and node 0's agent records that
            agent = storage.read_json(self.path / "nodes" / "0" / "agent.json") or {}
            return str(self.known.get("step_id") or agent.get("step") or "") or None
        former = (self.known.get("before") or {}).get("handle") or {}  # until a restart has a job of its own
        found, task = self.known.get("job_id", former.get("job_id")), self.known.get("task")
        return None if not isinstance(found, str) else found if task is None else f"{found}_{task}"

    @property
    def allocation(self) -> str | None:
        """The job in which the run is a step; None if it is none."""
        return self.known.get("job_id") if "step" in self.known else None

    @property
    def output_dir(self) -> str | None:
        """Where the first node's files are; None before it is known."""
        found = self.known.get("output_dir")
        return found if isinstance(found, str) else None

    @property
    def submitted(self) -> bool:
        """Whether all of it was sent. If not, its launcher is still submitting it, or has died."""
        return self.handle is not None and not self.handle.get("submitting")

    @property
    def hosts(self) -> list[str]:
        """Host of each node in rank order: as chosen at submission, else as planned."""
        chosen = self.known.get("hosts")
        if isinstance(chosen, list):
            return [str(host) for host in chosen]
        nodes = self.plan.get("nodes")
        return [str(node.get("host")) for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []

    @property
    def elastic(self) -> bool:
        """Whether nodes may come and go, from a least number to the most."""
        return ":" in self.nodes

    @property
    def min_nodes(self) -> int | None:
        """How many nodes have to succeed; None: all."""
        least = self.plan.get("min_nodes")
        return least if isinstance(least, int) else None

    @property
    def may_fail(self) -> list[int]:
        """Nodes whose failures end nothing by themselves, as their roles ignore them."""
        return list(self.plan.get("may_fail", ()))

    @property
    def may_start_again(self) -> bool:
        """Whether the cluster may restart the run after it was stopped."""
        return self.plan.get("may_start_again") is True

    @property
    def has_queue(self) -> bool:
        """Whether the cluster decided when and where it starts."""
        return self.plan.get("has_queue") is True

    @property
    def queued_since(self) -> float | None:
        """When it was submitted, in Unix seconds; None without a queue, and for a run that a user has restarted."""
        return self.created if self.has_queue and not self.attempt else None

    @property
    def grace_s(self) -> float:
        """Time between SIGTERM and SIGKILL."""
        grace = self.plan.get("grace_s")
        return float(grace) if isinstance(grace, (int, float)) and numbers.is_time(grace) else 30.0

    @property
    def result_path(self) -> Path:
        """The file with the final outcome."""
        return self.path / _RESULT

    @property
    def result(self) -> dict[str, Any] | None:
        """The final outcome; None while it is not known."""
        found = storage.read_json(self.result_path)
        return found if found and _attempt(found) >= self.attempt else self.ended

    @property
    def cancel_requested(self) -> float | None:
        """When cancellation was requested, in Unix seconds."""
        request = storage.read_json(self.path / "cancel.json")
        asked = request.get("time") if request else None
        return float(asked) if isinstance(asked, (int, float)) else None

    @property
    def private(self) -> str:
        """Why what the nodes have written cannot be read here, as of another user's run; empty if it can."""
        elsewhere = self.known.get("elsewhere")
        if elsewhere is None or (elsewhere and os.access(elsewhere, os.R_OK | os.X_OK)):
            return ""
        from launcher.runs.handle import unreadable  # few runs are of others

        return unreadable(self.known)

    @property
    def written(self) -> Path:
        """The directory to which the nodes write: the run's own, or that of its user."""
        elsewhere, task = self.known.get("elsewhere"), self.known.get("task")
        if not elsewhere or self.private:
            return self.path
        return Path(elsewhere) if task is None else Path(elsewhere, "tasks", str(task))

    def stream_path(self, source: Source) -> Path:
        """The file that holds the stream of that source."""
        if source == JOB_OUTPUT:
            return self.written / "job.out"
        return self.written / "nodes" / str(source) / "stream"


def create(run: Run) -> None:
    """Create the run's directory with its `run.json`. Raises `StorageError`, `UntrustedError`."""
    unfinished = run.path.with_name(f".{run.id}.{os.getpid()}-{os.urandom(4).hex()}")
    with storage.storage_errors(run.path, DIRECTORY_HINT):
        trust.make("runs_dir", run.path.parent, 0o755)
        # Private, as it contains scripts and their variables.
        unfinished.mkdir(mode=0o700)
        try:
            _record(replace(run, path=unfinished))
            _put_in_place(unfinished, run)
        except StorageError as error:
            raise StorageError(error.message, hint=DIRECTORY_HINT) from error
        finally:
            with suppress(OSError):
                (unfinished / "run.json").unlink()
            with suppress(OSError):
                unfinished.rmdir()


def _put_in_place(unfinished: Path, run: Run) -> None:
    """Move the directory to its unique name, or create it there if directories cannot be moved (object stores)."""
    try:
        unfinished.rename(run.path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        run.path.mkdir(mode=0o700)
        _record(run)


def record_handle(run: Run, handle: Handle) -> Run:
    """Record that the run was submitted, and how the backend finds it again."""
    submitted = replace(run, handle=handle)
    _record(submitted)
    return submitted


def finish(run: Run, result: Mapping[str, Any]) -> bool:
    """Record the final outcome, unless another process has. Returns whether it was recorded."""
    path = run.result_path
    data = storage.encode_json({**result, "attempt": max(_attempt(result), run.attempt)})
    if storage.write_once(path, data):
        return True
    former = storage.read_json(path)
    if former is None or _attempt(former) >= run.attempt:
        return False
    storage.write_whole(path, data)  # of an attempt before this one, by a process that was late
    return True


def _attempt(result: Mapping[str, Any]) -> int:
    found = result.get("attempt")
    return found if isinstance(found, int) else 0


def note_race(run: Run, race: Race | None) -> Run:
    """Record what was asked and tried so far of a run that is queued on several clusters."""
    noted = replace(run, race=race)
    _record(noted)
    return noted


def _record(run: Run) -> None:
    names = (each.name for each in fields(run) if each.name not in ("path", "ended", "damaged", "won"))
    values = {name: getattr(run, name) for name in names}  # `asdict` would copy each value, of each host
    storage.write_whole(run.path / "run.json", storage.encode_json(values), mode=0o600)
