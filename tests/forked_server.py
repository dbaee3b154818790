"""The process behind tests/forked.py: imports once what tests' processes need, and forks one of them per request.

A child ends as an interpreter does: threads are joined, exit hooks run, streams are flushed, what the script holds is destroyed.
Only the libraries that it got from the server are not taken apart, which would cost more than all else.

The server has one thread. An ended child stays a zombie until its owner knows of it, as any parent's does, so that a signal never
reaches a stranger with its pid. When the owner is gone, the server ends its children and itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import types
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_BYTES = 1 << 20
PATIENCE_S = 10.0
"""So long children may take to end after SIGTERM once nobody is there to wait for them."""

_IMPORT_TIME = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Set during the imports: OpenBLAS would start threads, and a count of GPUs would initialise CUDA; both do not survive a fork."""

_PR_SET_PDEATHSIG = 1
_OPENBLAS_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


class Recorder(os._Environ):  # type: ignore[type-arg]
    """`os.environ` while modules are imported: notes which variables they read, as those cannot be changed afterwards."""

    names: set[str] = set()  # noqa: RUF012 - the object exists already and changes its class

    def __getitem__(self, name: str) -> str:
        if isinstance(name, str):  # `os.get_exec_path` tries bytes first
            self.names.add(name)
        return super().__getitem__(name)  # type: ignore[no-any-return]


class Child:
    """A forked process, and the socket to whoever asked for it."""

    def __init__(self, pid: int, owner: socket.socket) -> None:
        self.pid, self.owner = pid, owner
        self.ended = self.known = False


class Server:
    """State of the server; `serve` returns in a child only, with what it is to become."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, Child] = {}
        self.original: dict[int, Any] = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.base_path = sys.path[1:]

    def serve(self) -> Callable[[], None]:
        """Import what is wanted, then answer requests until the owner is gone."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # a terminal's Ctrl-C is for the owner
        data = self.control.recv(MAX_BYTES)
        if not data:
            sys.exit()
        setup = json.loads(data)
        self._import(setup["preload"], setup["path"])
        wakeup, writer = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.poll = select.poll()
        self.poll.register(self.control, select.POLLIN)
        self.poll.register(wakeup, select.POLLIN)
        while True:
            for fd, _ in self.poll.poll():
                if fd == wakeup:
                    os.read(wakeup, 4096)
                    self._look()
                elif fd != self.control.fileno():
                    self._told(next(child for child in self.children.values() if child.owner.fileno() == fd))
                else:
                    data, fds, *_ = socket.recv_fds(self.control, MAX_BYTES, 4)
                    if not data:
                        self._end(wakeup)
                    task = self._fork(json.loads(data), fds)
                    if task is not None:
                        return task

    def _import(self, names: list[str], path: list[str]) -> None:
        """Import modules; of a name that ends in a dot the bare package, whose parts can then be imported one by one."""
        Recorder.names = set()
        sys.path[:] = [*path, *self.base_path]
        before = dict(os.environ)
        os.environ.update(_IMPORT_TIME)
        os.environ.__class__ = Recorder
        for name in names:
            if name.endswith("."):
                spec = importlib.util.find_spec(name[:-1])
                if spec is not None:
                    sys.modules[name[:-1]] = importlib.util.module_from_spec(spec)
            else:
                importlib.import_module(name)
        os.environ.__class__ = os._Environ
        set_environment(before)
        modules = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if "." not in name}
        threads = len(os.listdir("/proc/self/task"))
        about = {"read": sorted(Recorder.names - set(_IMPORT_TIME)), "modules": modules, "threads": threads}
        gc.collect()
        gc.freeze()  # the collector would otherwise write to every page that the children share
        self.control.sendall(json.dumps(about).encode())

    def _fork(self, request: dict[str, Any], fds: list[int]) -> Callable[[], None] | None:
        owner, *standard = fds
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with_parent(server)
            signal.set_wakeup_fd(-1)
            for wanted, fd in enumerate(standard):
                os.dup2(fd, wanted)
            self.control.detach()
            for child in self.children.values():
                child.owner.detach()
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            return lambda: become(
                request, self.original, self.base_path
            )  # at the top level: below it nothing of the server's is left
        for fd in standard:
            os.close(fd)
        child = self.children[pid] = Child(pid, socket.socket(fileno=owner))
        self.poll.register(owner, 0)  # that it is closed is always told
        self._tell(child, {"pid": pid})
        return None

    def _tell(self, child: Child, message: dict[str, int]) -> None:
        try:
            child.owner.sendall(json.dumps(message).encode())
        except OSError:  # it has been forgotten
            child.known = True

    def _look(self) -> None:
        """Tell of those that have ended."""
        for child in list(self.children.values()):
            if child.ended:
                continue
            end = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is None:
                continue
            child.ended = True
            self._tell(child, {"code": end.si_status if end.si_code == os.CLD_EXITED else -end.si_status})
            self._reap(child)

    def _told(self, child: Child) -> None:
        """Whoever asked for the child knows of its end, or has forgotten it."""
        self.poll.unregister(child.owner)
        child.known = True
        self._reap(child)

    def _reap(self, child: Child) -> None:
        if child.ended and child.known:
            os.waitpid(child.pid, 0)
            child.owner.close()
            del self.children[child.pid]

    def _end(self, wakeup: int) -> None:
        limit = time.monotonic() + PATIENCE_S
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        for child in list(self.children.values()):
            child.known = True
            self._reap(child)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self.children.values():
                os.kill(child.pid, number)
                os.kill(child.pid, signal.SIGCONT)
            while self.children and (number == signal.SIGKILL or time.monotonic() < limit):
                if poll.poll(max(0.0, limit - time.monotonic()) * 1000 if number != signal.SIGKILL else None):
                    os.read(wakeup, 4096)
                self._look()
        atexit._run_exitfuncs()
        os._exit(0)


# -- in the child -----------------------------------------------------------------------------------------------------------


def become(request: dict[str, Any], dispositions: Mapping[int, Any], base_path: list[str]) -> None:
    """Be the process that was asked for, from its first line to its end."""
    for number, handler in dispositions.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    if request["session"]:
        os.setsid()
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    set_environment(request["env"])
    time.tzset()
    open_streams()
    draw_seeds()
    set_threads(request["env"])
    argv: list[str] = request["argv"]
    set_title(argv)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = argv
    more = [os.path.abspath(entry) for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [request["first_path"], *dict.fromkeys([*more, *base_path])]
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    inherited = frozenset(sys.modules)
    end(run(argv), inherited)


def run(argv: list[str]) -> int:
    """Run `[python, SCRIPT, ...]`, `[python, -m, MODULE, ...]` or `[MODULE:FUNCTION, ...]`; the exit code."""
    module = types.ModuleType("__main__")
    names: dict[str, Any] = {} if sys.version_info >= (3, 14) else {"__annotations__": {}}
    module.__dict__.update(__builtins__=sys.modules["builtins"], __spec__=None, **names)
    sys.modules["__main__"] = module
    if "multiprocessing" in sys.modules:
        sys.modules["__mp_main__"] = module
    try:
        if ":" in argv[0]:
            sys.argv[:] = argv
            name, _, function = argv[0].partition(":")
            sys.exit(getattr(importlib.import_module(name), function)())
        elif argv[1] == "-m":
            sys.argv[:] = ["-m", *argv[3:]]
            runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]  # what `python -m` itself calls
        else:
            sys.argv[:] = argv[1:]
            path = os.path.join(os.getcwd(), argv[1])
            module.__dict__.update(__file__=path, __loader__=SourceFileLoader("__main__", path), __cached__=None)
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, module.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - as the interpreter's own last line of defence
        return died_of(error)
    return 0


def died_of(error: BaseException) -> int:
    """Print the traceback without the server's frames; the exit code."""
    mine = {__file__, runpy.__file__, "<frozen runpy>"}
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename in mine:
        shown = shown.tb_next
    error.__traceback__ = shown
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, shown
    sys.excepthook(type(error), error, shown)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def end(code: int, inherited: frozenset[str]) -> None:
    """End this process, as Py_Finalize does but for what was there before the script. A code below 0: by that signal."""
    threading._shutdown()  # type: ignore[attr-defined]  # as Py_Finalize calls it
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        gc.unfreeze()
        raise SystemExit(code) from None  # the interpreter has its own words for a stream that cannot be written
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    threading.excepthook = lambda _: None  # daemon threads, which an interpreter holds up while it is taken apart
    libc = ctypes.CDLL(None)
    own = [module for name, module in sys.modules.items() if name not in inherited]
    for module in [sys.modules["__main__"], *reversed(own)]:
        names = getattr(module, "__dict__", {})
        for name in reversed([name for name in names if not name.startswith("__")]):
            names[name] = None
    gc.collect()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
    libc.fflush(None)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def set_environment(env: Mapping[str, str]) -> None:
    """Make `os.environ`, and the C library's environment with it, exactly `env`."""
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def open_streams() -> None:
    """`sys.stdin`, `sys.stdout` and `sys.stderr` as the interpreter makes them for what is on 0, 1 and 2."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = io.FileIO(fd, "rb" if fd == 0 else "wb", closefd=False)
        raw.name = f"<{name}>"
        at_once = bool(fd and os.environ.get("PYTHONUNBUFFERED"))
        buffer: Any = raw if at_once else io.BufferedWriter(raw) if fd else io.BufferedReader(raw)
        lines = (fd == 2 or raw.isatty()) and not at_once
        text = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n" if fd else None, lines, at_once)
        vars(text)["mode"] = "r" if fd == 0 else "w"
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def draw_seeds() -> None:
    """New seeds where a process that starts draws them; `random` does so itself after a fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def set_threads(env: Mapping[str, str]) -> None:
    """As many threads for torch and numpy as they would have found in their environment when imported."""
    wanted = env.get("OMP_NUM_THREADS", "")
    torch = sys.modules.get("torch")
    if torch is not None and wanted.isdigit():
        torch.set_num_threads(int(wanted))
    if "numpy" not in sys.modules:
        return
    blas = env.get("OPENBLAS_NUM_THREADS") or env.get("GOTO_NUM_THREADS") or wanted
    count = int(blas) if blas.isdigit() and int(blas) > 0 else len(os.sched_getaffinity(0))
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "openblas" in line or "libgomp" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        if "libgomp" in path and wanted.isdigit():
            library.omp_set_num_threads(int(wanted))
        for name in _OPENBLAS_SETTERS:
            if "openblas" in path and hasattr(library, name):
                getattr(library, name)(count)
                break


def set_title(argv: list[str]) -> None:
    """Show `argv` in /proc/self/cmdline, over the server's own arguments, which are long."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end of proc_pid_stat(5)
    title = b"\0".join(os.fsencode(arg) for arg in argv) + b"\0"
    if start and len(title) <= end - start:
        ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when the server is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Server(socket.socket(fileno=int(sys.argv[1]))).serve()()
