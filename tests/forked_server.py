"""The process behind tests/forked.py: imports once what tests' processes need, and forks one of them per request.

What a child does is in forked_child.py, which is beside this script.

The server has one thread. A child that has exited stays a zombie until its owner has been informed, as with any parent,
so a signal never reaches another process with its pid. When the owner has exited, the server ends its children and
itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # Python finds modules beside the script that it runs
    from forked_child import become, die_with_parent, set_environment  # type: ignore[import-not-found]

    del sys.modules["forked_child"]  # no script is to see it
else:
    from tests.forked_child import become, die_with_parent, set_environment

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 1 << 20
PATIENCE_S = 10.0
"""How long children may take to end after SIGTERM once their owner has exited."""

_IMPORT_TIME = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Set during imports: OpenBLAS would start threads, and counting GPUs would start CUDA; neither survives a fork."""


class Recorder(os._Environ):  # type: ignore[type-arg]
    """`os.environ` while modules are imported: records which variables they read, as these cannot be changed later."""

    names: set[str] = set()  # noqa: RUF012 - the object exists already and changes its class

    def __getitem__(self, name: str) -> str:
        if isinstance(name, str):  # `os.get_exec_path` tries bytes first
            self.names.add(name)
        return super().__getitem__(name)  # type: ignore[no-any-return]


class Child:
    """A forked process, and the socket to its owner."""

    def __init__(self, pid: int, owner: socket.socket) -> None:
        self.pid, self.owner = pid, owner
        self.ended = self.known = False


class Server:
    """State of the server; `serve` returns only in a child, with what the child is to become."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, Child] = {}
        self.original: dict[int, Any] = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.base_path = sys.path[1:]

    def serve(self) -> Callable[[], None]:
        """Import what is wanted, then answer requests until the owner has exited."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # Ctrl-C in a terminal is for the owner
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
                    self._report_exits()
                elif fd != self.control.fileno():
                    self._owner_knows(next(child for child in self.children.values() if child.owner.fileno() == fd))
                else:
                    data, fds, *_ = socket.recv_fds(self.control, MAX_BYTES, 4)
                    if not data:
                        self._end(wakeup)
                    task = self._fork(json.loads(data), fds)
                    if task is not None:
                        return task

    def _import(self, names: list[str], path: list[str]) -> None:
        """Import modules; `MODULE:FUNCTION` is called, too, to keep its result in its cache.

        For a name that ends in a dot only the bare package, whose parts can be imported one by one.
        """
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
                module, _, function = name.partition(":")
                imported = importlib.import_module(module)
                if function:
                    getattr(imported, function)()
        os.environ.__class__ = os._Environ
        set_environment(before)
        modules = {
            name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if "." not in name
        }
        threads = len(os.listdir("/proc/self/task"))
        about = {"read": sorted(Recorder.names - set(_IMPORT_TIME)), "modules": modules, "threads": threads}
        gc.collect()
        gc.freeze()  # or the collector would write to every page that the children share
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
            )  # called at the top level: no frame of the server is below it
        for fd in standard:
            os.close(fd)
        child = self.children[pid] = Child(pid, socket.socket(fileno=owner))
        self.poll.register(owner, 0)  # that it is closed is always reported
        self._send(child, {"pid": pid})
        return None

    def _send(self, child: Child, message: dict[str, int]) -> None:
        try:
            child.owner.sendall(json.dumps(message).encode())
        except OSError:  # its owner has closed it
            child.known = True

    def _report_exits(self) -> None:
        """Report the children that have exited."""
        for child in list(self.children.values()):
            if child.ended:
                continue
            end = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is None:
                continue
            child.ended = True
            self._send(child, {"code": end.si_status if end.si_code == os.CLD_EXITED else -end.si_status})
            self._reap(child)

    def _owner_knows(self, child: Child) -> None:
        """The owner of a child has been informed of its exit, or has closed the socket."""
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
                self._report_exits()
        atexit._run_exitfuncs()
        os._exit(0)


if __name__ == "__main__":
    Server(socket.socket(fileno=int(sys.argv[1]))).serve()()
