"""What the streams of a run tell beside its state, each of them read once: samples, hangs, use, links."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.agent.protocol import Event
from launcher.errors import StorageError
from launcher.runs import links, status, usage
from launcher.runs.hanging import Hanging
from launcher.runs.reader import StreamReader
from launcher.runs.samples import RECENT
from launcher.runs.usage import NodeUsage
from launcher.system import input_file
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.results.run import RunState
    from launcher.results.usage import Usage
    from launcher.runs.records import Run
    from launcher.runs.samples import NodeSample

_WHOLE_BYTES = 32 << 20
"""Longer streams, of all nodes together, are read at their ends only."""

_BLOCK_BYTES = 1 << 20


@dataclass(slots=True)
class NodeTold:
    """What one node's stream tells."""

    usage: NodeUsage = field(default_factory=NodeUsage)
    samples: deque[NodeSample] = field(default_factory=lambda: deque(maxlen=RECENT))
    restarts: dict[int, int] = field(default_factory=dict)
    """By attempt."""

    head: bytes = b""
    tail: bytes = b""

    def take(self, record: object) -> None:
        """Take the next record into account."""
        if not isinstance(record, Event):
            return
        if sample := self.usage.add(record):
            self.samples.append(sample)
        elif record.name == "rendezvous":
            self.restarts[record.fields.get("attempt") or 0] = record.fields.get("restarts") or 0

    def keep(self, block: bytes) -> None:
        """Keep what links are looked for in."""
        if len(self.head) < status.END_BYTES:
            self.head += block[: status.END_BYTES - len(self.head)]
        self.tail = (self.tail + block)[-status.END_BYTES :]


@dataclass(slots=True)
class Told:
    """The same of all nodes, in the order of their ranks."""

    nodes: list[NodeTold]
    whole: bool
    """Whether the streams were read in full."""

    hanging: Hanging = field(default_factory=Hanging)

    def samples(self) -> dict[int, list[NodeSample]]:
        """The latest samples of the nodes that have sent some, by node."""
        return {node: [*told.samples] for node, told in enumerate(self.nodes) if told.samples}

    def links(self) -> list[str]:
        """The links that its ranks have printed."""
        return links.found([(told.head, told.tail) for told in self.nodes])

    def restarts(self, state: RunState) -> int:
        """Those of the current attempt: between two heartbeats, the end of a stream may not tell them."""
        return max([state["restarts"], *(told.restarts.get(state["attempt"], 0) for told in self.nodes)])

    def usage(self, state: RunState) -> Usage | None:
        """What the run has used so far; None if that is not known here."""
        return usage.summed([told.usage for told in self.nodes], state, whole=self.whole)


def read(run: Run) -> Told:
    """Read the streams in the run's directory; of one that it cannot have here, there is nothing."""
    paths = [] if run.tasks or run.private else [run.stream_path(node) for node in range(len(run.hosts))]
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    found = Told([], size <= _WHOLE_BYTES)
    for node, path in enumerate(paths):
        told = NodeTold()
        with suppress(OSError, StorageError):
            reader = StreamReader(frozenset(), node)
            for block in _blocks(path, whole=found.whole):
                told.keep(block)
                for record in reader.feed(block):
                    told.take(record)
                    if isinstance(record, Event):
                        found.hanging.add(node, record)
        found.nodes.append(told)
    return found


def usage_of(run: Run, state: RunState) -> Usage | None:
    """What the run has used so far; None if that is not known here."""
    return read(run).usage(state)


def _blocks(path: Path, *, whole: bool) -> Iterator[bytes]:
    """The stream, or both ends of it: what is between them is missing as if it had been lost."""
    if not whole:
        yield from (part[: part.rfind(b"\n") + 1] for part in status.parts(path))
        return
    with input_file.open_file(path) as file:
        while data := file.read(_BLOCK_BYTES):
            yield data
