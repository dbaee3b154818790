"""The fork server: imports torch once per node and forks the workers from there; one thread, kept across restarts.

    agent ──channel── fork server ──fork── the worker group's process (group/process.py), which asks for workers
                          └────────fork── one process per worker

As the parent of the workers, only it reaps and signals them, so a pid that it names is always theirs. When the agent
has exited, it ends all of its own descendants.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from typing import TYPE_CHECKING, List, NoReturn, Optional

from ..channel import Channel
from ..contracts import load
from ..system import garbage, processes, scratch
from . import child, ending, imported, notes, setup, streams, worker, workers_store
from .agent import Agent
from .child import Task
from .forks import Child
from .group_process import GroupProcess
from .guess import SURELY
from .preload import Preload
from .signals import Signals
from .start_method import StartMethod
from .workers import Workers

if TYPE_CHECKING:
    from ..messages import GroupAgent, ServerAgent, WorkerRequest


class ForkServer:
    """The server process; `serve` returns only in its children, with their tasks."""

    def __init__(self, agent: Agent, group_end: GroupAgent) -> None:
        self.agent = agent
        self.setup = setup.receive(agent.channel)
        processes.become_subreaper()
        processes.limit_files(self.setup.message["files"])  # the agent has raised its own; workers get the original one
        self.poll = select.poll()
        self.stores = workers_store.WorkersStores(self.poll)
        self.group = GroupProcess(group_end)
        self.signals = Signals(self.setup.message["ignored"], self.setup.message["agent"], self._agent_is_gone)
        self.preload = Preload(self.setup, agent)
        self.start = StartMethod(self.setup, agent)
        whole = self.setup.program.kind == "program" and not load(self.setup.job["contract"]).mpi
        self.workers = Workers(agent, self.group.channel, self._child, whole=whole)
        self._imports: Optional[imported.Imported] = None
        """For a server that is to stay."""

    def serve(self) -> Task:
        """Import, then answer requests until the agent exits."""
        worker.set_environment(self.setup.env)
        task = self.group.fork(self.setup, self.agent, self.signals)  # it meets the other nodes while this one imports
        if task is not None:
            return task
        imported.forget_agent()
        self.preload.compile()
        self.start.look_at_program()
        self.preload.run(forks=self.start.forks)
        self.start.look_at_imports(preloads_more=self.preload.more)
        if self.start.forks:
            ending.look()
            worker.forget_lines()
        garbage.collect()  # in the workers, too
        woken = self.signals.listen()
        self._reap()  # the worker group's process may have exited meanwhile
        self.group.channel.send({"ready": True})
        if self.setup.job["warm_s"] and self.start.forks and imported.used() is None:
            from . import standing  # few runs leave one

            self._imports = standing.look(self.setup, self.preload)  # while the workers start
        return self._loop(woken)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _loop(self, woken: int) -> Task:
        """Answer requests; `woken` becomes ready when a signal has arrived."""
        agent, group = self.agent.channel, self.group.channel
        for fd in (agent.fileno(), group.fileno(), woken):
            self.poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in self.poll.poll(self.workers.patience_ms())}
            self.workers.give_up()
            if woken in ready:
                self._awake()
            if self.stores.present.fd in ready:
                self._serve_workers_store()
            if agent.fileno() in ready and agent.ready():
                task = self._hear_agent()
                if task is not None:
                    return task
            if group.fileno() in ready and group.ready():
                task = self._hear_group()
                if task is not None:
                    return task

    def _awake(self) -> None:
        """Handle a signal: workers have exited, or one starts again, or one is in its debugger."""
        if notes.HEARD_BY in self.signals.take():
            self.start.hear_of_workers(self.workers.pids())
            self.workers.hear_of_debugger(self.setup.scratch)
        self._reap()

    def _hear_agent(self) -> Optional[Task]:
        message, _ = self.agent.channel.receive()
        if message is None:
            self._agent_is_gone()
        elif "signal" in message:
            self.workers.signal(message)
        elif "stacks" in message:
            self.workers.ask_for_stacks(self.setup.scratch)
        elif "quit" in message:
            return self._quit(stays=message.get("stays", False))
        return None

    def _hear_group(self) -> Optional[Task]:
        message, fds = self.group.channel.receive()
        if message is None:
            self.poll.unregister(self.group.channel.fileno())
        elif "start" in message:
            self.stores.last.end()  # a node that starts a round has met all others
            return self.workers.start(message["start"], fds)
        elif "signal" in message:
            self.workers.signal(message)
        elif "listens" in message:
            self.stores.listen(fds[0])
            # At the same time as the workers' own imports, not after them.
            if not self.start.forks and self.setup.program.wants_torch() == SURELY:
                self._serve_workers_store()
        elif "sweep" in message:
            self.stores.last.end()
            mine = {self.group.pid, self.stores.present.pid}
            processes.sweep(keep={*mine, *self.workers.pids(), *self.workers.killed.left})
            self.group.channel.send({"swept": True})
        return None

    def _serve_workers_store(self) -> None:
        """Fork the process for it, or execute it if workers are not forked or torch is not imported."""
        here = self.start.forks and "torch" in sys.modules
        try:
            workers_store.check(getattr(sys.modules.get("torch.distributed"), "TCPStore", None))
        except NotImplementedError as error:
            self.agent.fail("server", "", message=str(error))
        # Not PYTHON_EXEC, which is only for workers.
        argv = None if here else [sys.executable, os.path.abspath(self.setup.archive)]
        self.stores.serve(argv, self.setup.env, self._let_go)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self.group.pid:
                self.agent.channel.send({"group_exited": code})
            if self.stores.reaped(pid):
                self.agent.channel.send({"failed": "store", "code": code})
            self.workers.reaped(pid, code)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _quit(self, *, stays: bool = False) -> Optional[Task]:
        """End all, and this process; `stays`: returns the task of a child that stays after the run."""
        self.stores.end()
        left = self.workers.killed.left
        processes.sweep(keep=left, patience_s=0.2)
        task = self._stay() if stays and not left else None
        if task is None:
            os._exit(0)
        return task

    def _stay(self) -> Optional[Task]:
        """Fork a process that serves the next run; None in this one, which has told the agent of it."""
        from . import standing

        ours, theirs = (end.detach() for end in socket.socketpair())
        fds = [self.agent.channel.fileno(), self.group.channel.fileno(), self.signals.fileno(), ours, theirs]
        imports, stay_s = self._imports, float(self.setup.job["warm_s"])
        reason = standing.why_not(executes=self.start.executes, own=fds)
        if reason or imports is None:
            self.agent.channel.send({"stays": {"reason": reason or "its workers were not forked"}})
            return None
        server = os.fork()
        if server:
            self.agent.channel.send({"stays": {"pid": server}}, [theirs])
            return None
        os.close(theirs)
        self.signals.become_standing()
        self._let_go()
        return lambda: standing.stay(standing.Server(imports, stay_s), ours)

    def _agent_is_gone(self) -> NoReturn:
        """End everything; the worker group's process comes last, as it notifies the other nodes."""
        self.stores.end()
        processes.sweep(keep={self.group.pid, *self.workers.killed.left}, patience_s=0.2)
        self.group.wait()
        scratch.remove(self.setup.scratch)
        processes.sweep(keep=self.workers.killed.left, patience_s=0.2)
        os._exit(0)

    # -- in a child ---------------------------------------------------------------------------------------------------

    def _child(self, server: int, request: WorkerRequest, ends: streams.Streams) -> Task:
        """Give a new worker its own signals, session, CPUs and descriptors; returns its task."""
        self.signals.become_worker(server)
        os.setsid()
        if "cpus" in request:
            from ..fabric import numa  # few runs bind their workers

            os.sched_setaffinity(0, numa.numbers(request["cpus"]))
        ends.become()
        self._let_go()
        if self.stores.present.fd >= 0:
            os.close(self.stores.present.fd)
        return child.task(self.setup, self.preload, request, executes=self.start.executes)

    def _let_go(self) -> None:
        """Close what only the fork server may hold."""
        self.agent.channel.close()
        self.group.channel.close()
        self.signals.let_go()


def main(argv: List[str]) -> None:
    """`--fork-server AGENT_FD GROUP_FD`, as the agent starts it."""
    serve(Channel.from_fd(int(argv[0])), Channel.from_fd(int(argv[1])))


def serve(channel: ServerAgent, group_end: GroupAgent) -> None:
    """Run as a fork server, and in its children run their tasks.

    In a child that stays, its children are agents, each of which forks a fork server of its own.
    """
    if imported.used() is None:
        ending.install()
    task = _task(Agent(channel), group_end)
    while True:
        try:
            task()
        except Child as next_child:
            task = next_child.task
        else:
            return


def _task(agent: Agent, group_end: GroupAgent) -> Task:
    """Return the task of a child of the server; an internal failure is reported like one of the script."""
    me = os.getpid()
    try:
        return ForkServer(agent, group_end).serve()
    except Exception as error:  # noqa: BLE001 - no caller would report it
        import traceback

        if os.getpid() == me:
            agent.fail("server", traceback.format_exc(), message=f"{type(error).__name__}: {error}")
        try:
            traceback.print_exc()
        finally:
            os._exit(1)
