"""The store in which the workers of one round meet: torch's, at MASTER_ADDR:MASTER_PORT as long as they run.

The port listens from the moment it is chosen, so no other process can take it. A process serves it from the first
connection on: forked from the fork server if that has torch, else an interpreter of its own. Workers without torch
never connect to it. If workers that import torch are spawned, that interpreter starts together with them.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from typing import Any, Callable, Dict, List, Optional

from ..system import processes

ARGUMENT = "--workers-store"


class WorkersStore:
    """The fork server's part: holds the socket, and starts the process when a worker connects."""

    def __init__(self) -> None:
        self.pid = 0
        self.fd = -1
        """The socket until a process serves it."""

    def serve(self, argv: Optional[List[str]], env: Dict[str, str], close: Callable[[], None]) -> None:
        """Start the process that serves the store.

        `argv`: the command to execute if torch is not imported here. `close` closes what the child must not hold.
        """
        server = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(self.fd)
            self.fd = -1
            return
        try:
            signal.set_wakeup_fd(-1)
            processes.die_with_parent(server)
            for number in processes.PASSED_ON:  # meant for the workers, which may still save over a new process group
                signal.signal(number, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            close()
            if argv:
                os.set_inheritable(self.fd, True)
                os.execve(argv[0], [*argv, ARGUMENT, str(self.fd)], env)
            processes.set_title([sys.executable, "-u", ARGUMENT])
            serve(self.fd)
        except BaseException:  # noqa: BLE001 - none of the fork server's handlers may run here
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)

    def end(self) -> None:
        """End the store: connections are closed, and new ones are refused."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # a child, which is reaped like any other
            self.pid = 0


class WorkersStores:
    """The store of this round, and the previous one until all nodes have ended its workers."""

    def __init__(self, poll: select.poll) -> None:
        """`poll` watches the socket until a process serves it."""
        self.present, self.last = WorkersStore(), WorkersStore()
        self._poll = poll

    def listen(self, fd: int) -> None:
        """Watch the socket of a new round's store.

        The present store becomes the last one and is kept: other nodes may not have ended their workers yet, and these
        would report its loss as a failure.
        """
        if self.present.fd >= 0:
            self._poll.unregister(self.present.fd)
            self.present.end()
        self.last.end()
        self.last, self.present = self.present, WorkersStore()
        self.present.fd = fd
        self._poll.register(fd, select.POLLIN)

    def serve(self, argv: Optional[List[str]], env: Dict[str, str], close: Callable[[], None]) -> None:
        """Like `WorkersStore.serve`, for the present store."""
        self._poll.unregister(self.present.fd)
        self.present.serve(argv, env, close)

    def end(self) -> None:
        """End both stores."""
        self.present.end()
        self.last.end()

    def reaped(self, pid: int) -> bool:
        """Record the exit of a process; returns whether it served the present store."""
        if pid == self.last.pid:
            self.last.pid = 0
        if pid != self.present.pid:
            return False
        self.present.pid = 0
        return True


def check(store: Any) -> None:
    """Raise `NotImplementedError` if torch's store is imported and cannot serve on an existing socket.

    It is native code, whose signature is only in its docstring.
    """
    if store is not None and "master_listen_fd" not in (store.__init__.__doc__ or ""):
        version = sys.modules["torch"].__version__
        raise NotImplementedError(
            f"the workers' store does not support torch {version}: its TCPStore lacks master_listen_fd; "
            "start the script with torchrun, whose store is torch's own"
        )


def serve(fd: int) -> None:
    """Serve the store on this listening socket until SIGKILL."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    check(TCPStore)
    with socket.socket(fileno=os.dup(fd)) as sock:
        port = sock.getsockname()[1]
    options: Dict[str, Any] = {"is_master": True, "timeout": timedelta(minutes=5), "wait_for_workers": False}
    store = _at_socket(lambda **more: TCPStore("127.0.0.1", port, **options, master_listen_fd=fd, **more))
    while store is not None:
        select.select([], [], [])


def _at_socket(made: Callable[..., Any]) -> Any:
    """Make the store with libuv, torch's default, if that can take over a socket.

    In torch 2.4 and 2.6 it cannot, and logs an error first.
    """
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        return made()
    except NotImplementedError:
        pass
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)
    return made(use_libuv=False)
