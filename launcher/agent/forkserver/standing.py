"""A fork server that stays after its run: it waits, idle and with one thread, and forks agents for the next runs.

It is forked from the run's fork server once all workers have ended, so it has served no worker itself. Each agent that
is asked of it (`warm/asking.py`) is a fork of its own, which checks everything before it answers: whatever goes wrong
there, the server is as before.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Callable, NoReturn, Sequence

from ..channel import Channel
from ..system import cgroup, huge_pages, processes
from ..wakeup import Wakeup
from ..warm import asking, inherited, records
from . import forks, imported, kept
from .asked import Asked
from .imported import Imported
from .preload import Preload
from .setup import Setup

_ROOM_BYTES = 1 << 30
"""A host, or a cgroup, with less memory than that left has none for a server that only waits."""

_MOST = 3
"""At most this many servers of a user stand on a host."""

_WORD_S = 30.0
_BACKLOG = 64
_FIRST_TO_DIE = "1000"
"""For the kernel, if memory runs out."""


def look(setup: Setup, preload: Preload) -> Imported:
    """What this fork server has imported; its files are looked at now, as they may change while workers run."""
    from ..system import trust

    search = sys.path[1:] if setup.program.directory in sys.path[:1] else list(sys.path)
    with open(setup.archive, "rb") as file:
        agent = trust.agent_name(file.read())
    return Imported(
        modules=preload.modules, by_package=preload.imported, before=preload.before, env=setup.env, search=search,
        base=kept.base(setup.env, setup.job["cwd"]), files=kept.files(search), agent=agent,
    )  # fmt: skip


def why_not(*, executes: bool, own: Sequence[int]) -> str:
    """Why this process cannot stay; empty if it can. `own`: the descriptors that it is going to close.

    A module may rely on a file that it has left open, and one of a device keeps that busy.
    """
    torch = sys.modules.get("torch")
    names = {fd: _name_of(fd) for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and fd not in own}
    open_files = [name for name in names.values() if name.startswith("/")]
    reasons = {
        "its workers were not forked": executes,
        "the script does not import torch": torch is None,
        "CUDA is initialised": torch is not None and torch.cuda.is_initialized(),
        "it has more than one thread": len(os.listdir("/proc/self/task")) != 1,
        "there is less than 1 GiB of memory left": _memory_left() < _ROOM_BYTES,
        f"a module has left a file open: {' '.join(open_files[:1])}": bool(open_files),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _name_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # that of the list itself
        return ""


def _memory_left() -> int:
    limit = cgroup.memory_limit()
    if limit is not None and limit < 2 * _ROOM_BYTES:
        return 0
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", encoding="ascii") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    return _ROOM_BYTES


class Server:
    """The standing server; `wait` returns only in a child, which is to become an agent."""

    def __init__(self, imported: Imported, stay_s: float) -> None:
        self._imported, self._stay_s = imported, stay_s
        self._me, self._ticks = os.getpid(), processes.start_ticks(os.getpid()) or 0

    def begin(self, word: int) -> None:
        """Become a server that waits, once the run's agent says on `word` that this process is to stay."""
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        os.chdir("/")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_FIRST_TO_DIE)
        if not select.select([word], [], [], _WORD_S)[0] or not os.read(word, 1):
            os._exit(0)  # the agent has been killed

    def wait(self, word: int) -> Callable[[], None]:
        """Answer `word` once others find this server, then wait until the time is over; what a child is to become."""
        where = records.directory(make=True)
        if where is None:
            os._exit(1)
        path = records.socket_of(where, self._me, self._ticks)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        woken = Wakeup()
        signal.signal(signal.SIGCHLD, _nothing)
        try:
            record = self._record()
            self._take_place(record)
            listener.bind(path)
            os.chmod(path, 0o600)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            records.write(where, record)
        except OSError:  # a full disk
            records.forget(where, self._me, self._ticks)
            os._exit(1)
        with contextlib.suppress(OSError):
            os.write(word, b"\n")
        os.close(word)
        task = self._loop(listener, woken, where)
        listener.close()
        return task

    def _record(self) -> records.Standing:
        import hashlib
        import json

        now, imported = time.time(), self._imported
        read = sorted(kept.read(imported.env, imported.modules).items())
        # Not earlier: until the agent's word, this process was in the run's cgroup.
        basis = [sys.executable, imported.agent, sorted(imported.modules), read, imported.base, inherited.fixed()]
        text = json.dumps(basis)
        key = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
        return records.Standing(
            pid=self._me, start_ticks=self._ticks, python=sys.executable, agent=imported.agent,
            modules=imported.modules, key=key, since=now, until=now + self._stay_s, runs=0,
        )  # fmt: skip

    def _take_place(self, record: records.Standing) -> None:
        """End the server that this one replaces, and the oldest ones if there are too many."""
        others = records.found()
        same = [other for other in others if other.key == record.key]
        rest = [other for other in others if other.key != record.key]
        for other in [*same, *sorted(rest, key=lambda each: -each.until)[_MOST - 1 :]]:
            records.end(other)

    def _loop(self, listener: socket.socket, woken: Wakeup, where: str) -> Callable[[], None]:
        parts = huge_pages.parts()  # forks take a quarter of the time then
        while True:
            record = records.read(where, self._me, self._ticks)  # agents prolong it
            left = (record.until if record else 0) - time.time()
            if left <= 0:
                records.forget(where, self._me, self._ticks)
                os._exit(0)
            at_once = next(parts, True) is None
            ready = select.select([listener.fileno(), woken.fileno()], [], [], 0.0 if at_once else left)[0]
            woken.take()
            _reap()
            if listener.fileno() not in ready:
                continue
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                if asking.is_ours(connection) and not os.fork():
                    listener.close()
                    woken.close()
                    return lambda: self._agent(connection, where)
                connection.close()

    def _agent(self, connection: socket.socket, where: str) -> None:
        """In a child: become the agent that is asked for, or answer why this process cannot."""
        try:
            connection.set_inheritable(False)
            connection.setblocking(True)
            channel: Channel[Any, Any] = Channel(connection)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            asked = Asked(channel, self._imported, where, (self._me, self._ticks))
            asked.prepare()
            words = asked.answer()
        except BaseException:  # noqa: BLE001 - this process must never go on as the server
            import traceback

            traceback.print_exc()
            os._exit(1)
        imported.use(self._imported)
        assert forks.become_agent is not None
        forks.become_agent(words)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _nothing(_signum: int, _frame: object) -> None:
    """Wake the loop."""


def stay(server: Server, word: int) -> NoReturn:
    """Run as that server; in its children, raise `forks.Child` with what they are to become."""
    server.begin(word)
    raise forks.Child(server.wait(word))
