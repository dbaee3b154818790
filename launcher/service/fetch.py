"""Fetch files that a run's workers have written, from one node or all."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import backends, output
from launcher.agent.outputs import signs
from launcher.errors import BackendUnavailableError, CommandError, LaunchError, RequestError, StorageError
from launcher.service import fetch_node, observe
from launcher.service.fetch_node import Files, Node, Progress
from launcher.settings import config
from launcher.settings.options import JobOptions
from launcher.system import amounts
from launcher.system.hosts import places
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.backends._base import AnyBackend
    from launcher.backends._outputs import Outputs
    from launcher.results.files import Fetched
    from launcher.runs.records import Run

ALL = "all"
_SHOWN = 5
_LOOK_S = 0.2
_CONNECTING, _TRANSFERRING = 16, 4
"""How many nodes at once."""


def nodes_of(run: Run, text: str) -> list[int]:
    """The node ranks that the text names: `all`, or one. Raises `RequestError`."""
    count = len(run.hosts)
    if text == ALL and run.elastic:
        return [node["node"] for node in observe.state_of(run)["nodes"] if node["started"] is not None]
    if text == ALL:
        return list(range(count))
    if not (text.isascii() and text.isdecimal()) or int(text) >= count:
        raise RequestError(f"{run.id} has no node {text!r}", hint=f"nodes: 0 to {count - 1}, or {ALL}")
    return [int(text)]


def target(run: Run, to: str | None) -> Path:
    """The directory for the files: `to`, or one of the run's name in the working directory."""
    path = Path(to or run.id.replace("/", "-"))
    if path.exists() and not path.is_dir():
        raise RequestError(f"--to {str(path)!r} is a file, not a directory", hint="--to DIR")
    return path


def fetch(run: Run, patterns: Sequence[str], to: Path, nodes: str) -> Fetched:
    """Fetch all files that match one of the patterns, or all that were not sent if there are none.

    `nodes`: as for `nodes_of`. Raises `RequestError` if nothing matches. What cannot be fetched (a node that cannot be
    reached, a file that changes twice while it is read) is named in an error once all else is here.
    """
    return Transfer(run, patterns, to, nodes).fetched()


class Transfer:
    """Fetches from nodes of one run, from several at once, each once it has begun."""

    def __init__(self, run: Run, patterns: Sequence[str], to: Path, nodes: str) -> None:
        self._run = run = observe.sent(run)
        if run.handle is None:
            raise RequestError(f"{run.id} was never started", hint=f"distlaunch status {run.id}")
        self._backend: AnyBackend = observe.backend_of(run)
        if not self._backend.has_outputs:
            raise BackendUnavailableError(f"{self._backend.name} cannot fetch files")
        if self._backend.sees_outputs() and not patterns:
            hint = "name what to copy: distlaunch fetch RUN 'results/**'"
            raise RequestError(f"{run.id} has written its files where you can read them", hint=hint)
        self._patterns, self._to, self._nodes = patterns, to, nodes
        self._begun: dict[int, Question[Files]] = {}
        self._progress, self._told = Progress(), False
        self._connecting = threading.BoundedSemaphore(_CONNECTING)
        self._transferring = threading.BoundedSemaphore(_TRANSFERRING)

    def begin(self, rank: int, until: Callable[[], None] | None = None) -> None:
        """Begin to fetch from that node, or to fetch again.

        `until`: the node's agent waits for us. It is called once nothing more is read, and then the agent may end.
        """
        self._begun[rank] = Question(partial(self._fetch, rank, until), "fetch")

    def fetched(self) -> Fetched:
        """Begin with nodes that have not begun, and wait for all."""
        ranks = nodes_of(self._run, self._nodes)
        for rank in [0] if self._backend.shares_outputs else ranks:
            if rank not in self._begun:
                self.begin(rank)
        try:
            while not all(begun.answered(_LOOK_S) for begun in self._begun.values()):
                pass
        except BaseException:
            self._progress.given_up = True
            raise
        return self._combined()

    def _fetch(self, rank: int, until: Callable[[], None] | None) -> Files:
        if until is None:
            with self._transferring:
                outputs: Outputs = self._backend.open_outputs(self._run.known, rank)
                try:
                    return self._from(outputs, rank)
                finally:
                    outputs.close()
        connected: Outputs | None = None
        found: Files | None = None
        try:
            with self._connecting:  # the agent waits while we are connected
                connected = self._backend.open_outputs(self._run.known, rank)
            with self._transferring:
                found = self._from(connected, rank)
            if found.missing():
                self._tell(rank, CommandError(found.missing()))
        except LaunchError as error:
            if connected is not None:
                self._tell(rank, error)
            raise
        else:
            return found
        finally:
            until()
            if connected is not None:
                if found is not None and not found.missing():  # else the agent waits a while for another try
                    with suppress(LaunchError):
                        connected.release()
                connected.close()

    def _tell(self, rank: int, error: LaunchError) -> None:
        """Say, once for all nodes, that files can still be fetched: the error itself is raised after the run's end."""
        if not self._told and not self._progress.given_up:
            self._told = True
            output.warn(
                f"not fetched from node {rank}: {error.message}; distlaunch fetch {self._run.id} --node {self._nodes} "
                f"can try again for {signs.ALONE_S:.0f} s, or {signs.ALONE_STOPPED_S:.0f} s after a request to end"
            )

    def _from(self, outputs: Outputs, rank: int) -> Files:
        below = "" if self._backend.shares_outputs or self._nodes != ALL else _directory(self._run.hosts, rank)
        return fetch_node.fetch(outputs, Node(rank, below), self._patterns, self._to, self._progress)

    def _combined(self) -> Fetched:
        found: list[Files] = []
        failed: dict[int, LaunchError] = {}
        for rank, begun in sorted(self._begun.items()):
            try:
                found.append(begun.answer())
            except StorageError:
                raise  # ours: no node is at fault
            except LaunchError as error:
                failed[rank] = error
        if failed and not found:
            raise next(iter(failed.values()))
        self._check(found, failed)
        return {
            "run": self._run.id,
            "to": str(self._to),
            "files": [file for each in found for file in each.files],
            "left_out": [left for each in found for left in each.left_out],
            "nodes": [
                {"node": each.node.rank, "output_dir": each.directory, "to": str(self._to / each.node.below)}
                for each in found
            ],
        }

    def _check(self, found: Sequence[Files], failed: Mapping[int, LaunchError]) -> None:
        """Raise an error if something is missing."""
        run, missing = self._run, [each.missing() for each in found if each.missing()]
        files = sum(len(each.files) for each in found)
        here = f"{amounts.counted(files, 'other file')} are in {str(self._to)!r}"
        if failed:
            why = next(iter(failed.values()))
            raise CommandError(
                f"not fetched from {places(sorted(failed), run.hosts.__getitem__)}: {why.message}",
                hint=f"{here}; distlaunch fetch {run.id} --node {next(iter(failed))} tries it again",
            )
        if missing:
            raise CommandError("; ".join(missing), hint=f"{here}; fetch again")
        if not files:
            what = " or ".join(map(repr, self._patterns)) or "no files that the run has written"
            where = found[0].directory
            said = f"nothing matches {what} in {where}" if self._patterns else f"there are {what} in {where}"
            skipped = ", ".join(f"{each['path']} is {each['why']}" for each in found[0].left_out[:_SHOWN])
            there = ", ".join(found[0].there)
            hint = skipped or (f"there: {there}" if there else "the directory is empty")
            raise RequestError(f"{run.id}: {said}", hint=hint)


def default_nodes(run: Run, given: int | str | None = None) -> str:
    """The nodes that were given, else the setting `fetch_node` for the run's cluster."""
    if given is not None:
        return str(given)
    settings = config.load()
    known = run.cluster if run.cluster in settings.cluster_names() else None
    profile = settings.cluster(known, lambda name: backends.load(name).options) if known else None
    return str(settings.resolve(JobOptions, cluster=profile)["fetch_node"].value)


def release(run: Run, nodes: str) -> None:
    """Tell the nodes' agents that nothing more will be fetched, as far as they can be reached."""
    backend = observe.backend_of(run)
    if not backend.loses_outputs:
        return
    room = threading.BoundedSemaphore(_CONNECTING)

    def tell(rank: int) -> None:
        with room, suppress(LaunchError):
            outputs: Outputs = backend.open_outputs(run.known, rank)
            try:
                outputs.release()
            finally:
                outputs.close()

    told = [Question(partial(tell, rank), "release") for rank in nodes_of(run, nodes)]
    while not all(each.answered(_LOOK_S) for each in told):
        pass


def _directory(hosts: Sequence[str], rank: int) -> str:
    """The directory for a node's files: the host's name if it is one, and only one node's."""
    host = hosts[rank]
    is_name = host not in ("", ".", "..") and all(char.isalnum() or char in "-_." for char in host)
    return "" if len(hosts) == 1 else host if is_name and hosts.count(host) == 1 else f"node-{rank}"
