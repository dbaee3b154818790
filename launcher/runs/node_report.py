"""What one node's stream has reported so far about its part in a run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

from launcher.agent.protocol import Event, Foreign
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from launcher.agent.protocol import Record
    from launcher.results import run as results
    from launcher.results.run import Node

Cause = dict[str, Any]
"""As in the agent stream; see docs/agent-stream.md."""

_KEPT_FOREIGN_LINES = 8


@dataclass(slots=True)
class NodeReport:
    """What one node's stream has reported so far."""

    node: int
    host: str = ""
    role: str = ""
    ranks: tuple[int, ...] = ()
    workers: int | None = None
    """How many are running; None before the first one."""

    worked: bool = False
    """Whether workers of this round have run, even if all have exited."""

    master: str = ""
    output_dir: str | None = None
    """Where its workers' files are, on its host."""

    started: float | None = None
    last_seen: float | None = None
    stopping: str = ""
    restarts: int = 0
    cause: Cause | None = None
    result: str | None = None
    """From its `done` event; None before that."""

    early: bool = False
    """Whether it succeeded and was taken away before the others, which continued."""

    attempt: int = 0
    """How many times the scheduler has requeued it."""

    lines_lost: int = 0
    """Lines of its workers that are missing from the stream."""

    succeeded: dict[object, object] = field(default_factory=dict)
    """The workers of its latest round that have succeeded, by local rank: the number of the round."""

    debugger: dict[str, Any] | None = None
    """The fields of the `debugger` event, while a worker is stopped in its debugger."""

    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_FOREIGN_LINES))

    @property
    def failing(self) -> bool:
        """Whether this node can no longer succeed."""
        return self.cause is not None or self.result not in (None, "success")

    @property
    def finished(self) -> bool:
        """Whether all of its workers have succeeded in its latest round."""
        return 0 < len(self.ranks) <= len(self.succeeded)

    def add(self, record: Record) -> None:
        """Take one record into account. Worker output is ignored."""
        if isinstance(record, Foreign):
            self.last_words.append(record.data[:500].decode(errors="replace"))
        elif isinstance(record, Event):
            when = record.fields.get("time")
            self.last_seen = when if isinstance(when, (int, float)) else self.last_seen
            attempt = record.fields.get("attempt", 0)
            if not isinstance(attempt, int) or attempt < self.attempt:
                return
            if attempt > self.attempt:
                self._start_again(attempt)
            handler = getattr(self, f"_on_{record.name}", None)
            if handler is not None:
                handler(record.fields)

    def to_json(self) -> Node:
        """Plain JSON, without the fields that only serve messages."""
        return {
            "node": self.node,
            "host": self.host,
            "role": self.role,
            "ranks": list(self.ranks),
            "workers": self.workers,
            "master": self.master,
            "output_dir": self.output_dir,
            "started": self.started,
            "last_seen": self.last_seen,
            "stopping": self.stopping,
            "restarts": self.restarts,
            "cause": cast("results.Cause | None", self.cause),
            "result": self.result,
            "early": self.early,
            "attempt": self.attempt,
            "lines_lost": self.lines_lost,
        }

    def _start_again(self, attempt: int) -> None:
        """Discard what the previous attempt has reported."""
        self.attempt = attempt
        self.result = self.cause = self.workers = self.debugger = None
        self.stopping, self.early, self.worked = "", False, False
        self.lines_lost = 0
        self.succeeded.clear()
        self.last_words.clear()

    def _on_agent_started(self, fields: dict[str, Any]) -> None:
        if self.result is not None:  # the same run was started once more
            self._start_again(self.attempt)
        self.host = str(fields.get("host") or self.host)
        where = fields.get("output_dir")
        self.output_dir = where if isinstance(where, str) else self.output_dir
        self.started = self.started or self.last_seen

    def _on_rendezvous(self, fields: dict[str, Any]) -> None:
        self.role = str(fields.get("role") or "")
        ranks = fields.get("ranks")
        self.ranks = tuple(ranks) if isinstance(ranks, list) else self.ranks
        self._meet(fields)
        self.workers, self.worked = 0, False
        self.succeeded.clear()

    def _meet(self, fields: dict[str, Any]) -> None:
        self.master = f"{fields.get('master_addr')}:{fields.get('master_port')}"
        self.restarts = fields.get("restarts") or 0

    def _on_worker_started(self, _fields: dict[str, Any]) -> None:
        self.workers, self.worked = (self.workers or 0) + 1, True

    def _on_worker_exited(self, fields: dict[str, Any]) -> None:
        self.workers = max(0, (self.workers or 0) - 1)
        self._ended(fields.get("local_rank"), fields)
        if self.debugger is not None and fields.get("pid") == self.debugger.get("pid"):
            self.debugger = None

    def _ended(self, local_rank: object, fields: dict[str, Any]) -> None:
        """Note how a worker has ended; the beginning of its round may be in a part of the stream that is not read."""
        number = fields.get("round")
        if number not in self.succeeded.values():
            self.succeeded.clear()
        if isinstance(local_rank, int) and fields.get("exit_code") == 0 and not fields.get("stopped"):
            self.succeeded[local_rank] = number

    def _on_debugger(self, fields: dict[str, Any]) -> None:
        self.debugger = fields

    def _on_heartbeat(self, fields: dict[str, Any]) -> None:
        workers = fields.get("workers")
        self.workers = workers if isinstance(workers, int) else self.workers
        self.worked = self.worked or bool(self.workers)
        self._lost(fields.get("lines_lost"))
        if fields.get("master_addr"):
            self._meet(fields)

    def _on_lines_lost(self, fields: dict[str, Any]) -> None:
        self._lost(fields.get("total"))

    def _lost(self, total: object) -> None:
        self.lines_lost = max(self.lines_lost, total) if isinstance(total, int) else self.lines_lost

    def _on_stopping(self, fields: dict[str, Any]) -> None:
        self.stopping = str(fields.get("reason") or "stopping")

    def _on_failure(self, fields: dict[str, Any]) -> None:
        cause = fields.get("cause")
        if isinstance(cause, dict) and self.cause is None:
            self.cause = cause

    def _on_done(self, fields: dict[str, Any]) -> None:
        self.result, self.early = str(fields.get("result") or "failed"), fields.get("early") is True
        self.restarts = fields.get("restarts") or self.restarts
        self.workers = 0
        self._lost(fields.get("lines_lost"))
        if isinstance(fields.get("cause"), dict):
            self.cause = fields["cause"]
