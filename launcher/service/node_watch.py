"""Polls a run's backend about its nodes, and notices nodes that are silent or exited without reporting a result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.errors import LaunchError
from launcher.runs import unread
from launcher.runs.status import agent_stderr, last_words, last_words_time
from launcher.service import limits
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.protocol import Event
    from launcher.backends._base import AnyBackend
    from launcher.console.announce import Announcer
    from launcher.runs.liveness import Liveness, NodeState
    from launcher.runs.outcome import RunReport
    from launcher.runs.records import Run


class NodeWatch:
    """Polls the backend about the state of the nodes."""

    def __init__(
        self,
        run: Run,
        backend: AnyBackend,
        report: RunReport,
        announcer: Announcer,
        take: Callable[[int, Event], None],
    ) -> None:
        """`take` receives events that a node has left outside its stream."""
        self._handle, self._backend, self._report, self._announcer = run.handle, backend, report, announcer
        self._words = _LastWords(run, report, take)
        self.alive: list[NodeState] = []
        self._liveness: Liveness | None = None
        self._question: Question[Liveness] | None = None
        self._gone_since: dict[int, float] = {}
        self._heard: dict[int, float] = {}
        self._next_poll, self._poll_s = time.monotonic() + limits.POLL_S[0], limits.POLL_S[0]

    @property
    def told(self) -> dict[str, Any]:
        """What the backend last reported about the run, as arguments of `RunReport.outcome`."""
        return self._liveness.told if self._liveness else {}

    def known(self) -> RunReport:
        """What the nodes have reported, with what only the backend knows of their results."""
        return unread.added_to(self._report, self._liveness)

    def done(self, node: int) -> bool:
        """Whether the node's result is known."""
        told = self._liveness.unread.get(node) if self._liveness else None
        return _done(self._report, node) or (told is not None and told.result is not None)

    def hears(self, node: int) -> bool:
        """Whether the node's silence would mean something: its stream is brought here."""
        return node in self._heard or self._backend.brings_all(self._handle)

    def working(self) -> set[int]:
        """The nodes whose workers still run, or are being ended."""
        known = enumerate(self._report.nodes)
        left = [(node, each) for node, each in known if each.result is None and (each.workers or each.stopping)]
        return {node for node, _ in left if not (node < len(self.alive) and self.alive[node] == "ended")}

    def heard(self, node: int, now: float) -> None:
        """Note that the node has sent something."""
        self._gone_since.pop(node, None)
        self._heard[node] = now

    def started(self, node: int) -> None:
        """Note that the node's agent has started, which is newer than the backend's last answer."""
        if node < len(self.alive):
            self.alive[node] = "running"

    def look_closely(self) -> None:
        """Poll more often, as the run is ending."""
        self._poll_s = limits.POLL_S[0]

    def look_soon(self, now: float) -> None:
        """Poll soon, as the run's end was requested."""
        self.look_closely()
        self._next_poll = min(self._next_poll, now + self._poll_s)

    def ending(self) -> None:
        """Show that the run is being ended."""
        self._announcer.ending()

    def pause(self, now: float) -> None:
        """Restart the waits: while nothing is read, silence proves nothing."""
        self._gone_since.clear()
        self._next_poll = now + self._poll_s

    def ask(self, now: float) -> bool:
        """Poll which nodes are alive, if it is time. Returns whether there is a new answer."""
        if self._question is None and now >= self._next_poll:
            self._question = Question(lambda: self._backend.liveness(self._handle), "liveness")
        if self._question is None or not self._question.answered(limits.READ_TIMEOUT_S):
            return False
        question, self._question = self._question, None
        now = time.monotonic()
        try:
            liveness: Liveness | None = question.answer()
            refusal = ""
        except LaunchError as error:
            output.detail(f"{self._backend.name}: {error.message}")
            liveness, refusal = None, error.message
        self._announcer.asked(self._backend.name, refusal)
        self._poll_s = min(self._poll_s * 1.3, limits.POLL_S[1], self._backend.ask_every_s)
        self._liveness = liveness or self._liveness
        states = list(liveness.nodes) if liveness else []
        for node, state in enumerate(states):
            self._announcer.reached(node, liveness.detail if liveness and state == "unknown" else "")
            if state != "ended" or self.done(node):
                self._gone_since.pop(node, None)
                self._words.hear_of_lost_lines(node)
                if state == "running" and not self.done(node) and now - self._heard.get(node, now) > limits.SILENT_S:
                    self._announcer.silent(node, now - self._heard.pop(node))
            elif now - self._gone_since.setdefault(node, now) < limits.SETTLE_S:
                states[node], self._poll_s = "running", limits.POLL_S[0]
            elif node < len(self.alive) and self.alive[node] != "ended":
                self._words.hear(node)
        self._next_poll = time.monotonic() + self._poll_s
        if liveness is None:
            return False
        self.alive = states
        return True


class _LastWords:
    """Events that agents have left outside their streams, if the run's directory is readable from here."""

    def __init__(self, run: Run, report: RunReport, take: Callable[[int, Event], None]) -> None:
        self._run, self._report, self._take = run, report, take
        self._read_at: dict[int, float | None] = {}

    def hear_of_lost_lines(self, node: int) -> None:
        """Report lost lines while the disk is still full: the stream does so only afterwards."""
        if _done(self._report, node) or (changed := last_words_time(self._run, node)) == self._read_at.get(node):
            return
        self._read_at[node] = changed
        for event in last_words(self._run, node):
            total = event.fields.get("total")
            if (
                event.name == "lines_lost"
                and isinstance(total, int)
                and total > 2 * self._report.nodes[node].lines_lost
            ):
                self._take(node, event)

    def hear(self, node: int) -> None:
        """Take what an exited agent has left outside its stream."""
        for event in last_words(self._run, node):
            self._take(node, event)
        report = self._report.nodes[node]
        if report.result is None:
            report.last_words.extend(agent_stderr(self._run, node, started=report.started is not None))


def _done(report: RunReport, node: int) -> bool:
    return node < len(report.nodes) and report.nodes[node].result is not None
