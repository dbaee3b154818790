"""Events of a run, live or from its record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from distlaunch._result import Cause
from launcher.agent import protocol
from launcher.errors import SpecError
from launcher.runs import records, start_progress, status
from launcher.runs.reader import StreamReader, parse_ranks
from launcher.runs.start_progress import StartProgress
from launcher.service import logs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from launcher.runs.node_report import NodeReport
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
    live = _Live(run) if follow and run.result is None else None
    if live:
        yield from live.progress()
    for found in _records(run, None, None, follow=follow):
        if found is None:
            yield from live.caught_up() if live else ()
            continue
        node, record = found
        if isinstance(record, WorkerLine):
            yield record
            continue
        yield NodeEvent(node=node, name=record.name, fields=record.fields)
        if live:
            yield from live.heard(node, record)


class _Live:
    """The state of a run that is followed: derived only if it may have changed, as it depends on all nodes."""

    def __init__(self, run: records.Run) -> None:
        self._report, self._start = status.report_of(run), StartProgress(len(run.hosts))
        self._stages = Counter(map(_stage, self._report.nodes))
        self._state, self._cause = "", dict[str, Any]()
        self._present: start_progress.Progress | None = None
        self._is_open = False
        """Whether a node has told something that may change the outcome, and was not looked at."""

    def progress(self) -> Iterator[Progress]:
        """The progress towards the first worker, if it has changed."""
        if (now := self._start.present()) != self._present:
            self._present = now
            if now:
                yield Progress(**now._asdict())

    def heard(self, node: int, record: protocol.Event) -> Iterator[Event]:
        """What follows from an event of a node."""
        nodes = self._report.nodes
        if node >= len(nodes):  # one that the run had before it was moved
            return
        before, cause = _stage(nodes[node]), nodes[node].cause
        self._report.add(node, record)
        if self._start.heard(node, record.name):
            yield from self.progress()
        now = _stage(nodes[node])
        self._is_open |= now != before or nodes[node].cause != cause
        self._stages[now] += 1
        self._stages[before] -= 1
        if now != before and (self._stages[now] == 1 or not self._stages[before]):
            yield from self.caught_up()

    def caught_up(self) -> Iterator[Event]:
        """The state and the cause, if they have changed."""
        if not self._is_open:
            return
        self._is_open, outcome = False, self._report.outcome()
        if not outcome.final and outcome.state != self._state:
            self._state = outcome.state
            yield StateChanged(state=outcome.state, detail=outcome.detail)
        if outcome.cause and outcome.cause != self._cause:
            self._cause = outcome.cause
            yield CauseKnown(cause=Cause.from_json(outcome.cause))


def _stage(node: NodeReport) -> Hashable:
    """All that the state of a run depends on at one of its nodes."""
    stops = bool(node.stopping) or node.failing
    return (node.attempt, node.started is not None, node.worked, stops, node.result, node.early)


def lines(run: records.Run, ranks: Wanted | None, node: int | None, *, follow: bool) -> Iterator[WorkerLine]:
    """Lines that these ranks wrote."""
    found = (each[1] for each in _records(run, ranks, node, follow=follow) if each is not None)
    return (each for each in found if isinstance(each, WorkerLine))


def _records(
    run: records.Run, ranks: Wanted | None, only: int | None, *, follow: bool
) -> Iterator[tuple[int, WorkerLine | protocol.Event] | None]:
    """Whole lines and events of the streams; None whenever these are all that have arrived."""
    readers = {node: StreamReader(ranks, node) for node in logs.nodes_of(run, only)}
    unfinished: dict[tuple[int, int, bool], bytes] = {}
    for node, data in logs.blocks(run, readers, follow=follow, ranks=ranks):
        if node is None:
            yield None
        elif isinstance(node, int) and node in readers:
            yield from _of_block(node, readers[node].feed(data), unfinished)
    for node, reader in readers.items():
        yield from _of_block(node, reader.close(), unfinished)
    for (node, rank, stderr), rest in unfinished.items():
        yield node, WorkerLine(rank=rank, node=node, text=_text(rest), stderr=stderr)


def _of_block(
    node: int, found: Iterable[protocol.Record], unfinished: dict[tuple[int, int, bool], bytes]
) -> Iterator[tuple[int, WorkerLine | protocol.Event]]:
    for record in found:
        if isinstance(record, protocol.Event):
            yield node, record
        elif isinstance(record, protocol.Output):
            yield from ((node, line) for line in _whole_lines(record, unfinished))


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
