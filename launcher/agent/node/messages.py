"""Handles the messages of the fork server and of the worker group's process."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, List, Optional

from .. import cause
from ..channel import Message
from ..failures import Failure
from ..stream.stderr import Stderr
from ..stream.writer import Writer
from . import function_call
from .children import ServerProcess
from .joining import Joining
from .loop import Loop
from .outcome import Outcome
from .place import Place
from .stopping import Stopping
from .watchdog import Watchdog
from .workers import Workers

if TYPE_CHECKING:
    from ..messages import AgentToGroup, Cause, LentTerminal, Result, ServerToAgent, StartedWorker


class Messages:
    """Reads both channels; handling a message from one may require reading the other."""

    def __init__(
        self,
        place: Place,
        out: Writer,
        stderr: Stderr,
        loop: Loop,
        *,
        server: ServerProcess,
        joining: Joining,
        workers: Workers,
        outcome: Outcome,
        stopping: Stopping,
        watchdog: Watchdog,
    ) -> None:
        self._place, self._out, self._stderr, self._loop = place, out, stderr, loop
        self._server, self._joining, self._workers = server, joining, workers
        self._outcome, self._stopping, self._watchdog = outcome, stopping, watchdog
        self._host_facts: Message = {}
        self._open = {"server", "group"}

    def listen(self, host_facts: Message) -> None:
        """Start reading; `host_facts` are reported together with those of the fork server."""
        self._host_facts = host_facts
        self._loop.on_input(self._server.channel.fileno(), self._from_server)
        self._loop.on_input(self._server.group.fileno(), self._from_group)
        self._loop.on_input(self._server.stderr, self._from_stderr)

    # -- the fork server ----------------------------------------------------------------------------------------------

    def _from_server(self) -> None:
        if "server" not in self._open or not self._server.channel.ready():
            return
        message, fds = self._server.channel.receive()
        if message is None:
            self._loop.forget(self._server.channel.fileno())
            self._open.discard("server")
            self._server_is_gone()
        elif "started" in message:
            self._worker_started(message["started"], fds, message["terminal"])
        elif "exited" in message:
            self._workers.exited(message["exited"])
            function_call.send_result(self._place.job, self._place.node_rank, message["exited"], self._out)
        elif "event" in message:
            ready = message["event"] == "host_facts"
            if ready:
                self._tell_early()
            self._out.event(message["event"], **(self._host_facts if ready else {}), **message["fields"])
        elif "failed" in message:
            self._server_failed(message)
        elif "group_exited" in message:
            self._group_exited(message["group_exited"])

    def catch_up(self) -> bool:
        """Take all that the fork server has sent already; returns whether there was anything."""
        heard = False
        while "server" in self._open and self._server.channel.ready():
            self._from_server()
            heard = True
        return heard

    def _from_stderr(self) -> None:
        """Pass on what processes other than workers write there."""
        said = self._server.said()
        if said is None:
            self._loop.forget(self._server.stderr)
        else:
            self._stderr.write(said)

    def _tell_early(self) -> None:
        """Report what the fork server has printed while it compiled and imported, as each worker would have done."""
        while said := self._server.said():
            self._stderr.write(said)
        text = self._server.said_early()
        if text:
            self._out.event("preload_output", text=text)

    def _worker_started(self, about: StartedWorker, fds: List[int], lent: Optional[LentTerminal]) -> None:
        while self._workers.round != about["round"] and self._from_group():  # its round was announced before
            pass
        self._workers.started(about, fds, lent)
        self._stopping.catch_up()

    def _server_failed(self, message: ServerToAgent) -> None:
        self._stderr.say(message.get("traceback", ""))
        what = message["failed"]
        if what == "store":
            self._part_ended("the process that serves the workers' store", message["code"])
        elif what in ("script", "server"):
            kind = Failure.USER_CODE if what == "script" else Failure.NODE
            self._outcome.fail(message["message"], kind, message["traceback"])
        else:
            last = message["traceback"].rstrip().rpartition("\n")[2]
            text = f"{sys.executable} cannot import {message['module']}: {last}"
            self._outcome.fail(text, Failure.NODE, message["traceback"])
        if what in ("script", "import") and self._outcome.failed is not None:
            self._tell_early()
            self._outcome.tells_until = self._joining.tell_failure(self._server, self._outcome.failed)

    def _server_is_gone(self) -> None:
        self._outcome.fail(*self._outcome.analysis.of_part("the fork server", self._server.exit_code()))
        self._workers.killed()
        self._outcome.group_gone = True

    def _group_exited(self, code: int) -> None:
        while self._from_group():  # its last messages are still in the socket
            pass
        self._outcome.group_gone = True
        if self._outcome.awaits_result():
            self._part_ended("the process of the worker group", code)

    def _part_ended(self, what: str, code: int) -> None:
        """Handle the end of a process without which the workers cannot continue."""
        self._stopping.break_down(*self._outcome.analysis.of_part(what, code))

    # -- the worker group's process -----------------------------------------------------------------------------------

    def _from_group(self) -> bool:
        """Take the next message if it is complete; returns whether one was taken.

        A message that was read is always taken: the loop would not see it in the channel's buffer.
        """
        if "group" not in self._open or not self._server.group.ready():
            return False
        message, _ = self._server.group.receive()
        if message is None:
            self._loop.forget(self._server.group.fileno())
            self._open.discard("group")
            # The fork server may be importing, and report the exit late.
            self._outcome.group_gone = self._outcome.group_gone or self._outcome.result is not None
        elif "event" in message:
            if message["event"] == "rendezvous":
                self._begin_round(message["fields"])
            self._out.event(message["event"], **message["fields"])
        elif "ask_cause" in message:
            self._answer_why()
        elif message.keys() & {"stacks_asked", "samples", "moves", "act"}:
            self._watchdog.hear(message)
        elif "first_cause" in message:  # None: all nodes restart, and what ended this round does not end the run
            self._outcome.first_cause = message["first_cause"]
            self._workers.round = self._workers.round if self._outcome.first_cause else -1
        elif "broken" in message:
            self._stderr.say(message["traceback"])
            self._stopping.break_down(message["broken"], trace=message["traceback"])
        elif "ended" in message:
            self._group_ended(message["ended"])
        return True

    def _group_ended(self, result: Result) -> None:
        self._outcome.result = result
        if result["result"] == "stopped_by_peer":
            word = result["word"]
            by = {"node": word.get("node"), "host": word.get("host")}
            self._stopping.stop(word["stop"], word["signal"], deadline=time.time() + word["left_s"], by=by)

    def _begin_round(self, about: Message) -> None:
        self._joining.met = True
        self._outcome.first_cause = self._outcome.hang = None
        self._outcome.restarts = about["restarts"]
        self._outcome.analysis.begin_round()
        self._place.scratch.keep(before=str(about["round"]))
        self._workers.begin_round(about["round"])
        self._workers.met = {key: about[key] for key in ("restarts", "master_addr", "master_port")}

    def _answer_why(self) -> None:
        """Answer the group's process, which asks why a worker exited."""
        self._stopping.look_for_own_signal()
        causes = [each for each in self._causes() if not self._stopping.is_cause_of(each)]
        why = self._outcome.hang or (
            cause.first(causes)
            if causes
            else self._outcome.analysis.of_node("a worker exited without a trace of the cause")
        )
        waited = {
            kind: [each["rank"] for each in causes if each["rank"] is not None and is_one(each)]
            for kind, is_one in cause.WAITED.items()
        }
        stopping = self._stopping.stops.reason is not None and not causes and not self._outcome.hang
        if not stopping:
            self._outcome.first_cause = why
        told: AgentToGroup = {"cause": why, "waited": waited, "final": self._outcome.final, "stopping": stopping}
        self._server.group.send(told)

    # -- causes -------------------------------------------------------------------------------------------------------

    def own_cause(self) -> Optional[Cause]:
        """The first failure of this node's workers, as published to the other nodes."""
        causes = [self._outcome.first_cause] if self._outcome.first_cause else self._causes()
        return cause.first(causes) if causes else None

    def _causes(self) -> List[Cause]:
        """The failures among this node's workers of the current round."""
        self.catch_up()
        workers = self._workers.of_this_round()
        for worker in workers:
            self._workers.output.drain(worker.output)
        return self._outcome.analysis.of_workers(workers)
