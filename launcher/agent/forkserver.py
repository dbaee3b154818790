"""The fork server: imports torch once per node and forks the workers from there; one thread, warm over restarts.

    agent ──channel── fork server ──fork── the process of the gang (gang_process.py), which asks for workers
                          └────────fork── one process per worker

It is the parent of the workers: it alone reaps and signals them, so a pid it names is always theirs. When the agent is gone it
ends everything below itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from importlib.machinery import PathFinder
from typing import Callable, Dict, List, NoReturn, Optional, Set

from . import again, cgroup, debugger, ending, hidden, imports, numa, processes, scratch, streams, traces, worker
from .channel import Channel, Message
from .guess import MAYBE, SURELY
from .program import Program
from .workers_store import WorkersStore

Task = Callable[[], None]
"""What a forked child is to do once it has left the server's frames."""

_IMPORT_TIME = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Set while torch is imported: numpy's OpenBLAS would start threads, and a CUDA count would initialise CUDA."""


_ROOM_BYTES = 1 << 30
"""Torch takes a third of that: whoever may use less gets it only where it is certain to be wanted."""

_LAST_WORD_S = 15.0
_PARENT_DIED = signal.SIGRTMAX
"""What the kernel sends us at the agent's end."""


def _nothing(_signum: int, _frame: object) -> None:
    """Signals are the agent's business; a scheduler that signals every process of a step means the workers."""


class ForkServer:
    """State of the server process; `serve` returns in the server never, and in each child with what it is to become."""

    def __init__(self, agent: Channel, gang_end: Channel) -> None:
        self.agent = agent
        self.gang_end = gang_end
        self.listen_fd: Optional[int] = None
        """Node 0's socket for the store, which the process of the gang takes over."""

        self.poll = select.poll()
        self.workers_store, self.last_store = WorkersStore(), WorkersStore()
        """Of this round, and of the one before until all nodes have ended its workers."""

        self.gang: Optional[Channel] = None
        self.gang_pid = 0
        self.workers: Dict[int, Message] = {}
        self.stopped: Set[int] = set()
        self.start, self.numa_binding = "fork", ""
        self.debug: Optional[int] = None
        self.macros = False
        self.again = False
        """Forked workers had to start again, so those of the next round are spawned."""

        self.imported: Dict[str, Set[str]] = {}
        """The packages that were asked for, each with all that it brought along."""

        self.before = traces.before()
        """How the interpreter was before the imports."""

        self.env: Dict[str, str] = {}

    def serve(self) -> Task:
        """Import, then answer requests until the agent is gone. A failure of ours is told like one of the script."""
        me = os.getpid()
        try:
            return self._serve()
        except Exception as error:  # noqa: BLE001 - nobody above would tell it
            import traceback

            if os.getpid() == me:
                self._fail("server", traceback.format_exc(), message=f"{type(error).__name__}: {error}")
            try:
                traceback.print_exc()
            finally:
                os._exit(1)

    def _serve(self) -> Task:
        setup = self._setup()
        job = setup["job"]
        elastic = job["min_nodes"] != job["max_nodes"]
        worker.set_environment(self.env)
        if not elastic:  # it meets the other nodes while this process imports
            task = self._fork_gang(setup)
            if task is not None:
                return task
        self._compile()
        self._spawn_where_a_fork_is_not_the_same()
        extra = [*(job["preload"] or []), *self.program.preloads()]
        self.preloads_more = bool(extra)
        forks = self.start == "fork"
        wants_torch = elastic or (forks and self._imports_torch_ahead())
        self._import([*(setup["preload"] if wants_torch else []), *(extra if forks else [])], with_torch=setup["preload"])
        self._spawn_where_a_fork_is_not_safe()
        if elastic:
            task = self._fork_gang(setup)
            if task is not None:
                return task
        gc.freeze()  # the collector would otherwise write to every page that the workers share
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self.wakeup = (reader, writer)
        for number in (signal.SIGCHLD, again.HEARD_BY):
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._reap()  # the process of the gang may have ended meanwhile
        assert self.gang is not None
        self.gang.send({"ready": True})
        return self._loop()

    # -- before the first fork ----------------------------------------------------------------------------------------

    def _setup(self) -> Message:
        setup, fds = self.agent.receive()
        if setup is None or "quit" in setup:  # the agent has ended, or failed before it could begin
            os._exit(0)
        self.listen_fd = next(iter(fds), None)
        processes.become_subreaper()
        processes.limit_files(setup["files"])  # the agent has raised it for itself; workers have what they would have without it
        numbers = processes.PASSED_ON | {signal.SIGCHLD, again.HEARD_BY}
        self.original = {n: handler for n in numbers if (handler := signal.getsignal(n)) is not None}
        self.original.update(dict.fromkeys(setup["ignored"], signal.SIG_IGN))
        for number in processes.PASSED_ON:
            signal.signal(number, _nothing)
        self.parent = os.getppid()
        if self.parent == setup["agent"]:
            signal.signal(_PARENT_DIED, self._parent_died)
            processes.die_with_parent(self.parent, _PARENT_DIED)
        job = setup["job"]
        self.start, self.numa_binding, self.debug = job["start"], job["numa_binding"], job["debug"]
        self.macros = job["macros"]
        self.env, self.scratch = setup["env"], setup["scratch"]
        self.program = Program(job["command"], job["kind"], job["cwd"], [] if self._other_python() else processes.options())
        archive = sys.path[0]
        sys.path.remove(archive)
        self.archive = archive
        return setup

    def _import(self, modules: List[str], *, with_torch: List[str]) -> None:
        """Import them; `with_torch`: also these, where one of them has imported torch."""
        worker.set_environment({**self.env, **_IMPORT_TIME})
        began = time.monotonic()
        if not getattr(sys.flags, "safe_path", False) and self.program.kind != "program":
            sys.path.insert(0, self.program.folder)  # not earlier: what is beside the script may be named like what we import
        self.before = traces.before()
        gc.disable()
        modules = list(modules)
        for name in modules:
            before = list(sys.modules)
            try:
                importlib.import_module(name)
                self.imported.setdefault(name.partition(".")[0], set()).update(hidden.packages(before))
                if "torch" in sys.modules:
                    modules += [more for more in with_torch if more not in modules]
            except BaseException:  # noqa: BLE001 - whatever it is, it is told and ends the run
                import traceback

                self._fail("import", traceback.format_exc(), module=name)
        gc.enable()
        worker.set_environment(self.env)
        torch = sys.modules.get("torch")
        cached = getattr(getattr(torch, "__spec__", None), "cached", None)
        facts = {
            "torch_version": str(torch.__version__) if torch else None,
            "import_s": round(time.monotonic() - began, 3),
            "bytecode": bool(cached) and os.path.exists(str(cached)) if torch else None,
        }
        self.agent.send({"event": "host_facts", "fields": facts})

    def _imports_torch_ahead(self) -> bool:
        """Where it is not certain that the workers will, it must neither be missed nor use up the memory of who has little."""
        wants = self.program.wants_torch()
        if wants != MAYBE:
            return wants == SURELY
        limit = cgroup.memory_limit()
        return (limit is None or limit >= _ROOM_BYTES) and PathFinder.find_spec(
            "torch", [self.program.folder, *sys.path]
        ) is not None

    def _compile(self) -> None:
        """Once for all workers, by the interpreter that runs them; where they have another one, it is theirs."""
        if self._other_python():
            return
        try:
            self.program.compile()
        except BaseException as error:  # noqa: BLE001 - as above
            import traceback

            error.__traceback__ = None
            text = "".join(traceback.format_exception(type(error), error, None))
            reads = f", says Python {sys.version.split()[0]}, {sys.executable}" if isinstance(error, SyntaxError) else ""
            self._fail("script", text, message=f"{type(error).__name__}: {error}{reads}")

    def _other_python(self) -> str:
        """What runs the workers instead of this interpreter, or nothing."""
        named = self.env.get("PYTHON_EXEC", "")
        return named if named and os.path.realpath(named) != os.path.realpath(sys.executable) else ""

    def _fail(self, what: str, trace: str, **about: str) -> NoReturn:
        """Tell the agent, and end."""
        self.agent.send({"failed": what, "traceback": trace, **about})
        os._exit(1)

    def _spawn_where_a_fork_is_not_the_same(self) -> None:
        """Start an interpreter per worker where it has to be another one, or the script wants variables to be read again."""
        early = self.program.early_variables() if self.start == "fork" else []
        if self.program.kind == "program":
            self.start = "spawn"
        elif self._other_python():
            self._spawn(f"PYTHON_EXEC names another interpreter, {self._other_python()}")
        elif self.numa_binding and "OMP_NUM_THREADS" not in self.env:
            self._spawn("torch counts the processors that a worker is bound to when it is imported")
        elif early:
            self._spawn(f"the script sets {', '.join(early)} before it imports torch")

    def _spawn_where_a_fork_is_not_safe(self) -> None:
        """Also where what was imported does not survive a fork."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        own = [] if self.start != "fork" else imports.named_like_imported(self.program.folder, executed=not self.preloads_more)
        threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 2
        if cuda is not None and cuda.is_initialized():
            self._spawn("a preloaded module has initialised CUDA, which does not survive a fork")
        elif threads != 1:
            self._spawn(f"the preloaded modules have started {threads - 1} threads, which a fork would lose")
        elif own:
            self._spawn(f"{own[0]} has the name of a module that was imported before the script")

    def _spawn(self, reason: str) -> None:
        """Fall back to one interpreter, with imports of its own, per worker, and say why."""
        if self.start == "fork":
            self.start = "spawn"
            self.agent.send({"event": "warning", "fields": {"message": f"workers are spawned, not forked: {reason}"}})

    def _fork_gang(self, setup: Message) -> Optional[Task]:
        mine, theirs = Channel.pair()
        server = os.getpid()
        pid = os.fork()
        if pid:
            theirs.close()
            self.gang_end.close()
            if self.listen_fd is not None:
                os.close(self.listen_fd)
            self.gang, self.gang_pid = mine, pid
            return None
        mine.close()
        self.agent.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(_PARENT_DIED, _nothing)
        processes.die_with_parent(server)
        if self.program.folder in sys.path[:1]:
            del sys.path[0]
        return lambda: _gang_main(setup, theirs, self.gang_end, self.listen_fd)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _loop(self) -> Task:
        assert self.gang is not None
        for fd in (self.agent.fileno(), self.gang.fileno(), self.wakeup[0]):
            self.poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in self.poll.poll()}
            if self.wakeup[0] in ready:
                self._awake()
            if self.workers_store.fd in ready:
                self._serve_workers_store()
            for channel in (self.agent, self.gang):
                if channel.fileno() not in ready or not channel.ready():
                    continue
                message, fds = channel.receive()
                if message is None and channel is self.agent:
                    self._agent_is_gone()
                elif message is None:
                    self.poll.unregister(channel.fileno())
                else:
                    task = self._answer(message, fds)
                    if task is not None:
                        return task

    def _awake(self) -> None:
        """A signal has come: workers have ended, or one starts again, or is in its debugger."""
        with contextlib.suppress(BlockingIOError):
            if again.HEARD_BY in os.read(self.wakeup[0], 4096):
                self._hear_why()
                self._hear_of_debugger()
        self._reap()

    def _answer(self, message: Message, fds: List[int]) -> Optional[Task]:
        if "start" in message:
            self.last_store.end()  # who starts a round has met all others
            return self._start(message["start"])
        if "signal" in message:
            self._signal(message["signal"], message.get("mark", True), message.get("repeat", True), message.get("rank"))
        elif "listens" in message:
            self._retire_workers_store()
            self.workers_store.fd = fds[0]
            self.poll.register(fds[0], select.POLLIN)
            if self.start == "spawn" and self.program.wants_torch() == SURELY:  # beside their own imports, not after them
                self._serve_workers_store()
        elif "sweep" in message:
            self.last_store.end()
            processes.sweep(keep={self.gang_pid, self.workers_store.pid, *self.workers})
            assert self.gang is not None
            self.gang.send({"swept": True})
        elif "quit" in message:
            self._quit()
        return None

    def _serve_workers_store(self) -> None:
        """Fork or start the process for it, as the workers themselves are."""
        self.poll.unregister(self.workers_store.fd)
        here = self.start == "fork" and "torch" in sys.modules
        argv = None if here else [sys.executable, os.path.abspath(self.archive)]  # PYTHON_EXEC is for workers alone
        self.workers_store.serve(argv, self.env, self._let_go)

    def _let_go(self) -> None:
        """In a child: what only this process may hold."""
        assert self.gang is not None
        self.agent.close()
        self.gang.close()
        for fd in self.wakeup:
            os.close(fd)

    def _retire_workers_store(self) -> None:
        """Other nodes may not have ended their workers yet, and what these make of the store's end is no cause of anything."""
        if self.workers_store.fd >= 0:
            self.poll.unregister(self.workers_store.fd)
            self.workers_store.end()
        self.last_store.end()
        self.last_store, self.workers_store = self.workers_store, WorkersStore()

    def _end_workers_stores(self) -> None:
        self.workers_store.end()
        self.last_store.end()

    def _quit(self) -> None:
        self._end_workers_stores()
        processes.sweep(patience_s=0.2)
        os._exit(0)

    def _agent_is_gone(self) -> None:
        """End everything; the process of the gang, last of all, tells the others of it."""
        self._end_workers_stores()
        processes.sweep(keep={self.gang_pid}, patience_s=0.2)
        limit = time.monotonic() + _LAST_WORD_S
        with contextlib.suppress(ChildProcessError):
            while not os.waitpid(self.gang_pid, os.WNOHANG)[0] and time.monotonic() < limit:
                time.sleep(0.01)
        scratch.remove(self.scratch)
        self._quit()

    def _parent_died(self, _signum: int, _frame: object) -> None:
        """The agent was killed while this process does not look at its channel, as it imports; or somebody else has sent this."""
        if os.getppid() != self.parent:
            signal.signal(_PARENT_DIED, _nothing)
            self._agent_is_gone()

    def _signal(self, number: int, mark: bool, repeat: bool, rank: Optional[int]) -> None:
        """To all workers, or to one rank with the processes of its group."""
        for pid, about in self.workers.items():
            if not repeat and pid in self.stopped:
                continue
            if mark:
                self.stopped.add(pid)
            if rank is None:
                os.kill(pid, number)
            elif about["rank"] == rank:
                try:
                    os.killpg(pid, number)
                except ProcessLookupError:  # it has just been forked, and has no group of its own yet
                    os.kill(pid, number)

    def _start(self, request: Message) -> Optional[Task]:
        ends = streams.made(request["terminal"]) if "terminal" in request else streams.pipes()
        server = os.getpid()
        # A signal that reaches the child before it has its own handlers back waits for them: with ours it would be lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, processes.PASSED_ON)
        pid = os.fork()
        if pid == 0:
            ends.close(ends.agent)
            task = self._child(server, request, ends)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return task
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ends.close(ends.worker)
        about: Message = {key: request[key] for key in ("rank", "local_rank", "round", "cpus") if key in request}
        self.workers[pid] = {**about, "pid": pid}
        self.agent.send({"started": self.workers[pid], "terminal": request.get("terminal")}, ends.agent)
        assert self.gang is not None
        self.gang.send({"started": self.workers[pid]})
        ends.close(ends.agent)
        return None

    def _hear_why(self) -> None:
        """Workers that have started again, and so those of the next round, have interpreters of their own; it is said once."""
        for pid in self.workers:
            with contextlib.suppress(OSError, ValueError), open(again.note_of(self.scratch, pid), encoding="ascii") as file:
                reasons = json.load(file)
                os.remove(file.name)
                if not self.again:
                    self.again = True
                    why = "; ".join(reasons)
                    text = f"workers start again, each in its own interpreter: {why}; --start spawn does so at once"
                    self.agent.send({"event": "warning", "fields": {"message": text}})

    def _hear_of_debugger(self) -> None:
        """A worker that has failed is kept in a debugger, which its end alone ends."""
        for pid, about in self.workers.items():
            with contextlib.suppress(OSError, ValueError), open(debugger.note_of(self.scratch, pid), encoding="ascii") as file:
                fields = {"rank": about["rank"], "pid": pid, "message": json.load(file)}
                os.remove(file.name)
                assert self.gang is not None
                self.gang.send({"debugged": fields})
                self.agent.send({"event": "debugger", "fields": fields})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.gang_pid:
                self.agent.send({"gang_exited": os.waitstatus_to_exitcode(status)})
            if pid == self.last_store.pid:
                self.last_store.pid = 0
            if pid == self.workers_store.pid:
                self.workers_store.pid = 0
                code = os.waitstatus_to_exitcode(status)
                self.agent.send({"failed": "store", "code": code})
            about = self.workers.pop(pid, None)
            if about is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            message = {"exited": {**about, "code": code, "stopped": pid in self.stopped, "time": time.time()}}
            self.stopped.discard(pid)
            self.agent.send(message)
            assert self.gang is not None
            self.gang.send(message)

    # -- in the child -------------------------------------------------------------------------------------------------

    def _child(self, server: int, request: Message, ends: streams.Streams) -> Task:
        ours = (_nothing, self._parent_died)
        worker.restore_signals({n: h for n, h in self.original.items() if signal.getsignal(n) in ours})
        processes.die_with_parent(server)
        os.setsid()
        if "cpus" in request:
            os.sched_setaffinity(0, numa.numbers(request["cpus"]))
        ends.become()
        self._let_go()
        if self.workers_store.fd >= 0:
            os.close(self.workers_store.fd)
        env = {**self.env, **request["env"]}
        program, python, archive = self.program, self.env.get("PYTHON_EXEC", sys.executable), self.archive
        if self.macros:
            program.substitute(local_rank=str(request["local_rank"]))
        argv, debug = program.argv(python), None
        if request["rank"] == self.debug and program.kind != "program":
            argv, debug = debugger.argv(python, archive, self.scratch, program), debugger.Debugger(self.scratch)
        if self.start == "spawn" or self.again:
            return lambda: again.execute(argv, env)
        if request.get("terminal", {}).get("stdin") in ("tty", "pipe"):
            worker.renew_stdin()
        imported, before, folder, collect = self.imported, self.before, self.scratch, self.preloads_more

        def hide() -> None:
            hidden.Hidden(imported, before, again.Again(argv, env, folder))

        return lambda: _become(program, archive, env, hide, debug, collect=collect)


def _become(
    program: Program,
    archive: str,
    env: Dict[str, str],
    hide: Callable[[], object],
    debug: Optional[debugger.Debugger],
    *,
    collect: bool,
) -> None:
    python = env.get("PYTHON_EXEC", sys.executable)
    worker.set_environment(env)
    worker.reseed()
    worker.set_blas_threads(env)
    ending.prepare(env, collect=collect)
    processes.set_title(program.argv(python))
    hide()
    worker.forget(__package__, archive)
    worker.run(program, python, *([debug] if debug else []))


def _gang_main(setup: Message, server: Channel, agent: Channel, listen_fd: Optional[int]) -> None:
    from . import gang_process

    try:
        code = gang_process.main(setup, server, agent, listen_fd)
    except BaseException as error:  # noqa: BLE001 - it is told as the cause
        import traceback

        gang_process.end_broken(agent, f"{type(error).__name__}: {error}", traceback.format_exc())
    os._exit(code)


def main(argv: List[str]) -> None:
    """`--fork-server AGENT_FD GANG_FD`, as the agent starts it."""
    serve(Channel.from_fd(int(argv[0])), Channel.from_fd(int(argv[1])))


def serve(agent: Channel, gang_end: Channel) -> None:
    """Be a fork server, and in its children what they are to become."""
    ending.install()
    task = ForkServer(agent, gang_end).serve()
    task()
