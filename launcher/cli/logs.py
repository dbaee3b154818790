"""`distlaunch logs RUN`."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from launcher import input_file, output, runs, status, storage
from launcher.agent.protocol import Event, Output
from launcher.cli import _observe
from launcher.cli._parameters import OutputOption, RunArgument  # noqa: TC001 - typer reads them
from launcher.errors import RequestError
from launcher.reader import StreamReader, lost_text, parse_ranks
from launcher.worker_output import WorkerOutput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from launcher.agent.protocol import Record
    from launcher.backends._base import Backend
    from launcher.reader import Wanted
    from launcher.runs import Run

_BLOCK_BYTES = 1 << 20
_POLL_S = 3.0
_LOOK_S = 0.1
_NO_NODE = -1
"""Stands for "nothing has come": what waits for the end of its line may have waited long enough."""


def logs(
    run: RunArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends; Ctrl-C only stops watching.")] = False,
    rank: Annotated[str, typer.Option(metavar="all|0,3-5", help="Only lines of these ranks.")] = "all",
    node: Annotated[Optional[int], typer.Option(metavar="N", help="Only lines from this node.", show_default=False)] = None,
    fmt: OutputOption = None,
) -> None:
    """Print what a run's workers wrote: their stdout to stdout, their stderr to stderr."""
    folder = _observe.folder(fmt)
    found = runs.find(folder, run)
    if found.tasks:
        raise RequestError(f"{found.id} is a job array", hint=f"distlaunch logs {found.id}/{found.tasks[0]}")
    while follow and _is_being_submitted(found):
        time.sleep(_LOOK_S)
        found = runs.find(folder, found.id)
    try:
        ranks = parse_ranks(rank)
    except ValueError:
        raise RequestError(f"rank {rank!r} is no list of ranks", hint="write all, or 0,3-5") from None
    if node is not None and not 0 <= node < len(found.hosts):
        raise RequestError(f"{found.id} has no node {node}", hint=f"nodes: 0 to {len(found.hosts) - 1}")
    workers = WorkerOutput(ranks, stdout=output.STDOUT)
    numbers = (runs.JOB_OUTPUT, *range(len(found.hosts)))
    readers = {number: StreamReader(ranks, number) for number in numbers if node in (None, number)}
    found = _observe.sent(found) if found.result is None or runs.as_before(found) else found
    for number, data in _blocks(found, readers, follow=follow):
        _show(readers[number].feed(data) if number in readers else (), number, workers, ranks)
        if workers.closed:
            raise output.StdoutClosedError
    for number, reader in readers.items():
        _show(reader.close(), number, workers, ranks)
    workers.close()
    if not workers.shown and ranks is not None:
        output.note(f"{found.id}: no line of rank {rank}")


def _is_being_submitted(run: Run) -> bool:
    return not run.submitted and (status.current(run) or {}).get("state") == "pending"


def _show(records: Iterable[Record], node: int, workers: WorkerOutput, ranks: Wanted | None) -> None:
    now = time.monotonic()
    for record in records:
        if isinstance(record, Output):
            workers.show(record, now)
        elif isinstance(record, Event):
            if record.name == "lines_lost" and (ranks is None or not ranks.isdisjoint(record.fields.get("ranks") or ())):
                workers.end_line()
                output.warn(f"node {node}: {lost_text(record.fields)}")
        elif ranks is None:
            workers.end_line()
            output.foreign("job" if node == runs.JOB_OUTPUT else str(node), record.data)
    workers.flush(now)


def _blocks(run: Run, nodes: Iterable[int], *, follow: bool) -> Iterator[tuple[int, bytes]]:
    """Blocks of the nodes' streams, from the run's folder; of all nodes from the backend, where not all is there yet."""
    paths = {node: run.stream_path(node) for node in nodes}
    ended = run.handle is None or run.result is not None
    if not ended and not follow:
        _observe.backend_of(run).refresh(run.handle or {})
    if ended or (not follow and any(path.exists() for path in paths.values())):
        for number, path in paths.items():
            yield from ((number, block) for block in _file_blocks(path))
            yield from ((number, block) for block in _latest_blocks(path.parent / "latest", number))
        return
    yield from _live_blocks(run, _observe.backend_of(run), follow=follow)


def _file_blocks(path: Path) -> Iterator[bytes]:
    with storage.read_errors(path), suppress(FileNotFoundError), input_file.open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _latest_blocks(folder: Path, node: int) -> Iterator[bytes]:
    """What a rank above its limit has written last, while its worker runs or where its agent was killed."""
    pipes = {path.stem for path in folder.glob("*.[12]")} if node >= 0 else ()  # for a moment, the newer one becomes the older
    for name in sorted(pipes):
        rank, pipe = name.split(".")
        output.warn(f"node {node}: lines of rank {rank} on {pipe} before these are not kept (--log-limit)")
        for number in "12":
            yield from _file_blocks(folder / f"{name}.{number}")


def _live_blocks(run: Run, backend: Backend[Any], *, follow: bool) -> Iterator[tuple[int, bytes]]:
    """What the backend's stream gives; to the run's end if `follow`, else until nothing comes any more."""
    handle = run.handle or {}
    stream = backend.open_stream(handle)
    report = status.report_of(run)
    readers = [StreamReader(frozenset(), node) for node in range(len(run.hosts))]
    unknown = tuple[str, ...]("unknown" for _ in run.hosts)
    polled, alive, answer = 0.0, unknown, unknown
    try:
        while not report.outcome(alive).final:
            chunks = stream.read(0.2 if follow else 2.0)
            for chunk in chunks:
                yield chunk.node, chunk.data
                for record in readers[chunk.node].feed(chunk.data) if 0 <= chunk.node < len(readers) else ():
                    report.add(chunk.node, record)
            if not chunks and not follow:
                return
            if not chunks:
                yield _NO_NODE, b""
            if chunks:
                answer = unknown
            elif time.monotonic() - polled > _POLL_S:
                # What was answered before counts, as nothing has come since: who has ended may have written right before that.
                alive, answer, polled = answer, backend.liveness(handle).nodes, time.monotonic()
    finally:
        stream.close()
