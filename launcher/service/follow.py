"""Follows a run to its end: shows what it writes, obeys Ctrl-C, notices what nobody reports."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.failures import may_come_back
from launcher.agent.protocol import Event, Output
from launcher.console import live_line
from launcher.console.announce import Announcer
from launcher.console.worker_output import WorkerOutput
from launcher.errors import LaunchError, StorageError
from launcher.runs import records
from launcher.runs.outcome import TOO_LATE
from launcher.runs.reader import StreamReader
from launcher.runs.records import JOB_OUTPUT
from launcher.runs.status import agent_stderr, last_words, last_words_time, report_of
from launcher.system.question import Question

if TYPE_CHECKING:
    from launcher.agent.protocol import Foreign
    from launcher.backends._base import Backend, Stream
    from launcher.console.terminal import Terminal
    from launcher.runs.liveness import Liveness, NodeState
    from launcher.runs.node_report import NodeReport
    from launcher.runs.outcome import Outcome
    from launcher.runs.reader import Wanted
    from launcher.runs.records import Run
    from launcher.service.interrupts import Interrupts, Unattended

READ_TIMEOUT_S = 0.2
"""A signal to the launcher waits at most so long."""

POLL_S = (1.0, 10.0)
"""The backend is asked about its nodes this often: at first, and in the end where nothing happens."""

SETTLE_S = 2.0
"""So long a node must be gone and its stream be silent before its end counts as one without a word."""

HANG_S = 20.0
"""So long others may go on after a node has failed. Agents end one another themselves; this is for when they cannot."""

UNAWARE_S = 1.0
"""So long where an agent is gone and others do not know: it was killed before it could be missed."""

SILENT_S = 90.0
"""Agents say something every 10 s, and network file systems show it within 60: one that is silent for so long is worth a word."""

FORCE_S = 10.0
"""So long a run may take to end after its grace time is over, before it is ended by force."""

GIVE_UP_S = 10.0
"""So long again after that."""


class Follower:
    """One run, followed by one terminal that owns it: Ctrl-C there cancels the run."""

    def __init__(
        self,
        run: Run,
        backend: Backend[Any, Any],
        *,
        ranks: Wanted | None,
        interrupts: Interrupts | Unattended,
        explain: bool = False,
        terminal: dict[str, Any] | None = None,
    ) -> None:
        """`run` was submitted; `ranks` are those whose lines are shown, None for all; `terminal`: what was lent of ours."""
        if run.handle is None:
            raise ValueError(f"{run.id} was not submitted")
        self._run, self._handle, self._backend, self._interrupts = run, run.handle, backend, interrupts
        self._report = report_of(run)
        self._readers = {node: StreamReader(ranks, node) for node in (JOB_OUTPUT, *range(len(run.hosts)))}
        self._workers = WorkerOutput(ranks)
        self._terminal = _terminal(terminal, self._workers) if terminal else None
        self._cancel_requested: float | None = None
        self._announcer = Announcer(
            run.hosts,
            self._workers,
            backend=backend.name,
            explain=explain,
            asked_for=run.attempt,
            is_cancelled=lambda: self._asked() is not None,
        )
        self._alive: list[NodeState] = []
        self._liveness: Liveness | None = None
        self._question: Question[Liveness] | None = None
        self._errands: list[tuple[str, Question[None]]] = []
        self._gone_since: dict[int, float] = {}
        self._words_at: dict[int, float | None] = {}
        self._heard: dict[int, float] = {}
        self._next_poll, self._poll_s = time.monotonic() + POLL_S[0], POLL_S[0]
        self._stops_obeyed = 0
        self._hanging_since: float | None = None
        self._deadline: float | None = None
        """When to use force; after that, when to give up."""

        self._forced = self._given_up = False

    def follow(self) -> Outcome:
        """The run's final outcome, written to its folder. When it cannot be ended, the state is `unknown`."""
        with self._terminal or nullcontext():
            outcome = self._follow()
        if not outcome.final:
            return replace(outcome, state="unknown", detail="it did not end in time")
        try:
            records.finish(self._run, outcome.to_json())
        except StorageError as error:
            output.warn(error.message)
        self._release()
        return outcome

    def _follow(self) -> Outcome:
        stream = self._backend.open_stream(self._handle)
        try:
            outcome = self._report.outcome()
            while not outcome.final and not self._given_up:
                now = time.monotonic()
                self._obey(now)
                self._hear_errands()
                if self._terminal is not None and (trouble := self._terminal.trouble()):
                    output.warn(f"rank {self._terminal.rank}: {trouble}")
                if output.congested():
                    self._pause(now)
                    continue
                changed = self._read(stream, READ_TIMEOUT_S)
                now = time.monotonic()
                changed |= self._ask_backend(now)
                self._enforce(now, outcome)
                if changed:
                    outcome = self._outcome()
                    self._announcer.state(outcome)
        finally:
            live_line.withdraw()
            stream.close()
            self._end_streams()
        return outcome

    def _pause(self, now: float) -> None:
        """Nobody reads what we print: read no more ourselves, and judge nothing by what we have not read."""
        self._gone_since.clear()
        self._hanging_since = None
        self._next_poll = now + self._poll_s
        time.sleep(READ_TIMEOUT_S)

    def _end_streams(self) -> None:
        """Show what is left of lines that were cut off."""
        for reader in self._readers.values():
            for record in reader.close():
                if isinstance(record, Output):
                    self._workers.show(record, time.monotonic())
        self._workers.close()

    def _read(self, stream: Stream, timeout_s: float) -> bool:
        """Show what has come; whether an event was among it."""
        news = False
        chunks = stream.read(timeout_s)
        now = time.monotonic()
        for chunk in chunks:
            self._gone_since.pop(chunk.node, None)
            self._heard[chunk.node] = now
            reader = self._readers.get(chunk.node)
            for record in reader.feed(chunk.data) if reader else ():
                if not isinstance(record, Output):
                    self._take(chunk.node, record)
                    news = True
                elif self._terminal is None or not self._terminal.shows(record.rank, stderr=record.stderr):
                    self._workers.show(record, now)
        self._workers.flush(now)
        self._announcer.tick(now)
        return news

    def _take(self, node: int, record: Event | Foreign) -> None:
        self._announcer.record(node, record)
        if node == JOB_OUTPUT:
            return
        if self._terminal is not None and isinstance(record, Event) and record.fields.get("rank") == self._terminal.rank:
            self._lend(self._terminal, node, record)
        self._report.add(node, record)
        if isinstance(record, Event) and record.name == "agent_started" and node < len(self._alive):
            self._alive[node] = "running"  # newer than what the backend said when it was asked last
        if self._report.nodes[node].failing:
            # Things are ending: look more closely.
            self._poll_s = POLL_S[0]

    def _lend(self, terminal: Terminal, node: int, record: Event) -> None:
        """A worker may have a terminal, for which ours stands while we are attached."""
        keyboard = bool(record.fields.get("keyboard"))
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
                terminal.open(connect, keyboard=keyboard)
            else:  # the stream does for a rank that is only shown
                terminal.only_looks_on(connect)

    def _asked(self) -> float | None:
        """When somebody has asked for the run to be cancelled, here or elsewhere."""
        return self._cancel_requested or self._run.cancel_requested

    def _outcome(self) -> Outcome:
        told = self._liveness.told if self._liveness else {}
        return self._report.outcome(self._alive, cancel_requested=self._asked(), **told)

    def _ask_backend(self, now: float) -> bool:
        """Ask which nodes are alive, when it is time to; whether the answer is news."""
        if self._question is None and now >= self._next_poll:
            self._question = Question(lambda: self._backend.liveness(self._handle), "liveness")
        if self._question is None or not self._question.answered(READ_TIMEOUT_S):
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
        self._poll_s = min(self._poll_s * 1.3, POLL_S[1], self._backend.ask_every_s)
        states = list(liveness.nodes) if liveness else []
        for node, state in enumerate(states):
            self._announcer.reached(node, liveness.detail if liveness and state == "unknown" else "")
            if state != "ended" or self._done(node):
                self._gone_since.pop(node, None)
                self._hear_of_lost_lines(node)
                if state == "running" and not self._done(node) and now - self._heard.get(node, now) > SILENT_S:
                    self._announcer.silent(node, now - self._heard.pop(node))
            elif now - self._gone_since.setdefault(node, now) < SETTLE_S:
                states[node], self._poll_s = "running", POLL_S[0]
            elif node < len(self._alive) and self._alive[node] != "ended":
                self._hear_last_words(node)
        self._next_poll = time.monotonic() + self._poll_s
        if liveness is None:
            return False
        self._alive, self._liveness = states, liveness
        return True

    def _hear_of_lost_lines(self, node: int) -> None:
        """A full disk is told while it is full, where the folder can be read from here: the stream says so only afterwards."""
        if self._done(node) or (changed := last_words_time(self._run, node)) == self._words_at.get(node):
            return
        self._words_at[node] = changed
        for event in last_words(self._run, node):
            total = event.fields.get("total")
            if event.name == "lines_lost" and isinstance(total, int) and total > 2 * self._report.nodes[node].lines_lost:
                self._take(node, event)

    def _hear_last_words(self, node: int) -> None:
        """What an agent that is gone has left elsewhere than in its stream."""
        for event in last_words(self._run, node):
            self._take(node, event)
        report = self._report.nodes[node]
        if report.result is None:
            report.last_words.extend(agent_stderr(self._run, node, started=report.started is not None))

    def _done(self, node: int) -> bool:
        return node < len(self._report.nodes) and self._report.nodes[node].result is not None

    def _obey(self, now: float) -> None:
        """Do what signals to the launcher ask for."""
        for signum in self._interrupts.for_workers():
            self._try("signal", signum)
        if self._interrupts.stops == self._stops_obeyed:
            return
        first, self._stops_obeyed = self._stops_obeyed == 0, self._interrupts.stops
        if first and self._stops_obeyed == 1:
            self._workers.end_line()
            output.note(f"cancelling {self._run.id}; once more to kill it")
            self._cancel(now, force=False, asked=True)
        elif not self._forced:
            self._workers.end_line()
            output.note(f"killing {self._run.id}")
            self._cancel(now, force=True, asked=True)

    def _enforce(self, now: float, outcome: Outcome) -> None:
        """See to it that a run that is to end does end."""
        gone = any(state == "ended" and not self._done(node) for node, state in enumerate(self._alive))
        failing = gone or any(self._ends_the_run(node) for node in outcome.nodes)
        if not (self._report.all_needed and failing):
            self._hanging_since = None
        else:
            self._hanging_since = self._hanging_since or now
        if self._deadline is None:
            limit, told = (
                (HANG_S, f"{HANG_S:.0f} s after one failed") if not gone or self._others_know() else (UNAWARE_S, "without it")
            )
            if outcome.comes_too_late:
                output.note(TOO_LATE)
                self._cancel(now, force=False, asked=False)
            elif self._hanging_since is not None and now - self._hanging_since > limit:
                output.warn(f"other nodes still run {told}; ending them")
                self._cancel(now, force=False, asked=False)
        elif now > self._deadline:
            if self._forced:
                self._given_up = True
            else:
                output.warn(f"{self._run.id} has not ended in its grace time; killing it")
                self._cancel(now, force=True, asked=False)

    def _others_know(self) -> bool:
        """Whether all agents that are left are ending, as one of them is gone."""
        left = (node for node in self._report.nodes if node.result is None and self._alive[node.node] != "ended")
        return all(node.failing or node.stopping for node in left)

    def _ends_the_run(self, node: NodeReport) -> bool:
        """Whether the others have nothing to wait for. Who starts runs again notices by itself that it has lost a node."""
        lost = self._report.may_start_again and may_come_back(node.cause)
        return node.failing and not lost and (node.result == "failed" or not self._report.may_start_again)

    def _cancel(self, now: float, *, force: bool, asked: bool) -> None:
        if asked:
            self._cancel_requested = time.time()
        self._try("cancel", asked=asked, force=force)
        self._forced = force
        self._deadline = now + (GIVE_UP_S if force else FORCE_S + self._run.grace_s)
        self._poll_s = POLL_S[0]
        self._next_poll = min(self._next_poll, now + self._poll_s)

    def _try(self, method: str, *args: Any, asked: bool = False, **keywords: Any) -> None:
        """Ask the backend for something; that it cannot is said, and the run goes on being followed."""

        def ask() -> None:
            call = partial(getattr(self._backend, method), self._handle, *args, **keywords)
            if not asked:
                call()
                return
            try:
                with records.cancelling(self._run, **keywords):
                    call()
            except StorageError as error:  # it cannot be noted; it is done all the same
                output.warn(error.message)
                call()

        errand = Question(ask, method)
        errand.answered(READ_TIMEOUT_S)
        self._errands.append((method, errand))

    def _release(self) -> None:
        """Have the backend let go of what the run still holds; who asks for an end does not wait for that."""
        stops, errand = self._interrupts.stops, Question(lambda: self._backend.release(self._handle), "release")
        while not errand.answered(READ_TIMEOUT_S):
            if self._interrupts.stops != stops:
                return
        try:
            errand.answer()
        except LaunchError as error:
            output.warn(f"{self._backend.name} may still hold something of the run: {error.message}")

    def _hear_errands(self) -> None:
        """What has become of what the backend was asked for."""
        for errand in [errand for errand in self._errands if errand[1].answered(0)]:
            self._errands.remove(errand)
            try:
                errand[1].answer()
            except LaunchError as error:
                output.warn(f"{self._backend.name} cannot {errand[0]} the run: {error.message}")


def _terminal(lent: dict[str, Any], workers: WorkerOutput) -> Terminal:
    from launcher.console.terminal import Terminal  # few runs have one

    return Terminal(lent, workers.pass_on)
