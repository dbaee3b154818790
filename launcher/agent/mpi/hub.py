"""Where mpirun's children on this node call: the stand-ins of ranks (`rank.py`), and remote shells (`remote_shell.py`).

A caller sends its request once, with a length of four bytes before it, and waits for an exit code. The socket has a
name and no file; only processes of this user are answered.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from typing import Dict, List

from ..system import processes

ROUND = "DISTLAUNCH_MPI_ROUND"
"""The variable of stand-ins that says which round they are of."""

_LENGTH = struct.Struct("!I")
_CODE = struct.Struct("!i")
_CREDENTIALS = struct.Struct("3i")
_MAX_BYTES = 8 << 20
_READ_BYTES = 1 << 16
_LOOK_S = 1.0


def _parent_of(pid: int) -> bytes:
    with contextlib.suppress(OSError, IndexError):
        return processes.stat(pid)[1]
    return b""


class Caller:
    """A process that waits for an exit code."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid = pid
        self.words: List[bytes] = []
        """Its request, once that is complete: what it is, then its variables or its command."""

        self.fds: List[int] = []
        """The descriptors that came with the request."""

        self.signals: List[int] = []
        """Signals that it got since they were last taken."""

        self.gone = False
        self.sock = sock
        self._data = b""
        self._parent, self._look_at = _parent_of(pid), 0.0

    def is_orphaned(self, now: float) -> bool:
        """Whether its parent, a daemon of the MPI, has died; looked at once in a while."""
        if now < self._look_at or self.gone:
            return False
        self._look_at = now + _LOOK_S
        return _parent_of(self.pid) != self._parent

    def read(self) -> None:
        """Take what has arrived."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, _READ_BYTES, 4)
        except OSError:
            data, fds = b"", []
        self.fds += fds
        self.gone = not data
        if self.words:
            self.signals += data
            return
        self._data += data
        if len(self._data) >= _LENGTH.size:
            end = _LENGTH.size + min(_LENGTH.unpack_from(self._data)[0], _MAX_BYTES)
            if len(self._data) >= end:
                self.words, self.signals = self._data[_LENGTH.size : end].split(b"\0"), list(self._data[end:])
                self._data = b""

    def answer(self, code: int) -> None:
        """Send the exit code, or the signal that ended the worker as a negative number."""
        with contextlib.suppress(OSError):
            self.sock.sendall(_CODE.pack(code))

    def close(self) -> None:
        """Let go of the caller, and of the descriptors that no one has taken."""
        self.gone = True
        self.sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Hub:
    """The socket, and all callers that still wait."""

    def __init__(self, name: str) -> None:
        """Listen at once; `name` is unique on this host."""
        self.callers: List[Caller] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen(socket.SOMAXCONN)
        self._listener.setblocking(False)

    def look(self, wait_s: float, *more: int) -> None:
        """Take what callers have sent, waiting for at most `wait_s`; or until one of `more` is readable."""
        poll, by_fd = select.poll(), {caller.sock.fileno(): caller for caller in self.callers if not caller.gone}
        for fd in (self._listener.fileno(), *by_fd, *more):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(wait_s * 1000):
            if fd in by_fd:
                by_fd[fd].read()
            elif fd == self._listener.fileno():
                self._accept()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                about = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                pid, uid, _ = _CREDENTIALS.unpack(about)
                if uid == os.getuid():
                    self.callers.append(Caller(sock, pid))
                else:
                    sock.close()

    def take(self, what: bytes) -> List[Caller]:
        """The callers with complete requests of this kind, which are no longer kept here."""
        found = [caller for caller in self.callers if caller.words[:1] == [what]]
        self.callers = [caller for caller in self.callers if caller not in found and not caller.gone]
        return found

    def stand_ins(self, of: str) -> List[Caller]:
        """The ranks' stand-ins of that round. One of an earlier round, which came after its end, is let go of."""
        came, mark = self.take(b"rank"), f"{ROUND}={of}".encode()
        for caller in came:
            if mark not in caller.words:
                caller.close()
        return [caller for caller in came if mark in caller.words]

    def watch(self, callers: Dict[int, Caller]) -> None:
        """Take what these callers have sent, without waiting."""
        poll, by_fd = select.poll(), {caller.sock.fileno(): caller for caller in callers.values() if not caller.gone}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            by_fd[fd].read()
