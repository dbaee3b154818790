"""The agent proper: one per node. Starts the fork server, carries signals and output, keeps the deadlines, tells the end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import cause, facts, processes, threads
from .channel import Message
from .failures import RESULTS
from .job import THREADS, Job
from .joining import LOOK_S, NOT_NEEDED, Joining
from .output import PART_AFTER_S, Pipe, pipes
from .protocol import VERSION
from .scratch import Scratch, within
from .server import ServerProcess
from .stderr import Stderr
from .stops import STOPS, Stops
from .verdict import Blame, Worker
from .writer import Writer

if TYPE_CHECKING:
    from .prefork import Forked
    from .terminal import Terminal

_FAREWELL_S = 6.0
_LAST_LINES_S = 1.0
_SAME_SIGNAL_S = 1.0
_TOLD_S = 0.5
_LOOK_AT_ROOM_S = 0.1
_DRAINED_BLOCKS = 32
_SPARE_FILES = 16
_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that workers do not ignore, also where we were started so: torchrun handles them."""


class Node:
    """One node's agent, from the first event to the last."""

    def __init__(self, job: Job, node_rank: int, stream_fd: int, forked: Optional[Forked] = None) -> None:
        """`forked`: the fork server, where it is there already."""
        self.job = job
        self.node_rank = node_rank
        self.host = os.environ.get("DISTLAUNCH_HOST") or socket.gethostname()
        self.folder = os.path.join(job.folder, "nodes", str(node_rank))
        os.makedirs(self.folder, exist_ok=True)
        self.files = processes.allow_all_files()
        self.spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE_FILES)]
        self.stderr = Stderr()
        self.scratch = Scratch(self.folder)
        self.out = Writer(stream_fd, node_rank, self.folder, job.attempt, job.log_limit_bytes)
        self.began = time.monotonic()
        self.stops = Stops(job, self.folder, self.scratch.path)
        self._forget_last_attempt()
        self.blame = Blame(self.host, node_rank, self.folder, self.scratch.path)
        self.server = ServerProcess(job, node_rank, forked)
        self.joining = Joining(job, node_rank, self.host, self.folder, self.out)
        self.workers: Dict[int, Worker] = {}
        self.round = -1
        self.pipes: Dict[int, Pipe] = {}
        self.terminals: Dict[int, Terminal] = {}
        """By the pids of their workers; none where the launcher has no terminal."""

        self.reads_pipes = True
        self.restarts = 0
        self.result: Optional[Message] = None
        self.server_open = self.gang_open = True
        self.gang_gone = False
        self.linger_until: Optional[float] = None
        self.first_cause: Optional[cause.Cause] = None
        """Of the present round, as the other nodes were told it."""

        self.failed: Optional[cause.Cause] = None
        self._early: Dict[str, bool] = {}
        """Said with its `done` by a node that has left well before the others."""

        self.broken: Optional[Tuple[str, str]] = None
        """Message and traceback of a thread of ours that has failed."""

        self.ignored: List[int] = []
        """Signals that were when this process began, and that workers are to ignore."""

        self.heartbeat_at = time.monotonic() + job.heartbeat_s
        self.selector = selectors.DefaultSelector()

    def _forget_last_attempt(self) -> None:
        """A scheduler may start the run again in the same folder."""
        errors = os.path.join(self.folder, "errors")
        kept = os.listdir(errors) if os.path.isdir(errors) else []
        old = [os.path.join(self.folder, "deadline"), *(os.path.join(errors, name) for name in kept)]
        if self.job.attempt and self.node_rank == 0 and not self.stops.cancelled():
            old.append(os.path.join(self.job.folder, "result.json"))
        for path in old:
            with contextlib.suppress(OSError):
                os.remove(path)

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Everything; returns the exit code of the agent."""
        processes.become_subreaper()
        self._catch_signals()
        threads.watch(self._thread_failed)
        self.scratch.keep_crash()
        try:
            if not self._cancelled_meanwhile():
                self._begin()
            while not self._ended():
                self._turn()
            self._end_processes()
            return self._done()
        except Exception as error:  # noqa: BLE001 - a bug of ours, or a port that is taken: told like any other failure
            for fd in self.spare:  # it may be that we had none left, and ending needs some
                os.close(fd)
            trace = threads.trace_of(error)
            self.stderr.say(trace)
            self._fail(f"{type(error).__name__}: {error}", trace=trace)
            self._end_processes()
            return self._done()
        finally:  # whoever could not end what it had started has not been killed
            self.server.gang.send({"ends": True})

    def _thread_failed(self, message: str, trace: str) -> None:
        """Called in that thread; the loop goes on from here."""
        self.broken = (message, trace)
        self.stderr.say(trace)
        with contextlib.suppress(BlockingIOError):  # it is full: the loop wakes anyway
            os.write(self._wake, b"\0")

    def _cancelled_meanwhile(self) -> bool:
        """A scheduler may start a cancelled run: it waited for nodes, or was requeued, or nobody knew that it was there."""
        if not self.stops.cancelled():
            return False
        self.out.event("agent_started", version=VERSION, run=self.job.run, host=self.host, pid=os.getpid())
        self.stops.reason, self.gang_gone = "cancelled", True
        return True

    def _begin(self) -> None:
        ticks = processes.start_ticks(os.getpid())
        identity = {"pid": os.getpid(), "start_ticks": ticks, "host": self.host}
        # For who ends what a killed agent has left, or connects to a worker's terminal.
        with contextlib.suppress(OSError), open(os.path.join(self.folder, "agent.json"), "w", encoding="ascii") as file:
            more = {"cgroup": self.server.cgroup, "scratch": self.scratch.path, "python": sys.executable}
            json.dump({**identity, **more, "node": os.environ.get("SLURMD_NODENAME", "")}, file)
        where = {"python": sys.executable, "cwd": self.job.cwd}
        again = {"after": self.job.why_again} if self.job.why_again else {}
        self.out.event("agent_started", version=VERSION, run=self.job.run, **identity, **where, **again)
        env = self.job.environment(dict(os.environ), self.node_rank)
        count = self.job.workers if isinstance(self.job.workers, int) else max(1, len(facts.gpus(env)))
        threads, why = self.job.threads(env, count)
        env.update({THREADS: threads} if threads else {})
        self.host_facts = {**facts.host(env), "threads": {"value": threads, "reason": why}}
        if self.node_rank == 0:
            self.joining.endpoint.open()
        about = {"node_rank": self.node_rank, "host": self.host, "workers": count, "agent": os.getpid(), "files": self.files}
        about.update(folder=self.folder, scratch=self.scratch.path, ignored=self.ignored)
        self.server.start(env, about, self.joining.endpoint)
        self.joining.look_at_fabric(env)  # while torch is imported
        self.selector.register(self.server.channel.fileno(), selectors.EVENT_READ, self._from_server)
        self.selector.register(self.server.gang.fileno(), selectors.EVENT_READ, self._from_gang)
        self.selector.register(self.server.stderr, selectors.EVENT_READ, self._from_stderr)
        self._join()

    def _join(self) -> None:
        failure = self.joining.go_on(self.server)
        if failure:
            self._fail(**failure)

    # -- one turn of the loop -----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        ready = self.selector.select(self._patience())
        looked = time.monotonic()
        for key, _ in ready:
            if isinstance(key.data, Pipe):
                self._read(key.data)
            else:
                key.data()
        now = time.monotonic()
        for terminal in self.terminals.values():
            terminal.look(now)
        for pipe in self.pipes.values():
            pipe.flush_part(self.out, looked)  # of what was read in this turn the rest may be there already
        self.out.flush()
        self._hold_back()
        if now >= self.heartbeat_at:
            self.heartbeat_at = now + self.job.heartbeat_s
            self.out.event("heartbeat", workers=len(self._running()))
        self._keep_deadlines(now)
        if not self.joining.joined:
            self._join()
        self._hear_of_end(now)

    def _hear_of_end(self, now: float) -> None:
        """Another node may have failed before all have met, or an elastic run be over before this one has."""
        if self.failed is None and self.result is None and self.stops.reason is None:
            ended = self.joining.ended(now)
            if ended is not None:
                self.failed = ended["cause"]
                if self.failed is None:
                    self.out.event("warning", message=NOT_NEEDED)
                    self.result, self.gang_gone = {"result": "success"}, True

    def _patience(self) -> float:
        now = time.monotonic()
        until = [self.heartbeat_at - now]
        if not self.joining.joined:
            until.append(0.02)
        elif not self.joining.met:
            until.append(LOOK_S)
        if any(pipe.waits for pipe in self.pipes.values()):
            until.append(PART_AFTER_S)
        if not self.reads_pipes:
            until.append(_LOOK_AT_ROOM_S)
        until += [terminal.patience(now) for terminal in self.terminals.values()]
        if self.stops.kill_at is not None:
            until.append(self.stops.kill_at - now)
        elif self.job.time_limit_s is not None and not self._ended_well():
            until.append(self.began + self.job.time_limit_s - now)
        if self.linger_until is not None:
            until.append(self.linger_until - now)
        return max(0.0, min(until))

    def _keep_deadlines(self, now: float) -> None:
        limit = self.job.time_limit_s
        if limit is not None and self.stops.reason is None and not self._ended_well() and now - self.began >= limit:
            self._stop("timeout", signal.SIGTERM)
        if self.stops.kill_at is not None and now >= self.stops.kill_at:
            self.stops.kill_at = now + 1.0
            self.server.signal(signal.SIGKILL)

    def _ended(self) -> bool:
        """No workers are left, and the process of the gang has said its last or had time for it."""
        if self._running():
            return False
        if self.gang_gone or (self.failed is not None and self.result is None):
            return True
        if self.stops.reason is None:
            return False
        if self.linger_until is None:  # for word to the other nodes; an import or a rendezvous need not end first
            self.linger_until = time.monotonic() + (_FAREWELL_S if self.workers else 1.0)
        return time.monotonic() >= self.linger_until

    def _hold_back(self) -> None:
        """Leave what workers write in their pipes while the stream takes nothing; while they are to end, it is lost instead."""
        self.out.holds = self.stops.reason is None
        reads = not self.out.must_wait(waits=not self.reads_pipes)
        if reads != self.reads_pipes:
            self.reads_pipes = reads
            for pipe in self.pipes.values():
                self._register(pipe)

    def _register(self, pipe: Pipe) -> None:
        """Read from it now, or do not."""
        if self.pipes.get(pipe.fd) is not pipe:
            return
        with contextlib.suppress(KeyError):
            self.selector.unregister(pipe.fd)
        if self.reads_pipes and not pipe.held:
            self.selector.register(pipe.fd, selectors.EVENT_READ, pipe)

    def _read(self, pipe: Pipe) -> None:
        if self.pipes.get(pipe.fd) is not pipe:
            return
        pipe.read(self.out)
        if pipe.ended:
            with contextlib.suppress(KeyError):  # it was not being read
                self.selector.unregister(pipe.fd)
            del self.pipes[pipe.fd]
            os.close(pipe.fd)
            self.out.rank_ended(pipe.tag)  # what its worker has left may have written since that ended

    def _running(self) -> List[Worker]:
        return [worker for worker in self.workers.values() if worker.exited is None]

    # -- messages -----------------------------------------------------------------------------------------------------

    def _from_server(self) -> None:
        if not self.server_open or not self.server.channel.ready():
            return
        message, fds = self.server.channel.receive()
        if message is None:
            self.selector.unregister(self.server.channel.fileno())
            self.server_open = False
            self._server_is_gone()
        elif "started" in message:
            self._worker_started(message["started"], fds, message["terminal"])
        elif "exited" in message:
            self._worker_exited(message["exited"])
        elif "event" in message:
            more = self.host_facts if message["event"] == "host_facts" else {}
            self.out.event(message["event"], **more, **message["fields"])
        elif "failed" in message:
            self._server_failed(message)
        elif "gang_exited" in message:
            self._gang_exited(message["gang_exited"])

    def _from_stderr(self) -> None:
        """What is said there by the processes that are not workers."""
        said = self.server.said()
        if said is None:
            self.selector.unregister(self.server.stderr)
        else:
            self.stderr.write(said)

    def _worker_started(self, about: Message, fds: List[int], lent: Optional[Message]) -> None:
        while self.gang_open and self.round != about["round"] and self.server.gang.ready():  # it has told of its round before
            self._from_gang()
        worker = Worker(about, self._lend(about, fds, lent) if lent else pipes(fds, self.node_rank, about["rank"]))
        self.workers[about["pid"]] = worker
        for pipe in worker.output.values():
            self.pipes[pipe.fd] = pipe
            self._register(pipe)
        self.out.event("worker_started", **about)
        if self.stops.reason is not None:  # it was on its way when the others got the signal
            self.server.signal(signal.SIGTERM, repeat=False)

    def _lend(self, about: Message, fds: List[int], lent: Message) -> Dict[str, Pipe]:
        """Its output, where it has something of the launcher's terminal or stdin."""
        from .terminal import Loop, lend  # few runs have one

        loop = Loop(self.selector, self.out, self.out.event, self._register, self.server.signal_group)
        lent_to, output = lend(lent, fds, self.node_rank, about["rank"], self.scratch.path, loop)
        if lent_to is not None:
            self.terminals[about["pid"]] = lent_to
        return output

    def _worker_exited(self, about: Message) -> None:
        worker = self.workers[about["pid"]]
        worker.exited = about
        self._drain(worker)
        if about["pid"] in self.terminals:
            self.terminals.pop(about["pid"]).close()
        for pipe in worker.output.values():
            self.out.rank_ended(pipe.tag)
        code = about["code"]
        how = {"signal": cause.signal_name(-code)} if code < 0 else {"exit_code": code}
        fields = {key: about[key] for key in ("rank", "local_rank", "pid", "round", "stopped")}
        self.out.event("worker_exited", **fields, **how)

    def _drain(self, worker: Worker) -> None:
        for pipe in worker.output.values():
            for _ in range(_DRAINED_BLOCKS):  # all that fits into a pipe, whoever else writes to it
                if pipe.ended or pipe.fd not in self.pipes or not pipe.read(self.out):
                    break
            if pipe.ended and pipe.fd in self.pipes:
                self._read(pipe)

    def _from_gang(self) -> None:
        if not self.gang_open or not self.server.gang.ready():  # read to its end in the same turn of the loop, or a part came
            return
        message, _ = self.server.gang.receive()
        if message is None:
            self.selector.unregister(self.server.gang.fileno())
            self.gang_open = False
            self.gang_gone = self.gang_gone or self.result is not None  # the fork server, which imports, may say so late
        elif "event" in message:
            if message["event"] == "rendezvous":
                self._begin_round(message["fields"])
            self.out.event(message["event"], **message["fields"])
        elif "cause?" in message:
            self._look_for_own_signal()
            causes = self._causes()
            why = cause.first(causes) if causes else self.blame.of_node("a worker ended, and left no trace of why")
            waited = {kind: [each["rank"] for each in causes if told(each)] for kind, told in cause.WAITED.items()}
            self.first_cause = why
            self.server.gang.send({"cause": why, "waited": waited})
        elif "first cause" in message:  # none: all start again, and what ended this round does not end the run
            self.first_cause = message["first cause"]
            self.round = self.round if self.first_cause else -1
        elif "broken" in message:
            self.stderr.say(message["traceback"])
            self._break_down(message["broken"], trace=message["traceback"])
        elif "result" in message:
            self.result = message
            word = message.get("word", {})
            if message["result"] == "stopped_by_peer" and self.stops.reason is None:
                by = {"node": word.get("node"), "host": word.get("host")}
                self._stop(word["stop"], word["signal"], deadline=word["deadline"], by=by)

    def _begin_round(self, about: Message) -> None:
        self.joining.met = True
        self.round, self.first_cause = about["round"], None
        self.scratch.keep(before=str(self.round))
        # Word of the last ends in the round before may still be on its way.
        left = {pid: worker for pid, worker in self.workers.items() if worker.exited is None}
        self.workers = {**left, **self._of_this_round()}
        self.restarts = about["restarts"]

    def _causes(self) -> List[cause.Cause]:
        """The failures among this node's workers of the present round."""
        while self.server_open and self.server.channel.ready():
            self._from_server()
        workers = self._of_this_round()
        for worker in workers.values():
            self._drain(worker)
        return self.blame.of_workers(workers.values())

    def _own_cause(self) -> Optional[cause.Cause]:
        """The first failure of this node's workers, as the other nodes were told it."""
        causes = [self.first_cause] if self.first_cause else self._causes()
        return cause.first(causes) if causes else None

    def _of_this_round(self) -> Dict[int, Worker]:
        return {pid: worker for pid, worker in self.workers.items() if worker.about["round"] == self.round}

    def _fail(self, message: str, kind: str = "node", trace: Optional[str] = None) -> None:
        """The node itself fails; what comes after a stop, or after a first failure, is not the cause."""
        if self.failed is None and self.stops.reason is None:
            self.failed = self.blame.of_node(message, kind, traceback=trace)

    def _break_down(self, message: str, kind: str = "node", trace: Optional[str] = None) -> None:
        """A part of ours has failed: the workers have their grace time."""
        self._fail(message, kind, trace)
        self.stops.kill_at = self.stops.kill_at or time.monotonic() + self.job.grace_s
        self.server.signal(signal.SIGTERM)

    def _server_failed(self, message: Message) -> None:
        self.stderr.say(message.get("traceback", ""))
        if message["failed"] in ("script", "server"):
            self._fail(message["message"], "user_code" if message["failed"] == "script" else "node", message["traceback"])
            return
        if message["failed"] == "store":
            self._break_down(*self.blame.of_part("the process that serves the workers' store", message["code"]))
            return
        last = message["traceback"].rstrip().rpartition("\n")[2]
        name = message["module"]
        self._fail(f"{sys.executable} cannot import {name}: {last}", "node", message["traceback"])

    def _server_is_gone(self) -> None:
        code = self.server.exit_code()
        self._fail(*self.blame.of_part("the fork server", code))
        for worker in self._running():
            worker.exited = {**worker.about, "code": -int(signal.SIGKILL), "stopped": True, "time": time.time()}
        self.gang_gone = True

    def _gang_exited(self, code: int) -> None:
        while self.gang_open and self.server.gang.ready():  # what it said last is still in the socket
            self._from_gang()
        self.gang_gone = True
        if self.result is None and self.stops.reason is None:
            self._break_down(*self.blame.of_part("the process of the gang", code))

    # -- signals and the end ------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        ignored = {number for number in processes.PASSED_ON if signal.getsignal(number) is signal.SIG_IGN}
        self.ignored = sorted(ignored - _HANDLED)
        for number in processes.PASSED_ON - (ignored & {signal.SIGHUP}):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wakeup, self._wake = reader, writer
        self.selector.register(reader, selectors.EVENT_READ, self._from_signals)

    def _from_signals(self) -> None:
        if self.broken is not None:
            self._break_down(self.broken[0], trace=self.broken[1])
            self.broken = None
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._wakeup, 4096):
                ask = self.stops.asked_by(number)
                if ask is not None:
                    self._stop(ask.reason, ask.signal, deadline=ask.deadline, forward=ask.forward)
                elif number in processes.PASSED_ON and not self.job.signals_reach_workers:
                    self.server.signal(number, mark=False)

    def _look_for_own_signal(self) -> None:
        """Whoever signals the workers, too, signals us a moment sooner or later: what that ended has not failed."""
        if not self.job.signals_reach_workers or self.stops.reason is not None:
            return
        ended = [worker.exited for worker in self._of_this_round().values() if worker.exited is not None]
        if any(-about["code"] in STOPS and not about["stopped"] for about in ended):
            select.select([self._wakeup], [], [], _SAME_SIGNAL_S)
            self._from_signals()

    def _stop(
        self,
        reason: str,
        number: int,
        *,
        deadline: Optional[float] = None,
        by: Optional[Dict[str, Any]] = None,
        forward: bool = True,
    ) -> None:
        """The signal to all workers, with a deadline. `by`: the other node that was asked to stop, and has told us."""
        if self.stops.reason is not None:
            return
        if self._ended_well():  # there is nothing to stop, only to be quick
            self.server.gang.send({"stop": reason, "leaves": True})
            return
        if by is None and self._is_done(reason):
            self.server.gang.send({"stop": reason, "done": True})
            self._early = {"early": True}
            return
        self.failed = self.failed or self.first_cause
        for terminal in self.terminals.values():
            terminal.go_on()
        deadline = self.stops.begin(reason, deadline)
        told: Dict[str, Any] = {} if by is None else {"by": by}
        self.out.event("stopping", reason=reason, signal=cause.signal_name(number), deadline=round(deadline, 3), **told)
        self.out.settle(_TOLD_S)  # a worker may take its agent with it, and the next attempt is to know why it begins
        if by is None:
            leaves = self.job.elastic and self.node_rank > 0 and reason == "preempted"  # the others go on without it
            self.server.gang.send({"stop": reason, "deadline": deadline, "signal": int(number), "leaves": leaves})
        if forward:
            self.server.signal(number)

    def _is_done(self, reason: str) -> bool:
        """Whether a node that is taken back has done its part, and the others can do without it, as none will start again."""
        job, ended = self.job, [worker.exited for worker in self._of_this_round().values()]
        alone = self.node_rank > 0 and not job.elastic and not job.max_restarts and job.replaces_lost
        return alone and reason == "preempted" and bool(ended) and all(about and about["code"] == 0 for about in ended)

    def _end_processes(self) -> None:
        """End everything below us, then read what is left in the pipes."""
        left = self.server.end(at_once=not self.workers)
        for _ in range(_DRAINED_BLOCKS):
            self.stderr.write(self.server.said() or b"")
        for pipe in list(self.pipes.values()):
            while pipe.read(self.out):
                self.out.flush()
            self.out.rank_ended(pipe.tag)
        for terminal in self.terminals.values():
            terminal.close()
        if left:
            self.out.event("warning", message=f"processes that do not die, even of SIGKILL: {left}")

    def _done(self) -> int:
        result, why = self._verdict()
        within(_FAREWELL_S, lambda: self.joining.end(result, why), None)
        self.scratch.close()
        if why is not None and result == "failed":
            self.out.event("failure", cause=why)
        code = RESULTS[result]
        duration = round(time.monotonic() - self.began, 3)
        told = {"exit_code": code, "cause": why, "restarts": self.restarts, "duration_s": duration, **self._early}
        self.out.event("done", result=result, **told)
        self.out.finish(self.job.stream_wait_s, self._is_to_leave, self.stderr.say)
        self.stderr.finish(_LAST_LINES_S)
        return code

    def _is_to_leave(self) -> bool:
        """Whether somebody signals an agent that only waits for its stream any more."""
        with contextlib.suppress(BlockingIOError):
            return any(number in STOPS for number in os.read(self._wakeup, 4096))
        return False

    def _ended_well(self) -> bool:
        """Whether the workers of all nodes have: whatever asks for an end after that comes too late."""
        return self.result is not None and self.result["result"] == "success"

    def _verdict(self) -> Tuple[str, Optional[cause.Cause]]:
        if self.failed is None and self.stops.reason is not None and not self._ended_well():
            return self.stops.reason, self.blame.of_stop(self.stops.reason, self.job.time_limit_s)
        said = self.result or {"result": "failed", "error": "the process of the gang ended without a result", "secondary": True}
        result, why = ("failed", self.failed) if self.failed else self.blame.of_result(said, self._own_cause())
        if why is not None and self.job.replaces_lost and self.job.max_nodes > 1:
            lost = said.get("lost") or said.get("word", {}).get("kind") == "lost"
            result = "lost" if lost or (self.joining.met and why.get("secondary")) else result
        return result, why
