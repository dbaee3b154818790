"""What is known of a run's ranks at the moment, from the records of its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.protocol import Event, Output
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from launcher.agent.protocol import Record

TAIL_BYTES = 8192
"""How much of each rank's latest output is kept."""

_RATE_S = 3.0


@dataclass(slots=True)
class LiveRank:
    """One rank."""

    rank: int
    node: int
    state: str = "starts"
    failed: bool = False
    """Whether it has ended by itself, and not well."""

    tail: bytes = b""
    heard: float | None = None
    """When its last line arrived, on our monotonic clock."""

    lines: int = 0
    rate: float | None = None
    """Lines per second that arrived lately."""

    counted: int = 0
    counted_at: float = 0.0

    @property
    def last_line(self) -> str:
        """What it wrote last: the last line, or the last state of a progress bar."""
        text = self.tail[-1024:].replace(b"\r", b"\n").rstrip().rpartition(b"\n")[2]
        return text.decode(errors="replace").strip()

    def count(self, now: float) -> None:
        """Take the rate, if enough time has passed."""
        if now - self.counted_at >= _RATE_S:
            if self.counted_at:
                self.rate = round((self.lines - self.counted) / (now - self.counted_at), 2)
            self.counted, self.counted_at = self.lines, now


class LiveRanks:
    """The ranks of one run, of the latest round of each node."""

    def __init__(self) -> None:
        self.by_rank: dict[int, LiveRank] = {}

    def add(self, node: int, record: Record, now: float | None) -> None:
        """Take a record of that node's stream; `now` None: it is an old one."""
        if isinstance(record, Output):
            one = self._of(record.rank, node)
            data = record.data[-TAIL_BYTES:] + (b"\n" if record.ends_line else b"")
            one.tail = (one.tail + data)[-TAIL_BYTES:]
            one.lines += record.data.count(b"\n") + record.ends_line
            one.heard = one.heard if now is None else now
        elif isinstance(record, Event):
            if record.name == "rendezvous":
                self._begin(node, record.fields.get("ranks") or [])
            elif record.name in ("worker_started", "worker_exited") and record.fields.get("rank") is not None:
                self._changed(self._of(record.fields["rank"], node), record)

    def _of(self, rank: int, node: int) -> LiveRank:
        found = self.by_rank.get(rank)
        if found is None or found.node != node:
            found = self.by_rank[rank] = LiveRank(rank, node)
        return found

    def _begin(self, node: int, ranks: list[int]) -> None:
        """The ranks of a round are known: ranks that the node had before may be another's now."""
        for rank in [rank for rank, one in self.by_rank.items() if one.node == node and rank not in ranks]:
            del self.by_rank[rank]
        for rank in ranks:
            one = self._of(rank, node)
            one.state, one.failed = "starts", False

    @staticmethod
    def _changed(one: LiveRank, event: Event) -> None:
        fields = event.fields
        if event.name == "worker_started":
            one.state, one.failed = "runs", False
            return
        how = fields.get("signal") or f"exited {fields.get('exit_code')}"
        one.state = "ended" if fields.get("exit_code") == 0 else str(how)
        one.failed = one.state != "ended" and not fields.get("stopped")
