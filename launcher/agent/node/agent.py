"""The agent proper, one per node: starts the fork server, forwards signals and output, and reports the end."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Dict, Optional, Tuple

from ..channel import Message
from ..failures import RESULTS, Failure
from ..job import Job
from ..protocol import NOT_NEEDED, VERSION
from ..stream.stderr import Stderr
from ..stream.writer import Writer
from ..system import facts, garbage, processes, threads
from ..system.scratch import within
from . import environment, function_call, holding
from .children import ServerProcess
from .claim import Claim
from .joining import LOOK_S, Joining
from .loop import Loop
from .messages import Messages
from .outcome import Outcome
from .output import Output
from .place import Place
from .pulse import Pulse
from .stacks import Stacks
from .stopping import Stopping
from .stops import Stops
from .watchdog import Watchdog
from .workers import Workers

if TYPE_CHECKING:
    from ..environment.stage import Refused
    from ..forkserver.prefork import Forked
    from ..messages import ServerSetup

_FAREWELL_S = 6.0
_LAST_LINES_S = 1.0
_STDERR_BLOCKS = 32
_NOTES_S = 2.0


class Node:
    """One node's agent, from the first event to the last."""

    def __init__(self, job: Job, node_rank: int, stream_fd: int, forked: Optional[Forked] = None) -> None:
        """`forked`: the fork server, if it is already running."""
        job = function_call.as_script(job, node_rank)
        if job.claim:  # the nodes meet only once node 0 has it
            job = job._replace(rdzv_timeout_s=job.rdzv_timeout_s + job.claim["wait_s"])
        self.loop = Loop()
        self.stderr = Stderr()
        place = self.place = Place.take(job, node_rank)
        out = self.out = _stream(job, node_rank, stream_fd, place.directory)
        stops = Stops(place)
        place.forget_last_attempt(with_result=bool(job.attempt) and node_rank == 0 and not stops.cancelled())
        outcome = self.outcome = Outcome(place, stops)
        server = self.server = ServerProcess(job, node_rank, forked)
        joining = self.joining = Joining(place, out)
        workers = self.workers = Workers(out, Output(place, out, self.loop.selector, server.signal_group))
        stacks = Stacks(place, out, server, workers)
        self.watchdog = Watchdog(place, out, server=server, workers=workers, stacks=stacks, outcome=outcome)
        self.stopping = Stopping(
            place, out, self.loop, server=server, workers=workers, outcome=outcome, stops=stops, stacks=stacks
        )
        self.messages = Messages(
            place, out, self.stderr, self.loop, server=server, joining=joining, workers=workers, outcome=outcome,
            stopping=self.stopping, watchdog=self.watchdog,
        )  # fmt: skip
        self.pulse = Pulse(place, out, self.loop, server=server, workers=workers, analysis=outcome.analysis)

    def run(self, refused: Optional[Refused] = None) -> int:
        """Run the node to its end; returns the exit code of the agent. `refused`: why it cannot begin."""
        processes.become_subreaper()
        self.loop.catch_signals(self.stopping.hear_signals)
        threads.watch(self._thread_failed)
        self.place.scratch.keep_crash()
        garbage.collect()
        try:
            if refused:
                self._report(refused)
            elif not self._cancelled_meanwhile():
                self._begin()
            while not self._is_over():
                self._turn()
            self._end_processes()
            return self._done()
        except Exception as error:  # noqa: BLE001 - a bug, or a port that is taken: reported like any other failure
            self.loop.use_spare_files()
            trace = threads.trace_of(error)
            self.stderr.say(trace)
            self.outcome.fail(f"{type(error).__name__}: {error}", trace=trace)
            self._end_processes()
            return self._done()
        finally:  # also after a failed cleanup: this agent was not killed
            self.server.group.send({"ends": True})

    def _thread_failed(self, message: str, trace: str) -> None:
        self.stderr.say(trace)
        self.loop.thread_failed(message, trace)

    # -- start --------------------------------------------------------------------------------------------------------

    def _cancelled_meanwhile(self) -> bool:
        """Whether the run was cancelled before the scheduler started it, for example while it was queued."""
        if not self.stopping.stops.cancelled():
            return False
        self.out.event("agent_started", version=VERSION, run=self.place.job.run, host=self.place.host, pid=os.getpid())
        self.stopping.stops.reason, self.outcome.group_gone = Failure.CANCELLED, True
        return True

    def _report(self, refused: Refused) -> None:
        """Take what came before this agent could begin for its end."""
        self.out.event("agent_started", version=VERSION, run=self.place.job.run, host=self.place.host, pid=os.getpid())
        self.outcome.group_gone = True
        asked = self.stopping.stops.asked_by(refused.signal) if refused.signal else None
        if asked is not None:
            self.stopping.stops.reason = asked.reason
        else:
            self.outcome.fail(refused.message, secondary=refused.secondary)

    def _begin(self) -> None:
        job, place = self.place.job, self.place
        identity = place.identify(self.server.cgroup)
        where = {"python": sys.executable, "cwd": job.cwd, "output_dir": job.output_dir or job.cwd}
        place.project.note(_NOTES_S)
        again = {"after": job.why_again} if job.why_again else {}
        self.out.event("agent_started", version=VERSION, run=job.run, **identity, **where, **again)
        if job.warm_s:
            from ..forkserver import imported  # few runs are started warm

            self.server.may_stay = imported.used() is None
            self.out.event("warm_start", used=not self.server.may_stay, reason=job.cold)
        env, count, host_facts = self._environment()
        function_call.write(job, place.node_rank)
        if place.node_rank == 0:
            self.joining.endpoint.open()
        if job.claim:
            self.joining.look_at_fabric(env, self.loop.soft_limit)  # over SSH, the launcher waits for node 0's address
            if place.node_rank == 0 and not Claim(place, self.out).gained(self.loop, self.stopping.stops, self.outcome):
                return
        request: ServerSetup = {
            "job": job._replace(function=None)._asdict(),
            "env": env,
            "preload": environment.PRELOAD,
            "node_rank": place.node_rank,
            "host": place.host,
            "workers": count,
            "agent": os.getpid(),
            "directory": place.directory,
            "scratch": place.scratch.path,
            "files": self.loop.soft_limit,
            "ignored": self.loop.ignored,
        }
        self.server.start(request, self.joining.endpoint)
        if not job.claim:
            self.joining.look_at_fabric(env, self.loop.soft_limit)  # while the fork server imports torch
        self.messages.listen(host_facts)
        self._join()

    def _environment(self) -> Tuple[Dict[str, str], int, Message]:
        """The workers' variables, the number of workers, and the facts about the host."""
        env, count, threads, why = environment.of(self.place.job, self.place.node_rank)
        return env, count, {**facts.host(env), "threads": {"value": threads, "reason": why}}

    def _join(self) -> None:
        failure = self.joining.go_on(self.server)
        if failure:
            self.outcome.fail(**failure)

    # -- one turn of the loop -----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        looked = self.loop.turn(self._patience())
        now = time.monotonic()
        self.workers.output.attend(now, looked, holds=self.stopping.stops.reason is None)
        self.pulse.beat(now, self.watchdog.hang)
        self.stopping.keep_deadlines(now)
        self.watchdog.attend(now)
        if not self.joining.joined:
            self._join()
        self._hear_of_end(now)

    def _is_over(self) -> bool:
        """Whether no workers are left, also of those that the fork server has told of and we have not read of yet."""
        return self.stopping.over() and (not self.messages.catch_up() or self.stopping.over())

    def _patience(self) -> float:
        now = time.monotonic()
        until = [self.pulse.patience(now), self.workers.output.patience(now), self.stopping.patience(now)]
        until.append(self.watchdog.patience(now))
        if not self.joining.joined:
            until.append(0.02)
        elif not self.joining.met:
            until.append(LOOK_S)
        return max(0.0, min(until))

    def _hear_of_end(self, now: float) -> None:
        """Check whether a node failed before the rendezvous, or an elastic run finished before this node joined."""
        if self.outcome.failed is not None or not self.outcome.awaits_result():
            return
        ended = self.joining.ended(now)
        if ended is not None:
            self.outcome.failed = ended["cause"]
            if self.outcome.failed is None:
                self.out.event("warning", message=NOT_NEEDED)
                self.outcome.result, self.outcome.group_gone = {"result": "success"}, True

    # -- shutdown -----------------------------------------------------------------------------------------------------

    def _end_processes(self) -> None:
        """End all child processes, then read what is left in the pipes."""
        left = self.server.end(at_once=not self.workers, keep=self.workers.stuck)
        if self.server.stays:
            self.out.event("warm_left", **self.server.stays)
        for _ in range(_STDERR_BLOCKS):
            self.stderr.write(self.server.said() or b"")
        self.workers.output.finish()
        if left:
            self.out.event("warning", message=f"processes that survived SIGKILL: {left}")

    def _done(self) -> int:
        outcome = self.outcome
        result, why = outcome.verdict(self.messages.own_cause, met=self.joining.met)
        within(_FAREWELL_S, lambda: self.joining.end(result, why), None)
        self.place.project.leave()
        self.pulse.finish()
        holding.hold(self.place, self.out, self.stopping.stops, self.stopping.is_to_leave, result)
        self.place.scratch.close()
        if why is not None and result == "failed":
            self.out.event("failure", cause=why)
        code = RESULTS[result]
        duration = round(time.monotonic() - self.place.began, 3)
        told = {"exit_code": code, "cause": why, "restarts": outcome.restarts, "duration_s": duration, **outcome.early}
        self.out.event("done", result=result, **told)
        self.out.finish(self.place.job.stream_wait_s, self.stopping.is_to_leave, self.stderr.say)
        self.stderr.finish(_LAST_LINES_S)
        return code


def _stream(job: Job, node_rank: int, fd: int, directory: str) -> Writer:
    """The node's stream; that of node 0 may be told to others, too."""
    where = (fd, node_rank, directory, job.attempt, job.log_limit_bytes)
    if not job.notify or node_rank:
        return Writer(*where, plain=job.plain_stream)
    from .notices import Notices, Telling  # few runs tell anybody

    return Telling(Notices(job), *where, plain=job.plain_stream)
