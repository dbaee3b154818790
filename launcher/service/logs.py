"""Output of a run's workers: from the run's directory, or from its backend while the directory is incomplete."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher import output
from launcher.errors import BackendUnavailableError, LaunchError, RequestError
from launcher.results import run as results
from launcher.runs import directories, moves, restarts, status, unread
from launcher.runs.liveness import Liveness, NodeState
from launcher.runs.reader import StreamReader
from launcher.runs.sources import JOB_OUTPUT, Source
from launcher.service import bringing, observe
from launcher.system import input_file, storage

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from pathlib import Path

    from launcher.backends._base import AnyBackend
    from launcher.runs.handle import Handle
    from launcher.runs.outcome import Outcome
    from launcher.runs.reader import Wanted
    from launcher.runs.records import Run

_BLOCK_BYTES = 1 << 20
_FEW_S = 5.0
_POLL_S = 3.0
_LOOK_S = 0.1


def readable(found: Run, *, follow: bool) -> Run:
    """The run, if its streams can be read. With `follow`, wait for a submission in progress.

    Raises `RequestError` for a run that no process submits any more.
    """
    if found.tasks:
        raise RequestError(f"{found.id} is a job array", hint=f"distlaunch logs {found.id}/{found.tasks[0]}")
    if found.private:
        raise RequestError(f"{found.id}: {found.private}", hint=f"its state: distlaunch status {found.id}")
    while follow and _is_being_submitted(found):
        from launcher.service import attaching  # few runs are

        if attaching.is_undecided(found):
            found = _decided(found)
        else:
            time.sleep(_LOOK_S)
            found = directories.again(found)
    return found


def _decided(found: Run) -> Run:
    """A run on several clusters whose launcher has ended, as it is now: one of them may have taken it by itself."""
    from launcher.service import race_left  # few runs need it

    if not found.race or not found.race["claim"]:
        where = "waits on several clusters, and its launcher, which would decide, has ended"
        raise RequestError(f"{found.id} {where}", hint=f"distlaunch attach {found.id}")
    time.sleep(_POLL_S)
    return race_left.caught_up(directories.again(found))


def _is_being_submitted(run: Run) -> bool:
    return not run.submitted and (status.current(run) or results.nothing("unknown"))["state"] == "pending"


def nodes_of(run: Run, node: int | None) -> Iterable[int]:
    """That node, or all, also those that the run had only before it was moved. Raises `RequestError`."""
    count = len(moves.hosts(run))
    if node is not None and not 0 <= node < count:
        raise RequestError(f"{run.id} has no node {node}", hint=f"nodes: 0 to {count - 1}")
    return range(count) if node is None else (node,)


def blocks(
    run: Run, nodes: Iterable[Source], *, follow: bool, ranks: Wanted | None = None
) -> Iterator[tuple[Source | None, bytes]]:
    """Blocks of the nodes' streams from the run's directory, or of all nodes from the backend while that is incomplete.

    A block without a source means that all that has arrived was yielded. Of a large run, only the streams of `ranks`
    may be there.
    """
    nodes = [*nodes]
    for former in moves.formers(run):
        for number in nodes:
            yield from ((number, block) for block in former_blocks(former, number))
    paths = {node: run.stream_path(node) for node in nodes if node == JOB_OUTPUT or node < len(run.hosts)}
    if not paths and not follow:
        return
    run = observe.sent(run) if run.result is None or restarts.as_before(run) else run
    bringing.for_logs(run, paths, ranks, follow=follow)
    over = run.handle is None or run.result is not None
    if not over and not follow:
        _refresh(run, paths.values())
    if over or (not follow and any(path.exists() for path in paths.values())):
        for number, path in paths.items():
            yield from ((number, block) for block in _file_blocks(path))
            yield from ((number, block) for block in _latest_blocks(path.parent / "latest", number))
        return
    del paths  # of many nodes, while they are followed
    offsets: Counter[int] = Counter()
    while (ended := (yield from _live_blocks(run, observe.backend_of(run), offsets, follow=follow))) is not None:
        if not follow or (started := _started_again(run, ended)) is None:
            return
        run = started


def _started_again(run: Run, ended: Outcome) -> Run | None:
    """The run's next attempt, if another process starts it again after this end; None if it has ended for good."""
    while (now := directories.again(run)).attempt == run.attempt or not now.submitted:
        if not restarts.expected(now, ended):
            return None
        time.sleep(_LOOK_S)
    return now


def _refresh(run: Run, paths: Iterable[Path]) -> None:
    """Have the backend bring what is new. What is here is shown even if its cluster does not answer."""
    try:
        observe.backend_of(run).refresh(run.known)
    except LaunchError as error:
        if not any(path.exists() for path in paths):
            raise
        output.warn(f"{error.message}; this is what came before")


def _file_blocks(path: Path) -> Iterator[bytes]:
    with storage.read_errors(path), suppress(FileNotFoundError), input_file.open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def former_blocks(former: Run, source: Source) -> Iterator[bytes]:
    """The stream of a run where it was before. A line that was cut off there ends."""
    block = b""
    for block in _file_blocks(former.stream_path(source)):
        yield block
    if block and not block.endswith(b"\n"):
        yield b"\n"


def _latest_blocks(directory: Path, node: Source) -> Iterator[bytes]:
    """The latest output of a rank above its log limit, while its worker runs or if its agent was killed."""
    # At times only one of the two files exists.
    pipes = {path.stem for path in directory.glob("*.[12]")} if node != JOB_OUTPUT else ()
    for name in sorted(pipes):
        rank, pipe = name.split(".")
        output.warn(f"node {node}: lines of rank {rank} on {pipe} before these are not kept (--log-limit)")
        for number in "12":
            yield from _file_blocks(directory / f"{name}.{number}")


class _Nodes:
    """The nodes of a run that is followed, as its cluster sees them."""

    def __init__(self, backend: AnyBackend, handle: Handle) -> None:
        self._backend, self._handle = backend, handle
        self._trouble = ""

    def states(self) -> Liveness | None:
        """Their states; None while the cluster is not reached, which is printed once."""
        try:
            states = self._backend.liveness(self._handle)
        except BackendUnavailableError as error:
            if self._trouble != error.message:
                output.warn(error.message)
            self._trouble = error.message
            return None
        self._trouble = ""
        return states


def _live_blocks(
    run: Run, backend: AnyBackend, offsets: Counter[int], *, follow: bool
) -> Generator[tuple[Source | None, bytes], None, Outcome | None]:
    """Blocks from the backend's stream: until the run ends if `follow`, else what arrives in a few seconds.

    `offsets`: by node, how many bytes came before; it counts on. Returns how the run has ended, if it has.
    """
    handle = run.known
    stream = backend.open_stream(handle, dict(offsets))
    report = status.report_of(run)
    readers = [StreamReader(frozenset(), node) for node in range(len(run.hosts))]
    unknown = Liveness(nodes=tuple[NodeState, ...]("unknown" for _ in run.hosts))
    polled, alive, answer = 0.0, unknown, unknown
    nodes = _Nodes(backend, handle)
    limit = time.monotonic() + _FEW_S
    try:
        while not (outcome := unread.added_to(report, alive).outcome(alive.nodes)).final:
            chunks = stream.read(0.2 if follow else 2.0)
            for chunk in chunks:
                yield chunk.node, chunk.data
                if isinstance(chunk.node, int):
                    offsets[chunk.node] += len(chunk.data)
                    for record in readers[chunk.node].feed(chunk.data):
                        report.add(chunk.node, record)
            if not follow and (not chunks or time.monotonic() > limit):
                return None
            yield None, b""
            if chunks:
                answer = unknown
            elif time.monotonic() - polled > _POLL_S:
                # Use the previous answer, as nothing has arrived since: a node may write right before it ends.
                alive, answer, polled = answer, nodes.states() or answer, time.monotonic()
        return outcome
    finally:
        stream.close()
