"""Events of a run, live or from its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from distlaunch._result import Cause
from launcher.agent import protocol
from launcher.errors import SpecError
from launcher.runs import records, status
from launcher.runs.reader import StreamReader, parse_ranks
from launcher.runs.start_progress import StartProgress
from launcher.service import logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from launcher.runs.reader import Wanted
    from launcher.runs.start_progress import Phase

_LONGEST_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged:
    """The state of the run has changed."""

    state: str
    detail: str = ""
    """Why the run is in this state, if there is more to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The run's progress towards its first worker, also after a restart."""

    phase: Phase
    """`queued` (no agent runs), `starting` (some run), `importing` (they import torch), `meeting` (they wait)."""

    done: int
    """Number of nodes that have completed the phase."""

    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """A line that a worker wrote."""

    rank: int
    node: int
    text: str
    """Without its line end. Bytes that are not UTF-8 are decoded with `surrogateescape`."""

    stderr: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseKnown:
    """The cause of the run's failure is known, or better known than before."""

    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """Any other event of a node's agent; docs/agent-stream.md lists names and fields."""

    node: int
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


Event: TypeAlias = StateChanged | Progress | WorkerLine | CauseKnown | NodeEvent


def of_streams(run: records.Run, *, follow: bool) -> Iterator[Event]:
    """Events of the run's streams: in order of time if it is followed, node by node if it has ended."""
    live = follow and run.result is None
    report, state, cause = status.report_of(run), "", None
    start = StartProgress(len(run.hosts))
    present = start.present() if live else None
    if present:
        yield Progress(**present._asdict())
    for node, record in _records(run, None, None, follow=follow):
        if isinstance(record, WorkerLine):
            yield record
            continue
        yield NodeEvent(node=node, name=record.name, fields=record.fields)
        report.add(node, record)
        if node < len(run.hosts):  # else one that it had before it was moved
            start.heard(node, record.name)
        if live and (now := start.present()) != present:
            present = now
            if present:
                yield Progress(**present._asdict())
        outcome = report.outcome()
        if live and not outcome.final and outcome.state != state:
            state = outcome.state
            yield StateChanged(state=state, detail=outcome.detail)
        if live and outcome.cause and outcome.cause != cause:
            cause = outcome.cause
            yield CauseKnown(cause=Cause.from_json(cause))


def lines(run: records.Run, ranks: Wanted | None, node: int | None, *, follow: bool) -> Iterator[WorkerLine]:
    """Lines that these ranks wrote."""
    return (each for _, each in _records(run, ranks, node, follow=follow) if isinstance(each, WorkerLine))


def _records(
    run: records.Run, ranks: Wanted | None, only: int | None, *, follow: bool
) -> Iterator[tuple[int, WorkerLine | protocol.Event]]:
    """Whole lines and events of the streams."""
    readers = {node: StreamReader(ranks, node) for node in logs.nodes_of(run, only)}
    unfinished: dict[tuple[int, int, bool], bytes] = {}
    for node, data in logs.blocks(run, readers, follow=follow, ranks=ranks):
        if not isinstance(node, int) or node not in readers:
            continue
        for record in readers[node].feed(data):
            if isinstance(record, protocol.Event):
                yield node, record
            elif isinstance(record, protocol.Output):
                yield from ((node, line) for line in _whole_lines(record, unfinished))
    for node, reader in readers.items():
        for record in reader.close():
            if isinstance(record, protocol.Output):
                yield from ((node, line) for line in _whole_lines(record, unfinished))
    for (node, rank, stderr), rest in unfinished.items():
        yield node, WorkerLine(rank=rank, node=node, text=_text(rest), stderr=stderr)


def _whole_lines(record: protocol.Output, unfinished: dict[tuple[int, int, bool], bytes]) -> Iterator[WorkerLine]:
    """The lines that a record completes; an incomplete one is kept, up to a limit."""
    key = (record.node, record.rank, record.stderr)
    data = unfinished.pop(key, b"") + record.data
    if not record.ends_line and len(data) < _LONGEST_LINE_BYTES:
        unfinished[key] = data
        return
    for line in data.split(b"\n"):
        yield WorkerLine(rank=record.rank, node=record.node, text=_text(line), stderr=record.stderr)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def ranks(rank: int | str | Iterable[int] | None) -> frozenset[int] | None:
    """The ranks that the argument names; None: all. Raises `SpecError`."""
    if rank is None:
        return None
    if isinstance(rank, int):
        return frozenset((rank,))
    if not isinstance(rank, str):
        return frozenset(rank)
    try:
        return parse_ranks(rank)
    except ValueError:
        raise SpecError(f"rank {rank!r} is not a list of ranks", hint="write all, or 0,3-5") from None
