"""The store in which the workers of one round meet: torch's, at MASTER_ADDR:MASTER_PORT from before their start to their end.

The port listens from the moment in which it is chosen, so nobody else can take it. A process serves it from the first connection
on: forked from the fork server where that has torch, else an interpreter of its own. Who needs no torch never asks for it; where
workers are spawned that will, the interpreter starts with them.
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
    """The fork server's part: holds the socket, and starts the process when somebody connects."""

    def __init__(self) -> None:
        self.pid = 0
        self.fd = -1
        """The socket as long as nobody serves it."""

    def serve(self, argv: Optional[List[str]], env: Dict[str, str], close: Callable[[], None]) -> None:
        """Somebody has connected. `argv`: torch is not here, execute this; `close` what the child must not hold."""
        server = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(self.fd)
            self.fd = -1
            return
        try:
            signal.set_wakeup_fd(-1)
            processes.die_with_parent(server)
            for number in processes.PASSED_ON:  # meant for the workers, who may save over a new group
                signal.signal(number, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            close()
            if argv:
                os.set_inheritable(self.fd, True)
                os.execve(argv[0], [*argv, ARGUMENT, str(self.fd)], env)
            processes.set_title([sys.executable, "-u", ARGUMENT])
            serve(self.fd)
        except BaseException:  # noqa: BLE001 - nothing of the fork server's may run here
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)

    def end(self) -> None:
        """Whoever is still connected, or connects, is refused."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # it is our child, and reaped with whatever else ends
            self.pid = 0


class WorkersStores:
    """The one of this round, and the one before until all nodes have ended its workers."""

    def __init__(self, poll: select.poll) -> None:
        """`poll`: where the socket is watched as long as nobody serves it."""
        self.present, self.last = WorkersStore(), WorkersStore()
        self._poll = poll

    def listen(self, fd: int) -> None:
        """A round has a new one, at that socket.

        The present one becomes the last: other nodes may not have ended their workers yet, and what these make of the store's
        end is no cause of anything.
        """
        if self.present.fd >= 0:
            self._poll.unregister(self.present.fd)
            self.present.end()
        self.last.end()
        self.last, self.present = self.present, WorkersStore()
        self.present.fd = fd
        self._poll.register(fd, select.POLLIN)

    def serve(self, argv: Optional[List[str]], env: Dict[str, str], close: Callable[[], None]) -> None:
        """As `WorkersStore.serve`, for the present one."""
        self._poll.unregister(self.present.fd)
        self.present.serve(argv, env, close)

    def end(self) -> None:
        """Both."""
        self.present.end()
        self.last.end()

    def reaped(self, pid: int) -> bool:
        """A process has ended; whether it served the present store."""
        if pid == self.last.pid:
            self.last.pid = 0
        if pid != self.present.pid:
            return False
        self.present.pid = 0
        return True


def check(store: Any) -> None:
    """Raise `NotImplementedError` where torch's store, if it is imported, cannot serve at a socket that is there.

    It is native code, whose signature is its text alone.
    """
    if store is not None and "master_listen_fd" not in (store.__init__.__doc__ or ""):
        version = sys.modules["torch"].__version__
        raise NotImplementedError(
            f"the workers' store does not know torch {version}: its TCPStore lacks master_listen_fd; "
            "start the script with torchrun, whose store is torch's own"
        )


def serve(fd: int) -> None:
    """Be the process that serves the store at this listening socket; ends by SIGKILL."""
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
    """By libuv, torch's default, where that can take a socket over; in torch 2.4 and 2.6 it cannot, and logs an error first."""
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
