"""Takes the connections to the hosts over from the playbook: those that started the agents then carry their streams.

The playbook's task sends the descriptors of each over our socket, once all agents have started. A connection that
is not used soon is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import threading
from typing import TYPE_CHECKING

from launcher.backends._files import allow_files
from launcher.system.pipes import LentPipe

if TYPE_CHECKING:
    from pathlib import Path

FILES_PER_HOST = 4
"""A connection's stdin, stdout and stderr, and its process."""

_KEPT_S = 60.0
_MESSAGE_BYTES = 4096
_WAITING = 8
_lock = threading.Lock()
_kept: dict[tuple[str, str], LentPipe] = {}


class Receiver:
    """Where the playbook's task of one run sends connections to."""

    def __init__(self, run_dir: Path, hosts: int) -> None:
        allow_files(FILES_PER_HOST * hosts)
        self.address = f"distlaunch-{os.getpid()}-{secrets.token_hex(8)}"  # in Linux's abstract namespace
        self._run_dir = str(run_dir)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind("\0" + self.address)
        self._socket.listen(_WAITING)
        self._socket.setblocking(False)
        self._task: socket.socket | None = None

    def take(self) -> None:
        """Take what was sent. Returns at once."""
        with contextlib.suppress(BlockingIOError):
            self._accept()
            while self._task:
                data, files, _, _ = socket.recv_fds(self._task, _MESSAGE_BYTES, FILES_PER_HOST)
                if not data:
                    self._end_task()
                elif len(files) == FILES_PER_HOST:
                    with _lock:
                        _kept[self._run_dir, str(json.loads(data)["host"])] = LentPipe(*files)

    def _accept(self) -> None:
        if self._task:
            return
        task, _ = self._socket.accept()
        _, owner, _ = struct.unpack("3i", task.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if owner != os.getuid():
            task.close()
            return
        task.setblocking(False)
        self._task = task

    def _end_task(self) -> None:
        if self._task:
            self._task.close()
        self._task = None

    def close(self) -> None:
        """Take no more. What was taken waits a while for its use."""
        with contextlib.suppress(OSError):
            self.take()
        self._end_task()
        self._socket.close()
        later = threading.Timer(_KEPT_S, forget, (self._run_dir,))
        later.daemon = True
        later.start()


def connection(run_dir: Path, host: str) -> LentPipe | None:
    """The connection to a host of a run that was just started; the caller closes it."""
    with _lock:
        return _kept.pop((str(run_dir), host), None)


def forget(run_dir: str) -> None:
    """Close what no one uses."""
    with _lock:
        unused = [_kept.pop(key) for key in [*_kept] if key[0] == run_dir]
    for each in unused:
        each.end()
