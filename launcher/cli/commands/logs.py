"""`distlaunch logs RUN`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.agent.protocol import Event, Output
from launcher.cli.parameters import OnOption, OutputOption, RunArgument, flag
from launcher.console import json_lines
from launcher.errors import RequestError
from launcher.runs.reader import MarkedLines, StreamReader, lost_text, parse_ranks
from launcher.runs.sources import JOB_OUTPUT, Source
from launcher.service import finding, observe
from launcher.service import logs as service

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.agent.protocol import Record
    from launcher.console.worker_output import WorkerOutput
    from launcher.runs.reader import Wanted


def logs(  # noqa: PLR0917 - one per option
    run: RunArgument,
    follow: Annotated[
        bool, flag("-f", "--follow", help="Continue until the run ends; Ctrl-C only stops watching.")
    ] = False,
    rank: Annotated[str, flag(metavar="all|0,3-5", help="Show only lines of these ranks.")] = "all",
    node: Annotated[Optional[int], flag(metavar="N", help="Show only lines from this node.")] = None,
    exit_code: Annotated[
        bool, flag("--exit-code", help="Exit with the run's exit code; 5 if it has not ended.")
    ] = False,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> int:
    """Print what a run's workers wrote: their stdout to stdout, their stderr to stderr.

    $ distlaunch logs --follow last
    $ distlaunch logs --rank 0,3-5 train-20250101-120000-abcd
    """
    directory = observe.directory(fmt, lines=True)
    if output.as_json():  # one object for all lines would have to be kept until the last one
        output.setup(fmt="jsonl")
    found = service.readable(finding.find(directory, run, on), follow=follow)
    try:
        ranks = parse_ranks(rank)
    except ValueError:
        raise RequestError(f"rank {rank!r} is not a list of ranks", hint="write all, or 0,3-5") from None
    numbers = service.nodes_of(found, node)
    workers = json_lines.or_plain(ranks, stdout=output.STDOUT)
    json_lines.begin(found)
    sources: list[Source] = [*([JOB_OUTPUT] if node is None else ()), *numbers]
    readers = {source: StreamReader(ranks, source) for source in sources}
    for number, data in service.blocks(found, readers, follow=follow, ranks=ranks):
        _show(readers[number].feed_marked(data) if number in readers else (), number, workers, ranks)
        if workers.closed:
            return observe.exit_code(found) if exit_code else 0
    for number, reader in readers.items():
        _show(reader.close(), number, workers, ranks)
    workers.close()
    if not workers.shown and ranks is not None:
        output.note(f"{found.id}: no line of rank {rank}")
    return observe.exit_code(found) if exit_code else 0


def _show(
    records: Iterable[Record | MarkedLines], node: Source | None, workers: WorkerOutput, ranks: Wanted | None
) -> None:
    now = time.monotonic()
    for record in records:
        if isinstance(record, Output):
            workers.show(record, now)
        elif isinstance(record, MarkedLines):
            workers.show_lines(record, now)
        elif isinstance(record, Event):
            if isinstance(node, int):
                workers.event(node, record)
            if record.name == "lines_lost" and (
                ranks is None or not ranks.isdisjoint(record.fields.get("ranks") or ())
            ):
                workers.end_line()
                output.warn(f"node {node}: {lost_text(record.fields)}")
        elif ranks is None:
            workers.end_line()
            output.foreign(str(node), record.data)
    workers.flush(now)
