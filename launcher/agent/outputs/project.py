"""Working directories that stay from run to run, one per project: a run's files are laid over what is there.

A project's directory has `work`, where the workers start, `state.json` (what was sent last), `work.times`, a lock, and
in `runs` a file for each node that uses `work`, which its agent touches. A file that a run has changed is never lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from ..named_tuple import NamedTuple
from ..system import files, flock
from ..system.files import SENT_MTIME_S
from . import times
from .times import Times

_LOCK_S = 60.0
_SILENT_S = 90.0
"""Agents touch their files every 10 s."""

_LAST_S = 1.0
_BLOCK_BYTES = 1 << 20

Entry = Tuple[str, str, str, str]
"""Path, mode or `link`, the link's target, SHA-256, as in `ssh.user_files.combined`."""


class Prepared(NamedTuple):
    """Where a run's workers start."""

    work: str
    """The project's directory, or the run's own if a run with other files uses that."""

    notes: List[str]
    """What the user should know."""


class ProjectError(OSError):
    """The directory cannot be prepared."""


def prepare(project: str, run: str, node: int, digest: str, sent: str, entries: Iterable[Entry], own: str) -> Prepared:
    """Move the files in `sent` to the project's working directory; to `own` if another run uses that with others."""
    import shutil

    for name in ("work", "runs"):
        os.makedirs(os.path.join(project, name), mode=0o700, exist_ok=True)
    with open(os.path.join(project, "lock"), "ab") as lock:
        _lock(lock, project)
        state = _read(os.path.join(project, "state.json"))
        work = os.path.join(project, "work")
        now = {path: [mode, link, sha] for path, mode, link, sha in entries}
        known: Dict[str, List[Any]] = state.get("files", {})
        same, new = _times(known, now, times.parsed(times.read(work)), _clock(project).st_mtime_ns)
        times.put(sent, same)
        if state.get("digest") not in (None, digest) and (user := _user(project, run)):
            if os.path.isdir(own):  # another node of the run was faster
                shutil.rmtree(sent, ignore_errors=True)
            else:
                from . import own as own_directory  # few runs have one

                times.put(sent, new)
                times.write(own, {**same, **new})
                own_directory.make(
                    sent, own, work, lambda path: path in known and _as_sent(os.path.join(work, path), known[path])
                )
            where = f"{own}, but what it writes to directories that were there is in {work}"
            return Prepared(own, [f"{user} uses {work} with other files: what this run writes stays in {where}"])
        touch(project, run, node)
        if state.get("digest") != digest:
            _record(project, "", {path: entry[:3] for path, entry in known.items()})  # until all are in place
            _forget_bytecode(work, sent)
        gone = {path: known[path] for path in set(known) - set(now)}
        _remove(work, gone)  # first: a link may take a directory's place
        kept = [note for path in now if (note := _lay(sent, work, path, known.get(path), now[path], run))]
        shutil.rmtree(sent, ignore_errors=True)
        times.write(work, {**same, **new})
        _record(project, digest, now)
        times.put(work, new)  # last: a time that is not recorded would be that of a run's file
        return Prepared(work, kept)


def own_in_volume(project: str, run: str) -> str:
    """The directory of a run of its own beside a project's on a volume, which it has if that is used."""
    return f"{project}/work-{run}"


def still_has(project: str, run: str, node: int, digest: str) -> bool:
    """Whether all files with that digest are those laid out last; then this node uses them."""
    with open(os.path.join(project, "lock"), "ab") as lock:
        _lock(lock, project)
        if _read(os.path.join(project, "state.json")).get("digest") != digest:
            return False
        touch(project, run, node)
        return True


def _record(project: str, digest: str, sent: Dict[str, List[str]]) -> None:
    text = json.dumps({"digest": digest, "files": sent}).encode("ascii")
    files.write_whole(os.path.join(project, "state.json"), text, 0o600)


def _times(known: Dict[str, List[Any]], now: Dict[str, List[str]], before: Times, clock: int) -> Tuple[Times, Times]:
    """The times of files that are still as in an earlier launch that has changed them, and of those that this one does.

    The former are added to `known`.
    """
    same, new = {}, {}
    for path, (time_ns, sha) in before.items():
        if path in known and known[path][2] == sha:
            known[path].append(time_ns)
    for path, (mode, _, sha) in now.items():
        last = known.get(path, ["", "", ""])
        if last[2] == sha and len(last) > 3:
            same[path] = (last[3], sha)
        elif last[2] != sha and known and mode != "link" and "\n" not in path:
            new[path] = (clock, sha)
    return same, new


def _lock(lock: BinaryIO, project: str) -> None:
    limit = time.monotonic() + _LOCK_S
    while not flock.taken(lock):
        if time.monotonic() > limit:
            raise ProjectError(11, f"another run has been preparing it for {_LOCK_S:.0f} s", project)
        time.sleep(0.05)


def _read(path: str) -> Dict[str, Any]:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return dict(json.load(file))
    return {}


# -- who uses it ------------------------------------------------------------------------------------------------------


def touch(project: str, run: str, node: int) -> None:
    """Note that this node of the run uses the directory."""
    with contextlib.suppress(OSError), open(_mark(project, run, node), "ab"):
        os.utime(_mark(project, run, node))


@contextlib.contextmanager
def used(project: str, run: str, node: int, every_s: float) -> Iterator[None]:
    """Note again and again that this node uses the directory."""
    import threading  # most callers need no thread

    over = threading.Event()

    def note() -> None:
        touch(project, run, node)
        while not over.wait(every_s):
            touch(project, run, node)

    thread = threading.Thread(target=note, daemon=True, name="project")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_LAST_S)  # a mark that is made later would outlive the run


def leave(project: str, run: str, node: int) -> None:
    """Note that it does not any more."""
    with contextlib.suppress(OSError):
        os.unlink(_mark(project, run, node))


def _mark(project: str, run: str, node: int) -> str:
    return os.path.join(project, "runs", f"{run}.{node}")


def _clock(project: str) -> os.stat_result:
    """A file that has changed right now, by the clock of the disk."""
    clock = os.path.join(project, "lock")
    os.utime(clock)
    return os.stat(clock)


def _user(project: str, run: str) -> Optional[str]:
    """Another run that uses the directory."""
    now = _clock(project).st_mtime
    for entry in list(os.scandir(os.path.join(project, "runs"))):
        with contextlib.suppress(FileNotFoundError):
            other = entry.name.rpartition(".")[0]
            if now - entry.stat().st_mtime > _SILENT_S:
                os.unlink(entry.path)
            elif other != run:
                return other
    return None


# -- files ------------------------------------------------------------------------------------------------------------


def _lay(sent: str, work: str, path: str, before: Optional[List[Any]], now: List[str], run: str) -> str:
    """Put one file in its place. Returns a note if there is a version that a run has written."""
    target, note = os.path.join(work, path), ""
    _make_way(work, os.path.dirname(path), run)
    if os.path.lexists(target) and not _as_sent(target, before):
        if before is not None and before[:3] == now:
            return f"{path} stays as a run has changed it"
        aside = f"{target}.before-{run}"
        os.rename(target, aside)
        note = f"{path} was changed by a run and here: the run's version is now {os.path.basename(aside)}"
    os.rename(os.path.join(sent, path), target)
    return note


def _make_way(work: str, below: str, run: str) -> None:
    """Make the directories of a path; what is in the way is renamed."""
    done = work
    for part in below.split("/") if below else ():
        done = os.path.join(done, part)
        if os.path.lexists(done) and (os.path.islink(done) or not os.path.isdir(done)):
            os.rename(done, f"{done}.before-{run}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(done, 0o755)


def _as_sent(target: str, before: Optional[List[Any]]) -> bool:
    """Whether a file is as a launcher has sent it."""
    if os.path.islink(target):
        return before is not None and before[0] == "link" and os.readlink(target) == before[1]
    about = os.lstat(target)
    if before is None or os.path.isdir(target):
        return False
    return about.st_mtime_ns == SENT_MTIME_S * 10**9 or (about.st_mtime_ns in before[3:] and _has(target, before[2]))


def _has(path: str, sha: str) -> bool:
    """Whether a file has that content: a run may have written it at the time of the launch, as a coarse clock tells."""
    with contextlib.suppress(OSError):
        return hash_of(path) == sha
    return False


def hash_of(path: str) -> str:
    """The SHA-256 of a file's content."""
    import hashlib

    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def _remove(work: str, before: Dict[str, List[Any]]) -> None:
    """Remove files that are not sent any more, unless a run has changed them; then directories without others."""
    import shutil

    emptied: Set[str] = set()
    own: Dict[str, bool] = {}
    for path, told in before.items():
        below, target = os.path.dirname(path), os.path.join(work, path)
        if below not in own:
            own[below] = _is_own(work, below)
        with contextlib.suppress(OSError):
            if own[below] and _as_sent(target, told):
                os.unlink(target)
                while below and below not in emptied:
                    emptied.add(below)
                    below = os.path.dirname(below)
    for below in sorted(emptied, reverse=True):  # those within it first
        target = os.path.join(work, below)
        with contextlib.suppress(OSError):  # it is not empty
            if os.listdir(target) == ["__pycache__"]:
                shutil.rmtree(os.path.join(target, "__pycache__"))
            os.rmdir(target)


def _is_own(work: str, below: str) -> bool:
    """Whether no link leads to that directory: what one leads to are other files."""
    above = os.path.normpath(os.path.join(os.path.realpath(work), below))
    return os.path.realpath(above) == above


def _forget_bytecode(work: str, sent: str) -> None:
    """Remove cached bytecode: most files that were sent have one time, and Python would take the old for current."""
    import shutil

    for above, _, _ in os.walk(sent):
        below = os.path.relpath(above, sent)
        if _is_own(work, below):
            shutil.rmtree(os.path.join(work, below, "__pycache__"), ignore_errors=True)
