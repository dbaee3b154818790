"""The fork server and the worker group's process as the node's agent sees them: a process, two channels, a cgroup."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Collection, Dict, List, Optional, Union

from ..channel import Channel
from ..job import Job
from ..network.endpoint import Endpoint
from ..system import cgroup, processes

if TYPE_CHECKING:
    import subprocess

    from ..forkserver.prefork import Forked, Process
    from ..messages import AgentGroup, AgentServer, Json, ServerSetup

_END_S, _KILLED_S = 12.0, 5.0
_STANDS_S = 5.0
_READ_BYTES = 64 * 1024
_EARLY_BYTES = 64 * 1024
_ROOM_BYTES = 2048
"""More room in a fork server that may stay, for the command lines of later runs."""

_TITLE_PARTS = 256
"""At most this many 4 KiB arguments reserve room for the workers' command line; one is limited to 128 KiB."""


class ServerProcess:
    """The agent's child process; `start` must be called once, and `end` in any case."""

    def __init__(self, job: Job, node_rank: int, forked: Optional[Forked] = None) -> None:
        """`forked`: the process, if it is already running."""
        self._job = job
        me = os.getpid()  # with its start time: a name that is unique on this host
        self.cgroup = cgroup.create(f"distlaunch-{job.run}-{node_rank}-{me}-{processes.start_ticks(me)}")
        self._process: Union[subprocess.Popen[bytes], Process, None] = None
        self.stderr = -1
        """The read end of its stderr, which its children other than workers share; ends once all have exited."""

        self._early = b""
        """What it has said before it was ready for workers."""

        self.may_stay = False
        """Whether a process is to stay after the run, for the next one."""

        self.stays: Json = {}
        """The pid of the process that stays after the run, or the reason why none does."""

        self.channel: AgentServer
        self.group: AgentGroup
        self._moved: Optional[threading.Thread] = None
        if forked:
            self._process, self.channel, self.group, self.stderr = forked
            # The kernel takes 10 ms to move a process, and there is enough to do until it gets its setup.
            self._moved = threading.Thread(target=self._move, args=(self._process.pid,), name="cgroup")
            self._moved.start()
        else:
            self.channel, self._server_end = Channel.pair()
            self.group, self._group_end = Channel.pair()

    def start(self, request: ServerSetup, endpoint: Endpoint) -> None:
        """Start it with the workers' environment and, on node 0, the listening socket."""
        process = self._process = self._process or self._spawn(request["env"])
        os.set_blocking(self.stderr, False)
        if self._moved is None:
            self._move(process.pid)
        else:
            self._moved.join()
        self.channel.send({"setup": request}, endpoint.fds())
        endpoint.handed_over()

    def _move(self, pid: int) -> None:
        if self.cgroup is not None:
            cgroup.add(self.cgroup, pid)

    def _spawn(self, env: Dict[str, str]) -> subprocess.Popen[bytes]:
        import subprocess

        fds = [self._server_end.fileno(), self._group_end.fileno()]
        options = processes.options() if self._job.python_named else []
        more = _ROOM_BYTES if self._job.warm_s else 0
        parts, rest = divmod(sum(len(os.fsencode(arg)) + 1 for arg in self._job.command) + more, 4096)
        room = [*["-" * 4095] * min(parts, _TITLE_PARTS), "-" * rest]
        archive = os.path.abspath(sys.argv[0])
        stdin = None if self._job.passes_stdin else subprocess.DEVNULL
        self.stderr, stderr = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, *options, "-u", archive, "--fork-server", *map(str, fds), *room],
                env=env, cwd=self._job.cwd, stdin=stdin, stdout=stderr, stderr=stderr, pass_fds=fds,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise OSError(error.errno, _too_large(env)) from error
        finally:
            os.close(stderr)
        self._server_end.close()
        self._group_end.close()
        if stdin is None:  # from now on, only the workers read it
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
        return process

    def said(self) -> Optional[bytes]:
        """What its stderr has to read now; None: it has ended."""
        if self.stderr < 0:
            return None
        try:
            data = os.read(self.stderr, _READ_BYTES)
        except BlockingIOError:
            return b""
        self._early += data[: _EARLY_BYTES - len(self._early)]
        return data or None

    def said_early(self) -> str:
        """What has been read of its stderr so far."""
        return self._early.decode(errors="replace")

    def signal(self, number: int, *, mark: bool = True, repeat: bool = True) -> None:
        """Signal every worker, or without `repeat` only those not marked before.

        `mark`: workers that exit from now on count as ended by distlaunch.
        """
        self.channel.send({"signal": int(number), "mark": mark, "repeat": repeat})

    def signal_group(self, rank: int, number: int) -> None:
        """Signal one worker's process group; the worker continues, or exits by itself."""
        self.channel.send({"signal": int(number), "mark": False, "rank": rank})

    def ask_for_stacks(self) -> None:
        """Have it ask every worker for its stacks."""
        self.channel.send({"stacks": True})

    def exit_code(self) -> int:
        """Wait for its exit code."""
        return self._process.wait() if self._process else 0

    def end(self, *, at_once: bool, keep: Collection[int] = ()) -> List[int]:
        """End it and all other descendants, `at_once` if there is nothing to shut down. Returns surviving pids.

        `keep`: processes that nothing ends.
        """
        import subprocess

        if self._moved is not None:
            self._moved.join()
        if self._process is not None:
            self.channel.send({"quit": True, "stays": self.may_stay and not at_once})
            if at_once:
                self._process.kill()
            limit = time.monotonic() + _END_S
            processes.wait_for_any((self._process.pid,), _END_S)  # what follows looks now and then
            try:
                self._process.wait(timeout=max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a dead device: `sweep` reports it
                    self._process.wait(timeout=_KILLED_S)
        word = self._hear_of_stay() if self.may_stay and not at_once else -1
        pid = self.stays.get("pid", 0)
        left = processes.sweep(keep={pid, *keep}, patience_s=0.0)
        if self.cgroup is not None:
            if pid and not cgroup.add(os.path.dirname(self.cgroup), pid):
                self.stays = {"reason": "it cannot leave the run's cgroup"}
            cgroup.remove(self.cgroup, keep)
        if word >= 0:
            if "pid" in self.stays and not self._stands(word):
                self.stays = {"reason": "its socket could not be made: a full disk, a long path, another's directory"}
            os.close(word)  # without a word it exits
        return left

    @staticmethod
    def _stands(word: int) -> bool:
        """Have the process stay; whether others find it now."""
        with contextlib.suppress(OSError):  # it has been killed
            os.write(word, b"\n")
            return bool(select.select([word], [], [], _STANDS_S)[0] and os.read(word, 1))
        return False

    def _hear_of_stay(self) -> int:
        """Whether a process stays, as the last message of the fork server says; returns where it waits for a word."""
        while self.channel.ready():
            message, fds = self.channel.receive()
            if message is None:
                break
            if "stays" in message:
                self.stays = message["stays"]
                return next(iter(fds), -1)
        return -1


def _too_large(env: Dict[str, str]) -> str:
    sizes = {name: len(os.fsencode(name + value)) + 2 for name, value in env.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    whole = sum(sizes.values())
    return (
        f"the environment has {whole} bytes, {sizes[largest]} of them in {largest}: "
        "more than the kernel allows for a process"
    )
