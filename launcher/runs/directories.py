"""The directories of runs: where they are, the ids that name them, and what each of them holds."""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import RequestError, RunNotFoundError, StorageError, UntrustedError
from launcher.runs import races
from launcher.runs.records import DIRECTORY_HINT, Run
from launcher.system import amounts, numbers, storage, trust
from launcher.system.dataclass import fields, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LATEST = "last"
_NO_RECORD, _NO_JSON, _NO_RUN = "it has no run.json", "run.json is not JSON", "run.json is not a run's"
NO_RUNS = (_NO_RECORD, _NO_JSON, _NO_RUN)
"""Why a directory that can be read is not a run."""

_STAMP = "%Y%m%d-%H%M%S"
_ID = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?-(\d{8}-\d{6})-[a-z2-7]{4}\Z")
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_ZONES_S = 26 * 3600.0 + 1
"""How much the local times of two places differ at most; ids have whole seconds."""

_CLOCKS_S = 600.0
"""The same of the clocks of a host and of its file server."""


def root(setting: str, env: Mapping[str, str] | None = None) -> Path:
    """The directory of all runs: the setting, else `~/.distlaunch/runs`. `UntrustedError` if others can change it."""
    home = (os.environ if env is None else env).get("HOME")
    if setting:
        if setting.startswith("~/") and home:
            setting = os.path.join(home, setting[2:])
        path = Path(os.path.abspath(setting))
    elif home:
        path = Path(home, ".distlaunch", "runs")
    else:
        raise StorageError("there is no HOME to keep runs in", hint=DIRECTORY_HINT)
    trust.require("runs_dir", path)
    return path


def root_of(path: Path) -> Path:
    """The directory of all runs that the directory of a run, or of one of its tries, is in."""
    return path.parents[2] if path.parent.name == races.TRIES and is_id(path.parents[1].name) else path.parent


def new_id(name: str, now: float | None = None) -> str:
    """`NAME-YYYYMMDD-HHMMSS-xxxx`: a valid DNS label, sorted by time within a name."""
    tail = "".join(_BASE32[byte % 32] for byte in os.urandom(4))
    return f"{name}-{time.strftime(_STAMP, time.localtime(now))}-{tail}"


def name_of(run: str) -> str:
    """The run name that an id begins with; a text that is not an id is its own name."""
    return run[: -len("-20250101-120000-abcd")] if is_id(run) else run


def is_id(text: str) -> bool:
    """Whether the text has the form of a run's id, which is also the name of its directory."""
    return _ID.match(text) is not None


def ids(directory: Path) -> list[str]:
    """Ids of all runs, oldest first, without reading files. Directories that do not look like runs come last."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {str(directory)!r}: {error.strerror}", hint=DIRECTORY_HINT) from error
    return sorted(names, key=_age)


def find(directory: Path, text: str) -> Run:
    """The run with that id, or a unique prefix or part of it. `last` is the newest run, `ID/3` a task of an array.

    Raises `RunNotFoundError`, and `StorageError` if it is not known now whether the run has that task.
    """
    text, slash, index = text.partition("/")
    run = _find(directory, text)
    trust.require("run", run.path / "run.json")
    if not slash:
        return run
    if run.damaged and run.damaged not in NO_RUNS:
        raise StorageError(f"{run.id}: {run.damaged}", hint=f"ls -l {run.path}")
    if not numbers.is_index(index) or int(index) not in run.tasks:
        tasks = ", ".join(map(str, run.tasks[:20]))
        raise RunNotFoundError(
            f"{run.id} has no task {index!r}", hint=f"tasks: {tasks}" if tasks else "it is not a job array"
        )
    return run.task(int(index))


def again(run: Run) -> Run:
    """The run, read again from its directory."""
    return find(run.root, run.id)


def _find(directory: Path, text: str) -> Run:
    if is_id(text) and os.path.isdir(directory / text):  # a whole id needs no look at the other runs
        return read(directory, text)
    known = ids(directory)
    real = [name for name in known if _ID.match(name)]
    if text == LATEST and real:
        return next(newest_first(directory, real))
    found = [name for name in known if name == text]
    found = found or [name for name in known if name.startswith(text)] or [name for name in known if text in name]
    if len(found) == 1 and text:
        return read(directory, found[0])
    if found and text:
        raise RunNotFoundError(f"{text!r} matches {len(found)} runs", hint=amounts.listed(reversed(found), 5))
    if not known:
        raise RunNotFoundError(
            f"no run {text!r}: there are no runs in {str(directory)!r}", hint="distlaunch local train.py"
        )
    raise RunNotFoundError(
        f"no run {text!r} in {str(directory)!r}", hint=amounts.listed(_nearest(text, real or known), 5)
    )


def newest_first(directory: Path, known: list[str]) -> Iterator[Run]:
    """These runs, which `ids` has ordered, by their records: the time in an id is that of a zone unknown here."""
    held: list[tuple[float, int, str | Run]] = []
    for count, name in enumerate(reversed(known)):
        latest = created(name) + _ZONES_S  # no run from here on is newer
        yield from _newer(directory, held, latest)
        with suppress(OSError):  # most need not be read: a record is never older than its run
            latest = min(latest, os.stat(directory / name / "run.json").st_mtime + _CLOCKS_S)
        heappush(held, (-latest, count, name))
    yield from _newer(directory, held, -math.inf)


def _newer(directory: Path, held: list[tuple[float, int, str | Run]], limit: float) -> Iterator[Run]:
    """Those of a heap that are newer, the newest first. It has runs by their times, and ids by the latest possible."""
    while held and -held[0][0] > limit:
        _, count, each = heappop(held)
        if isinstance(each, Run):
            yield each
        else:
            run = read(directory, each)
            heappush(held, (-(run.created or created(each)), count, run))


def read(directory: Path, name: str) -> Run:
    """The run in that directory. If it is not a valid one, `damaged` says why.

    Of a run that is queued on several clusters, this is the try that has its claim, under the run's id.
    """
    found = recorded(directory, name)
    return _chosen(found) if found.race else found


def recorded(directory: Path, name: str) -> Run:
    """The run as that directory's own record has it."""
    path = directory / name
    try:
        values = storage.trusted_json("run", path / "run.json")  # it names programs that are executed
    except UntrustedError as error:
        return Run(id=name, path=path, created=created(name), damaged=error.message)
    except OSError:
        reason = "run.json cannot be read" if os.path.lexists(path / "run.json") else _NO_RECORD
        return Run(id=name, path=path, created=created(name), damaged=reason)
    if values is None:
        return Run(id=name, path=path, created=created(name), damaged=_NO_JSON)
    kept = {key: value for key, value in values.items() if _fits(key, value)}
    kept["command"] = tuple(str(part) for part in kept.get("command", ()))
    if "backend" in kept and ("handle" in kept or "handle" not in values):  # without a handle, a run was never sent
        return Run(id=name, path=path, **kept)
    return Run(id=name, path=path, damaged=_NO_RUN, **{"created": created(name), **kept})


def _chosen(run: Run) -> Run:
    claim = races.claim(run)
    if claim is None:
        return run
    found = read(run.path / races.TRIES, claim["run"]) if is_id(claim["run"]) else replace(run, damaged="no try")
    return replace(found, id=run.id, created=run.created, won=run.race)


_TYPES: dict[str, tuple[type, ...]] = {
    **{item.name: (str,) for item in fields(Run) if item.name not in ("id", "path", "ended", "damaged", "won")},
    "created": (int, float),
    "attempt": (int,),
    "options": (dict,),
    "given": (dict,),
    "settings": (dict,),
    "cluster": (str, type(None)),
    "command": (list,),
    "plan": (dict,),
    "handle": (dict, type(None)),
    "race": (dict, type(None)),
}
"""Types that each key of a `run.json` may have."""


def _fits(key: str, value: object) -> bool:
    """Whether a value read from a `run.json` has its field's type; a damaged file must not break a listing."""
    return key in _TYPES and isinstance(value, _TYPES[key]) and (key != "created" or numbers.is_time(value))


def _age(name: str) -> tuple[bool, str, str]:
    match = _ID.match(name)
    return (match is None, match[1] if match else "", name)


def link(directory: Path, original: Path) -> Run:
    """Make a run that is recorded elsewhere one of the runs in this directory, by a link: all commands share its locks.

    Raises `UntrustedError` if others could change it, `RequestError` if it is known here or cannot be read.
    """
    path = directory / original.name
    if os.path.exists(path):
        raise RequestError(f"{original.name} is already known here", hint=f"distlaunch status {original.name}")
    trust.require("run", original / "run.json")
    found = read(original.parent, original.name)
    if found.damaged:
        raise RequestError(f"{original} cannot be read as a run: {found.damaged}", hint=f"ls -l {original}")
    with storage.storage_errors(path, DIRECTORY_HINT):
        trust.make("runs_dir", directory, 0o755)
        path.unlink(missing_ok=True)  # a link to a run that was removed there
        path.symlink_to(original)
    return read(directory, original.name)


def created(name: str) -> float:
    """The creation time in an id, in Unix seconds; 0 if there is none."""
    try:
        return time.mktime(time.strptime(name[-20:-5], _STAMP))
    except (ValueError, OverflowError):
        return 0.0


def _nearest(text: str, known: list[str]) -> list[str]:
    """Ids that resemble the text, then the latest ones."""
    import difflib

    close = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    return close + [name for name in reversed(known) if name not in close]
