"""Samples of a run: what its nodes and ranks used and how far they were, as their streams tell it (`sample` events)."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import Event
from launcher.runs.reader import StreamReader
from launcher.system import input_file
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from launcher.runs.records import Run

RECENT = 1000
"""So many samples of a node are more than the minutes that rates and findings look at."""

_MIB = 1 << 20
_BLOCK_BYTES = 1 << 20
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU; None: not known."""

    use: float | None
    """Percent of the time in which something ran on it."""

    memory_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSample:
    """An RDMA port or a network device; None: not known."""

    name: str
    gbps: float | None
    downs: int | None
    """How often it went down since the agent started."""

    errors: int | None
    """Errors of the cable or transceiver since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """One rank; None: not known, or not told by its script."""

    rank: int
    cpu: float | None
    """CPUs that it and its descendants kept busy since the previous sample."""

    memory_bytes: int | None
    """Resident memory of it and its descendants; pages that several of them share count in each."""

    state: str | None
    """The state of its process in the kernel's letters: `R`, `S`, `D` (waits for a device), `T` (suspended), `Z`."""

    lines: int | None
    """How many lines it has written since its start."""

    step: int | None
    steps: int | None
    loss: float | None
    told: float | None
    """When it told that step, in Unix seconds on the node's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """One node at one time; rates are per second, since the previous sample."""

    time: float
    """Unix seconds on the node's clock."""

    node: int
    attempt: int
    cpu: float | None
    """CPUs of the host that were busy, with those of other users."""

    cpus: int | None
    memory_bytes: int | None
    """Memory of the host that is in use and could not be freed."""

    memory_total_bytes: int | None
    received: float | None
    sent: float | None
    rdma_received: float | None
    rdma_sent: float | None
    links: tuple[LinkSample, ...] = ()
    gpus: tuple[GpuSample, ...]
    ranks: tuple[RankSample, ...]
    """Those of the current round, also after they have ended: then without CPU, memory and state."""


class Decoder:
    """The samples of one node's stream, which name only what has changed."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def add(self, event: Event) -> bool:
        """Take an event as `events.record` returns it; whether it was a sample."""
        fields, last = event.fields, self._fields
        if event.name != "sample" or not isinstance(fields.get("time"), (int, float)):
            return False
        follows = (last.get("sample", -2) + 1, last.get("attempt")) == (fields.get("sample"), fields.get("attempt"))
        # After a gap, what is not named has a value that this reader does not know.
        self._fields = {**last, **fields} if follows and not fields.get("whole") else dict(fields)
        return True

    @property
    def now(self) -> NodeSample | None:
        """The latest sample; None before the first one."""
        return self.snapshot.sample if self._fields else None

    @property
    def snapshot(self) -> Snapshot:
        """The latest sample, not decoded yet."""
        return Snapshot(self._fields)


class Snapshot:
    """A sample that is decoded when it is asked for: of a long run, few are."""

    __slots__ = ("_fields", "_sample")

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._sample: NodeSample | None = None

    @property
    def sample(self) -> NodeSample:
        """The sample."""
        if self._sample is None:
            self._sample = _decoded(self._fields)
        return self._sample


def _decoded(fields: dict[str, Any]) -> NodeSample:
    return NodeSample(
        time=float(fields["time"]),
        node=fields.get("node") or 0,
        attempt=fields.get("attempt") or 0,
        cpu=fields.get("cpu"),
        cpus=fields.get("cpus"),
        memory_bytes=_bytes(fields.get("memory_mib")),
        memory_total_bytes=_bytes(fields.get("memory_total_mib")),
        received=fields.get("received"),
        sent=fields.get("sent"),
        rdma_received=fields.get("rdma_received"),
        rdma_sent=fields.get("rdma_sent"),
        links=tuple(map(_link, _rows(fields, _LINK, len(fields.get("links") or ())))),
        gpus=tuple(map(_gpu, _rows(fields, _GPU, None))),
        ranks=tuple(map(_rank, _rows(fields, _RANK, len(fields.get("ranks") or ())))),
    )


_LINK = ("links", "link_gbps", "link_downs", "link_errors")
_GPU = ("gpu_use", "gpu_memory_mib", "gpu_memory_total_mib", "gpu_power_w")
_RANK = (
    *("ranks", "rank_cpu", "rank_memory_mib", "rank_state", "rank_lines"),
    *("rank_step", "rank_steps", "rank_loss", "rank_time"),
)


def _rows(fields: dict[str, Any], names: tuple[str, ...], count: int | None) -> Iterator[tuple[Any, ...]]:
    """The columns as rows; `count` None: as many as the longest column has."""
    columns = [fields.get(name) or [] for name in names]
    count = max(map(len, columns)) if count is None else count
    return zip(*([*column[:count], *[None] * (count - len(column))] for column in columns), strict=True)


def _gpu(row: tuple[Any, ...]) -> GpuSample:
    use, memory, total, power = row
    return GpuSample(use=use, memory_bytes=_bytes(memory), memory_total_bytes=_bytes(total), power_w=power)


def _link(row: tuple[Any, ...]) -> LinkSample:
    name, gbps, downs, errors = row
    return LinkSample(name=name, gbps=gbps, downs=_whole(downs), errors=_whole(errors))


def _rank(row: tuple[Any, ...]) -> RankSample:
    rank, cpu, memory, state, lines, step, steps, loss, told = row
    return RankSample(
        rank=rank, cpu=cpu, memory_bytes=_bytes(memory), state=state, lines=lines,
        step=_whole(step), steps=_whole(steps), loss=loss, told=told,
    )  # fmt: skip


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else int(mib * _MIB)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


class Series:
    """Samples of one node in order, at most `limit` of them: of more, each second one is left out, again and again."""

    def __init__(self, limit: int) -> None:
        self._limit, self._every, self._count = max(2, limit), 1, 0
        self._kept: list[Snapshot] = []
        self._newest: Snapshot | None = None
        self._decoder = Decoder()

    def add(self, event: Event) -> None:
        """Take an event; other than samples are ignored."""
        if not self._decoder.add(event):
            return
        kept = self._count % self._every == 0
        self._count += 1
        self._newest = self._decoder.snapshot
        if kept:
            self._kept.append(self._newest)
            if len(self._kept) >= self._limit:
                self._kept, self._every = self._kept[::2], self._every * 2

    @property
    def samples(self) -> list[NodeSample]:
        """What was kept, oldest first, and always the newest."""
        last = self._newest is None or (self._kept and self._kept[-1] is self._newest)
        return [each.sample for each in (self._kept if last else [*self._kept, self._newest]) if each]


class Recent:
    """The latest samples of one node in order, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._kept: deque[Snapshot] = deque(maxlen=limit)
        self._decoder = Decoder()

    def add(self, event: Event) -> None:
        """Take an event; other than samples are ignored."""
        if self._decoder.add(event):
            self._kept.append(self._decoder.snapshot)

    @property
    def samples(self) -> list[NodeSample]:
        """What was kept, oldest first."""
        return [each.sample for each in self._kept]


def of_node(run: Run, node: int, *, limit: int = 2000) -> list[NodeSample]:
    """The samples in a node's stream, oldest first; of more than `limit`, evenly spread ones. Empty if it has none."""
    series = Series(limit)
    for event in _events(run.stream_path(node), node):
        series.add(event)
    return series.samples


def of_run(run: Run, *, limit: int = 2000) -> dict[int, list[NodeSample]]:
    """The samples of all nodes that have sent some, by node."""
    found = {node: of_node(run, node, limit=limit) for node in range(len(run.hosts))}
    return {node: series for node, series in found.items() if series}


def latest(events: Iterable[object]) -> NodeSample | None:
    """The last sample among the records of one node's stream."""
    decoder = Decoder()
    for event in events:
        if isinstance(event, Event):
            decoder.add(event)
    return decoder.now


def _events(path: Path, node: int) -> Iterator[Event]:
    """The events in a stream, as far as it can be read; its memory is bounded by the longest line."""
    reader = StreamReader(_NONE, node)
    with suppress(OSError), input_file.open_file(path) as file:
        while data := file.read(_BLOCK_BYTES):
            yield from (record for record in reader.feed(data) if isinstance(record, Event))
