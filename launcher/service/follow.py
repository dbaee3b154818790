"""Follow a run to its end: show its output, obey Ctrl-C, and notice failures that no agent reports."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

from launcher import output
from launcher.agent.named_tuple import NamedTuple
from launcher.agent.protocol import Event, Foreign, Output
from launcher.console import json_lines, live_line
from launcher.console.announce import Announcer
from launcher.errors import StorageError
from launcher.runs import records
from launcher.runs.reader import StreamReader
from launcher.runs.sources import JOB_OUTPUT, Source
from launcher.runs.status import report_of
from launcher.service import bringing, limits
from launcher.service.ending import Ending
from launcher.service.errands import Errands
from launcher.service.node_watch import NodeWatch
from launcher.system import listener
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.agent.messages import LentTerminal
    from launcher.agent.protocol import Record
    from launcher.backends._base import AnyBackend, Stream
    from launcher.console.terminal import Terminal
    from launcher.console.worker_output import WorkerOutput
    from launcher.runs.outcome import Outcome
    from launcher.runs.reader import MarkedLines, Wanted
    from launcher.runs.records import Run
    from launcher.service.fetching import Fetching
    from launcher.service.leaving import Leaving


class View(NamedTuple):
    """What is shown of a run that is followed."""

    ranks: Wanted | None
    """Ranks whose lines are shown; None: all."""

    explain: bool = False
    terminal: LentTerminal | None = None
    """From `terminal_modes.lent`."""

    fetching: Fetching | None = None


class Restarts(Protocol):
    """What is to happen if a host of the run is lost."""

    def due(self, outcome: Outcome) -> bool:
        """Whether the caller starts the run again after this end."""

    @property
    def elsewhere(self) -> bool:
        """Whether another process has begun to start the run again."""


class Follower:
    """Follows one run, as the user's terminal shows it: Ctrl-C there cancels the run."""

    def __init__(self, run: Run, backend: AnyBackend, view: View, leaving: Leaving) -> None:
        """`run` was submitted."""
        if run.handle is None:
            raise ValueError(f"{run.id} was not submitted")
        self._run, self._handle, self._backend, self._leaving = run, run.handle, backend, leaving
        self._report = report_of(run)
        self._readers = {node: StreamReader(view.ranks, node) for node in (JOB_OUTPUT, *range(len(run.hosts)))}
        self._workers = json_lines.or_plain(view.ranks)
        self._terminal = _terminal(view.terminal, self._workers) if view.terminal else None
        self._announcer = Announcer(
            run.hosts if backend.brings_all(run.handle) else run.hosts[:1],  # it awaits what they report
            self._workers,
            backend=backend.name,
            explain=view.explain,
            places=run.has_queue,
            asked_for=run.attempt,
            is_cancelled=lambda: self._ending.asked() is not None,
            more_cpus=backend.more_cpus,
        )
        self._nodes = NodeWatch(run, backend, self._report, self._announcer, self._take)
        needed = view.fetching.nodes(run) if view.fetching else ()
        brought = bringing.of(run, backend, view.ranks, view.terminal, needed)
        self._errands = Errands(run, backend, view.fetching, brought)
        self._ending = Ending(
            run, self._report, self._nodes, self._errands, interrupts=leaving.interrupts, workers=self._workers
        )

    def _catch_up(self, known: Mapping[int, Iterable[Record]]) -> None:
        """Take what nodes have reported before into account, and show the lines that are part of it."""
        world: object = None
        for node, records_ in known.items():
            for record in records_:
                if isinstance(record, Output):
                    self._workers.show(record, time.monotonic())
                else:
                    with listener.told_to(lambda *_: None):  # old news are not announced
                        self._take(node, record)
                if isinstance(record, Event) and record.name == "rendezvous" and not record.fields.get("role"):
                    world = record.fields.get("world_size")
        self._workers.flush(time.monotonic())
        if known:
            self._announcer.caught_up(world)

    def follow(
        self,
        offsets: Mapping[int, int] | None = None,
        known: Mapping[int, Iterable[Record]] | None = None,
        restarts: Restarts | None = None,
    ) -> Outcome:
        """Follow the run, and record its final outcome in its directory. If it does not end, the state is `unknown`.

        `offsets`: by node, how many bytes of its stream were already shown; `known`: what is known of these. With
        `restarts`, an outcome after which the caller starts the run again is not recorded. Raises `Detached` if the
        user leaves.
        """
        with self._terminal or nullcontext(), self._leaving:
            self._catch_up(known or {})
            try:
                outcome = self._follow(self._backend.open_stream(self._handle, offsets), restarts)
            except BaseException:
                self._errands.leave()
                raise
        if not outcome.final:
            self._errands.leave()
            return replace(outcome, state="unknown", detail="it did not end in time")
        if restarts is None or not restarts.due(outcome):
            record(self._run, outcome)
        self._errands.ended(outcome)
        self._errands.release(self._leaving.interrupts)
        return outcome

    def _follow(self, stream: Stream, restarts: Restarts | None) -> Outcome:
        if self._workers.ranks is not None:
            stream.omit(frozenset(self._workers.ranks))
        try:
            outcome = self._report.outcome()
            while not (outcome.final or self._ending.given_up or (restarts and restarts.elsewhere)):
                now = time.monotonic()
                self._leaving.look()
                self._ending.obey(now)
                self._errands.hear(self._nodes.working)
                if outcome.state == "pending":
                    self._errands.waits()
                if self._terminal is not None and (trouble := self._terminal.trouble()):
                    output.warn(f"rank {self._terminal.rank}: {trouble}")
                if output.congested():
                    self._pause(now)
                    continue
                changed = self._read(stream, limits.READ_TIMEOUT_S)
                now = time.monotonic()
                changed |= self._nodes.ask(now)
                self._ending.enforce(now, outcome)
                if changed:
                    outcome = self._outcome()
                    self._announcer.state(outcome)
                    self._workers.state(outcome.state, outcome.detail)
        finally:
            live_line.withdraw()
            stream.close()
            self._end_streams()
        return outcome

    def _pause(self, now: float) -> None:
        """Stop reading while our own output is blocked, and draw no conclusions from what has not been read."""
        self._nodes.pause(now)
        self._ending.pause()
        output.drain(limits.READ_TIMEOUT_S)

    def _end_streams(self) -> None:
        """Show the rest of lines that were cut off, and warnings that are still gathered."""
        self._announcer.close()
        for reader in self._readers.values():
            for record in reader.close():
                if isinstance(record, Output):
                    self._workers.show(record, time.monotonic())
        self._workers.close()

    def _read(self, stream: Stream, timeout_s: float) -> bool:
        """Show new output. Returns whether it included an event."""
        news = False
        chunks = stream.read(timeout_s)
        now = time.monotonic()
        for chunk in chunks:
            if chunk.node != JOB_OUTPUT:
                self._nodes.heard(chunk.node, now)
            reader = self._readers.get(chunk.node)
            for record in reader.feed_marked(chunk.data, more=chunk.more) if reader else ():
                if isinstance(record, Event | Foreign):
                    self._take(chunk.node, record)
                    news = True
                else:
                    self._show(record, now)
        self._workers.flush(now)
        self._announcer.tick(now)
        return news

    def _show(self, record: Output | MarkedLines, now: float) -> None:
        stderr = isinstance(record, Output) and record.stderr
        if self._terminal is not None and self._terminal.shows(record.rank, stderr=stderr):
            return
        if isinstance(record, Output):
            self._workers.show(record, now)
        else:
            self._workers.show_lines(record, now)

    def _take(self, node: Source, record: Event | Foreign) -> None:
        self._announcer.record(node, record)
        if node == JOB_OUTPUT:
            return
        if isinstance(record, Event):
            self._workers.event(node, record)
            self._errands.event(node, record)
        if self._terminal is not None and isinstance(record, Event):
            self._lend(self._terminal, node, record)
        self._report.add(node, record)
        if isinstance(record, Event) and record.name == "agent_started":
            self._nodes.started(node)
        if self._report.nodes[node].failing:
            self._nodes.look_closely()

    def _lend(self, terminal: Terminal, node: int, record: Event) -> None:
        """Connect our terminal to that of the worker, and follow attaching and detaching."""
        keyboard = bool(record.fields.get("keyboard"))
        if terminal.rank is None or record.fields.get("rank") != terminal.rank:
            return
        if record.name == "terminal_attached":
            self._workers.hand_over(terminal.rank)
            terminal.attached()
        elif record.name == "terminal_detached":
            terminal.detached()
        elif record.name == "worker_exited":
            terminal.worker_ended()
        elif record.name == "terminal_opened" and self._backend.has_terminals:
            connect = partial(self._backend.open_terminal, self._handle, node, terminal.rank)
            if keyboard or self._backend.is_here:
                self._leaving.give_keys_away()
                terminal.open(connect, keyboard=keyboard)
            else:  # output of a rank that is only shown comes from the stream
                terminal.only_looks_on(connect)

    def _outcome(self) -> Outcome:
        report = self._nodes.known()
        return report.outcome(self._nodes.alive, cancel_requested=self._ending.asked(), **self._nodes.told)


def record(run: Run, outcome: Outcome) -> None:
    """Record how the run has ended, unless that is known; a warning if it cannot be."""
    try:
        records.finish(run, outcome.to_json())
    except StorageError as error:
        output.warn(error.message)


def _terminal(lent: LentTerminal, workers: WorkerOutput) -> Terminal:
    from launcher.console.terminal import Terminal  # few runs need it

    return Terminal(lent, workers.pass_on)
