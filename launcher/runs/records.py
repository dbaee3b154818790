"""Runs as folders: making them, finding them, reading them.

run.json     what was asked for, and the backend's handle once it was submitted
cancel.json  the last request to cancel
result.json  the final outcome, written once
lock-N       who changes the run (`lock.py`)
nodes/K/     node K's agent stream and errors
"""

from __future__ import annotations

import errno
import os
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import launcher
from launcher.agent.failures import Failure
from launcher.errors import LaunchError, RunNotFoundError, StorageError, UntrustedError
from launcher.system import numbers, storage, trust

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from launcher.runs.handle import Handle

LATEST = "last"
JOB_OUTPUT = -1
"""In place of a node rank: what the scheduler or the job file wrote, not an agent."""

_STAMP = "%Y%m%d-%H%M%S"
_ID = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?-(\d{8}-\d{6})-[a-z2-7]{4}\Z")
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_HINT = "set DISTLAUNCH_RUNS_DIR to a folder that you can write; on a cluster to one that all nodes see"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One submission, as its `run.json` says."""

    id: str
    path: Path
    created: float = 0.0
    """Unix seconds."""

    backend: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The backend's own options, with which it is asked about this run again."""

    cluster: str | None = None
    command: tuple[str, ...] = ()
    cwd: str = ""
    nodes: str = ""
    workers: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """`nodes` (node_rank, host, workers), `master`, `min_nodes`, `grace_s`, `may_start_again`, and `tasks` of an array."""

    handle: Handle | None = None
    """None until its submission began; with `submitting`, that has not ended, and only part of it may be there.

    With `before`, it is one of a run that had ended: how, as which attempt, and the handle of that time.
    """

    attempt: int = 0
    """Somebody has started it again; what its nodes said in earlier attempts does not count."""

    launcher_version: str = launcher.__version__
    ended: dict[str, Any] | None = None
    """How it had ended before somebody began to start it again, of which nothing came."""

    damaged: str = ""
    """Why the folder cannot be read as a run, if so."""

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
        """The folder of the run, or of the array that it is a task of: what is locked."""
        return self.path.parents[1] if "/" in self.id else self.path

    @property
    def known(self) -> Handle:
        """What it is found by; where its submission never began, only its directory."""
        return self.handle or {"run_dir": str(self.path)}

    @property
    def submitted(self) -> bool:
        """Whether all of it was sent; if not, its launcher is still at it, or has died."""
        return self.handle is not None and not self.handle.get("submitting")

    @property
    def hosts(self) -> list[str]:
        """Host of each node in rank order: as it was chosen at the start, else as planned."""
        chosen = self.known.get("hosts")
        if isinstance(chosen, list):
            return [str(host) for host in chosen]
        nodes = self.plan.get("nodes")
        return [str(node.get("host")) for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []

    @property
    def min_nodes(self) -> int | None:
        """How many nodes have to succeed; None: all."""
        least = self.plan.get("min_nodes")
        return least if isinstance(least, int) else None

    @property
    def may_start_again(self) -> bool:
        """Whether its cluster may start it again after it was stopped."""
        return self.plan.get("may_start_again") is True

    @property
    def grace_s(self) -> float:
        """Time between SIGTERM and SIGKILL."""
        grace = self.plan.get("grace_s")
        return float(grace) if isinstance(grace, (int, float)) and numbers.is_time(grace) else 30.0

    @property
    def result(self) -> dict[str, Any] | None:
        """The final outcome; None while it is not known."""
        return storage.read_json(self.path / "result.json") or self.ended

    @property
    def cancel_requested(self) -> float | None:
        """When somebody asked for the run's end, unix seconds."""
        request = storage.read_json(self.path / "cancel.json")
        asked = request.get("time") if request else None
        return float(asked) if isinstance(asked, (int, float)) else None

    def stream_path(self, node: int) -> Path:
        """Where the agent stream of a node is kept."""
        if node == JOB_OUTPUT:
            return self.path / "job.out"
        return self.path / "nodes" / str(node) / "stream"


def root(setting: str, env: Mapping[str, str] | None = None) -> Path:
    """The folder of the run folders: the setting, else `~/.distlaunch/runs`. `UntrustedError` where others could change it."""
    home = (os.environ if env is None else env).get("HOME")
    if setting:
        if setting.startswith("~/") and home:
            setting = os.path.join(home, setting[2:])
        path = Path(os.path.abspath(setting))
    elif home:
        path = Path(home, ".distlaunch", "runs")
    else:
        raise StorageError("there is no HOME to keep runs in", hint=_HINT)
    trust.require("runs_dir", path)
    return path


def new_id(name: str, now: float | None = None) -> str:
    """`NAME-YYYYMMDD-HHMMSS-xxxx`: a valid DNS label, sorted by time within a name."""
    tail = "".join(_BASE32[byte % 32] for byte in os.urandom(4))
    return f"{name}-{time.strftime(_STAMP, time.localtime(now))}-{tail}"


def is_id(text: str) -> bool:
    """Whether that can be a run's id, and so the name of its folder."""
    return _ID.match(text) is not None


def create(run: Run) -> None:
    """Make the run's folder with its `run.json`. Raises `StorageError`, `UntrustedError`."""
    unfinished = run.path.with_name(f".{run.id}.{os.getpid()}-{os.urandom(4).hex()}")
    with storage.storage_errors(run.path, _HINT):
        trust.make("runs_dir", run.path.parent, 0o755)
        # Scripts and their variables are in here: nobody else's to read.
        unfinished.mkdir(mode=0o700)
        try:
            _record(replace(run, path=unfinished))
            _put_in_place(unfinished, run)
        except StorageError as error:
            raise StorageError(error.message, hint=_HINT) from error
        finally:
            with suppress(OSError):
                (unfinished / "run.json").unlink()
            with suppress(OSError):
                unfinished.rmdir()


def _put_in_place(unfinished: Path, run: Run) -> None:
    """The folder under its name, which only one can have: moved, or made anew where folders cannot be moved (object stores)."""
    try:
        unfinished.rename(run.path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        run.path.mkdir(mode=0o700)
        _record(run)


def record_handle(run: Run, handle: Handle) -> Run:
    """Note that the run was submitted, and how the backend finds it again."""
    submitted = replace(run, handle=handle)
    _record(submitted)
    return submitted


@contextmanager
def cancelling(run: Run, *, force: bool) -> Iterator[None]:
    """Note that somebody asked for the run's end, before the backend is asked in here; taken back where that is refused."""
    paths = _cancel_notes(run)
    before = [storage.read_json(path) for path in paths]
    note_cancel(run, force=force)
    try:
        yield
    except LaunchError as error:
        for path, request in zip(paths, before, strict=True):
            if request is not None:
                storage.write_whole(path, storage.encode_json(request))
            elif not error.in_part:
                path.unlink(missing_ok=True)
        raise


def note_cancel(run: Run, *, force: bool) -> None:
    """Note that its end is asked for: agents that are started afterwards end at once, where they see its folder."""
    for path in _cancel_notes(run):
        storage.write_whole(path, storage.encode_json({"time": round(time.time(), 3), "force": force}))


def _cancel_notes(run: Run) -> list[Path]:
    return [each.path / "cancel.json" for each in (run, *map(run.task, run.tasks))]


def finish(run: Run, result: Mapping[str, Any]) -> bool:
    """Write the final outcome, unless somebody else did already."""
    return storage.write_once(run.path / "result.json", storage.encode_json(dict(result)))


def unsubmitted(state: str, error: BaseException | None = None) -> dict[str, Any]:
    """The outcome of a run of which nothing was ever sent, or is left."""
    message = "cancelled before it was submitted" if state == Failure.CANCELLED else str(error)
    kind = Failure.CANCELLED if state == Failure.CANCELLED else Failure.SUBMISSION
    exit_code = getattr(error, "exit_code", 4) if kind.about.exit_code is None else kind.about.exit_code
    cause = {"class": kind, "message": message}
    return {"state": state, "exit_code": exit_code, "cause": cause, "nodes": []}


def start_again(run: Run, handle: Handle, attempt: int) -> Run:
    """Forget how the run ended, as it has been started once more."""
    with storage.storage_errors(run.path):
        for name in ("cancel.json", "result.json"):
            (run.path / name).unlink(missing_ok=True)
    return record_handle(replace(run, attempt=attempt, ended=None), handle)


def before(handle: Handle, run: Run) -> Handle:
    """The handle of a submission that has only begun, and in it the run as it was: for `give_back`."""
    return {**handle, "before": {"handle": run.handle, "attempt": run.attempt, "result": run.result}}


def as_before(run: Run) -> Run | None:
    """A run that somebody began to start again, as it was before; None where it was not started before."""
    former = run.known.get("before")
    return None if former is None else replace(run, handle=former["handle"], attempt=former["attempt"], ended=former["result"])


def give_back(run: Run) -> None:
    """Have the folder say what `as_before` has told."""
    if run.ended is not None:
        finish(run, run.ended)
    record_handle(run, run.known)
    (run.path / "cancel.json").unlink(missing_ok=True)


def ids(folder: Path) -> list[str]:
    """Ids of all runs, oldest first; reads no file. Foreign folders that look like no run are last."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {str(folder)!r}: {error.strerror}", hint=_HINT) from error
    return sorted(names, key=_age)


def find(folder: Path, text: str) -> Run:
    """The run of that id, unique start of an id, or unique part of one; `last` is the newest. `ID/3` is a task of an array."""
    text, slash, index = text.partition("/")
    run = _find(folder, text)
    trust.require("run", run.path / "run.json")
    if not slash:
        return run
    if not index.isdigit() or int(index) not in run.tasks:
        tasks = ", ".join(map(str, run.tasks[:20]))
        raise RunNotFoundError(f"{run.id} has no task {index!r}", hint=f"tasks: {tasks}" if tasks else "it is no job array")
    return run.task(int(index))


def again(run: Run) -> Run:
    """The run as its folder has it now."""
    return find(run.whole_path.parent, run.id)


def _find(folder: Path, text: str) -> Run:
    known = ids(folder)
    real = [name for name in known if _ID.match(name)]
    if text == LATEST and real:
        return read(folder, real[-1])
    found = [name for name in known if name == text]
    found = found or [name for name in known if name.startswith(text)] or [name for name in known if text in name]
    if len(found) == 1 and text:
        return read(folder, found[0])
    if found and text:
        raise RunNotFoundError(f"{text!r} is the start or a part of {len(found)} runs", hint=_some(reversed(found)))
    if not known:
        raise RunNotFoundError(f"no run {text!r}: there are no runs in {str(folder)!r}", hint="distlaunch local train.py")
    raise RunNotFoundError(f"no run {text!r} in {str(folder)!r}", hint=_some(_nearest(text, real or known)))


def read(folder: Path, name: str) -> Run:
    """The run in that folder; `damaged` says why where it is none."""
    path = folder / name
    try:
        values = storage.read_trusted_json("run", path / "run.json")  # it says which programs to run
    except UntrustedError as error:
        return Run(id=name, path=path, created=created(name), damaged=error.message)
    if values is None:
        reason = "run.json cannot be read" if os.path.lexists(path / "run.json") else "it has no run.json"
        return Run(id=name, path=path, created=created(name), damaged=reason)
    kept = {key: value for key, value in values.items() if _fits(key, value)}
    kept["command"] = tuple(str(part) for part in kept.get("command", ()))
    if "backend" in kept and ("handle" in kept or "handle" not in values):  # without one, nothing was sent
        return Run(id=name, path=path, **kept)
    return Run(id=name, path=path, damaged="run.json is not a run's", **{"created": created(name), **kept})


_TYPES: dict[str, tuple[type, ...]] = {
    **{item.name: (str,) for item in fields(Run) if item.name not in ("id", "path", "ended", "damaged")},
    "created": (int, float),
    "attempt": (int,),
    "options": (dict,),
    "cluster": (str, type(None)),
    "command": (list,),
    "plan": (dict,),
    "handle": (dict, type(None)),
}
"""What each key of a `run.json` may hold."""


def _record(run: Run) -> None:
    values = asdict(run)
    del values["path"], values["ended"], values["damaged"]
    storage.write_whole(run.path / "run.json", storage.encode_json(values), mode=0o600)


def _fits(key: str, value: object) -> bool:
    """Whether a value read from a `run.json` has its field's type; a damaged file must not break a listing."""
    return key in _TYPES and isinstance(value, _TYPES[key]) and (key != "created" or numbers.is_time(value))


def _age(name: str) -> tuple[bool, str, str]:
    match = _ID.match(name)
    return (match is None, match[1] if match else "", name)


def created(name: str) -> float:
    """The time that an id holds; 0 where it holds none."""
    try:
        return time.mktime(time.strptime(name[-20:-5], _STAMP))
    except (ValueError, OverflowError):
        return 0.0


def _nearest(text: str, known: list[str]) -> list[str]:
    """Ids that look like the text, then the latest ones."""
    import difflib

    close = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    return close + [name for name in reversed(known) if name not in close]


def _some(names: Iterable[str], limit: int = 5) -> str:
    shown = list(names)
    return ", ".join(shown[:limit]) + (f" and {len(shown) - limit} more" if len(shown) > limit else "")
