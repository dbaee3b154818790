"""Fetch files that a run's workers have written: whole, verified, and continued where a transfer stopped."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher import output
from launcher.errors import BackendUnavailableError, CommandError, RequestError
from launcher.service import observe
from launcher.system import amounts
from launcher.system.partial import Partial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.backends._base import AnyBackend
    from launcher.backends._outputs import Listed, Outputs
    from launcher.results.files import Fetched, File, LeftOut
    from launcher.runs.records import Run

_SHOWN = 5
_TRIES = 2


class _Node(NamedTuple):
    """A node whose files are fetched, and the directory here for them, relative to the one for all."""

    rank: int
    below: str


class _Task(NamedTuple):
    """A file to fetch."""

    node: _Node
    outputs: Outputs
    file: Listed

    @property
    def path(self) -> str:
        return os.path.join(self.node.below, self.file.name)


def nodes_of(run: Run, text: str) -> list[int]:
    """The node ranks that the text names: `all`, or one. Raises `RequestError`."""
    count = len(run.hosts)
    if text == "all":
        return list(range(count))
    if not (text.isascii() and text.isdecimal()) or int(text) >= count:
        raise RequestError(f"{run.id} has no node {text!r}", hint=f"nodes: 0 to {count - 1}, or all")
    return [int(text)]


def target(run: Run, to: str | None) -> Path:
    """The directory for the files: `to`, or one of the run's name in the working directory."""
    path = Path(to or run.id.replace("/", "-"))
    if path.exists() and not path.is_dir():
        raise RequestError(f"--to {str(path)!r} is a file, not a directory", hint="--to DIR")
    return path


def fetch(run: Run, patterns: Sequence[str], to: Path, nodes: Sequence[int]) -> Fetched:
    """Fetch all files that match one of the patterns, or all that were not sent if there are none.

    Raises `RequestError` if nothing matches. A file that changes twice while it is read is not fetched, and an error
    names it once all others are here.
    """
    run = observe.sent(run)
    if run.handle is None:
        raise RequestError(f"{run.id} was never started", hint=f"distlaunch status {run.id}")
    backend = observe.backend_of(run)
    if not backend.has_outputs:
        raise BackendUnavailableError(f"{backend.name} cannot fetch files")
    if backend.shares_outputs and not patterns:
        hint = "name what to copy: distlaunch fetch RUN 'results/**'"
        raise RequestError(f"{run.id} has written its files where you can read them", hint=hint)
    opened: list[Outputs] = []
    try:
        tasks, left_out = _listed(run, backend, patterns, _places(run, backend, nodes), opened)
        files = _transferred(tasks, to, left_out)
    finally:
        for outputs in opened:
            outputs.close()
    return {"run": run.id, "to": str(to), "files": files, "left_out": left_out}


def release(run: Run, node: int) -> None:
    """Tell the node's agent that nothing more will be fetched, if it waits for that."""
    backend = observe.backend_of(run)
    if backend.has_outputs and not backend.shares_outputs:
        outputs: Outputs = backend.open_outputs(run.known, node)
        try:
            outputs.release()
        finally:
            outputs.close()


def _places(run: Run, backend: AnyBackend, nodes: Sequence[int]) -> list[_Node]:
    """One directory per host if there are several; all files are in one place if the nodes share it."""
    if backend.shares_outputs:
        return [_Node(0, "")]
    if len(nodes) == 1:
        return [_Node(nodes[0], "")]
    known = run.hosts
    names = [host if _is_name(host) and known.count(host) == 1 else f"node-{rank}" for rank, host in enumerate(known)]
    return [_Node(rank, names[rank]) for rank in nodes]


def _is_name(host: str) -> bool:
    return host not in ("", ".", "..") and all(char.isalnum() or char in "-_." for char in host)


def _listed(
    run: Run, backend: AnyBackend, patterns: Sequence[str], nodes: Sequence[_Node], opened: list[Outputs]
) -> tuple[list[_Task], list[LeftOut]]:
    tasks: dict[str, _Task] = {}
    left_out: dict[tuple[int, str], LeftOut] = {}
    where, there = "", ""
    for node in nodes:
        output.progress(f"listing the files of node {node.rank}")
        outputs: Outputs = backend.open_outputs(run.known, node.rank)
        opened.append(outputs)
        for pattern in patterns or ("",):
            listing = outputs.listed(pattern)
            for file in listing.files:
                task = _Task(node, outputs, file)
                tasks[task.path] = task
            for name, why in listing.left_out:
                left_out[node.rank, name] = {"path": name, "node": node.rank, "why": why}
            where, there = where or listing.directory, there or ", ".join(listing.there)
    if not tasks:
        what = " or ".join(map(repr, patterns)) or "no files that the run has written"
        said = f"{run.id}: nothing matches {what} in {where}" if patterns else f"{run.id}: there are {what} in {where}"
        skipped = ", ".join(f"{each['path']} is {each['why']}" for each in list(left_out.values())[:_SHOWN])
        raise RequestError(said, hint=skipped or (f"there: {there}" if there else "the directory is empty"))
    return list(tasks.values()), list(left_out.values())


def _transferred(tasks: Sequence[_Task], to: Path, left_out: list[LeftOut]) -> list[File]:
    """Fetch the files one after the other; files that are gone meanwhile are added to `left_out`."""
    total, done = sum(task.file.size for task in tasks), 0
    files: list[File] = []
    changed: list[str] = []
    for number, task in enumerate(tasks):
        told = f"fetching {task.path} ({number + 1} of {len(tasks)}, {amounts.size(total)})"

        def moved(count: int, told: str = told, before: int = done) -> None:
            output.progress(told, (before + count, total))

        moved(0)
        try:
            transferred = _one(task, to / task.path, moved)
        except RequestError as error:
            left_out.append({"path": task.file.name, "node": task.node.rank, "why": error.message})
            continue
        if transferred is None:
            changed.append(task.path)
        else:
            size = (to / task.path).stat().st_size
            files.append({"path": task.path, "bytes": size, "node": task.node.rank, "transferred": transferred})
        done += task.file.size
    if changed:
        names = ", ".join(changed[:_SHOWN]) + (f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else "")
        raise CommandError(
            f"changed while they were read, twice, and not fetched: {names}",
            hint=f"{amounts.counted(len(files), 'other file')} are in {str(to)!r}; fetch again when the run "
            "does not write them",
        )
    return files


def _one(task: _Task, path: Path, moved: Callable[[int], None]) -> bool | None:
    """Fetch one file. Returns whether it was transferred, as it may be here already; None: it changes all the time."""
    if _is_here(path, task.file):
        return False
    part = Partial(path)
    try:
        offset, tries = part.resume(task.file.size), 0

        def take(block: bytes) -> None:
            part.write(block)
            moved(part.size)

        while True:
            ending = task.outputs.read(task.file.name, offset, take)
            if not ending.changed and (part.size, part.sha256.hexdigest()) == (ending.size, ending.sha256):
                part.finish(ending.mtime_ns)
                return True
            part.restart()
            tries += offset == 0 or ending.changed  # what was here may be of another version
            if tries == _TRIES:
                return None
            offset = 0
            if ending.changed:
                output.warn(f"{task.path} changed while it was read; reading it again")
    finally:
        part.close()


def _is_here(path: Path, file: Listed) -> bool:
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(about.st_mode) and (about.st_size, about.st_mtime_ns) == (file.size, file.mtime_ns)
