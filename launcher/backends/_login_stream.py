"""The agent streams of a run behind a login node: fetched into its directory by one connection, resumed where it broke.

Each byte goes to its own offset, as over SSH (`_copy.py`), and all readers read the files here.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING

from launcher.backends._files import FileStream
from launcher.backends._login_frames import FOLLOW, Copies, Frames, GarbledError
from launcher.backends._patience import Patience
from launcher.errors import LaunchError
from launcher.login import remote
from launcher.login.hints import last_line
from launcher.system import pipes
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.backends._base import Chunk
    from launcher.login.connection import Login
    from launcher.runs.reader import Wanted

_READ_BYTES = 1 << 20
_NODES_PER_S = 1000
"""How many nodes' files are looked at in a second: a login node serves others, too."""


class Follower:
    """One connection that fetches what is new, or the wait for the next one."""

    def __init__(self, login: Login, there: str, run_dir: Path, nodes: int, *, once: bool = False) -> None:
        """`there`: the run's directory on the cluster. `once`: end when all there is has been fetched."""
        self._login, self._there, self._nodes, self._once = login, there, nodes, once
        self._copies = Copies(run_dir, nodes)
        self._frames = Frames(self._copies)
        self._patience = Patience()
        self._words: Question[list[str]] | None = None
        self._pipe: pipes.Pipe | None = None
        self._selector = selectors.DefaultSelector()
        self.problem = ""
        self.finished = False

    @property
    def readable(self) -> bool:
        """Whether the run's directory is there and may be read, as far as is known."""
        return self._frames.ended != "gone"

    def turn(self, timeout_s: float) -> None:
        """Connect if it is time to, then wait for data and write it."""
        if self._pipe is None:
            self._connect(timeout_s)
            return
        if self._selector.select(timeout_s):
            data = os.read(self._pipe.fd, _READ_BYTES)
            self._patience.heard()
            try:
                self._frames.feed(data)
            except GarbledError as error:
                self._end(f"{self._login.name}: its answer is not the program's: {error}")
                return
            if self._frames.answered:
                self._patience.renew()
                self.problem = ""
            if self._frames.ended or not data:
                self.finished = bool(self._frames.ended)
                self._end("")
        elif self._patience.is_over():
            self._patience.grow()
            self._login.leave()
            self._end(f"{self._login.name} does not answer")

    def _connect(self, timeout_s: float) -> None:
        if self._words is None:
            if self.finished or not self._patience.may_try():
                time.sleep(timeout_s)
                return
            self._words = Question(self._login.words, "login")
        if not self._words.answered(timeout_s):
            return
        words, self._words = self._words, None
        try:
            argv = words.answer()
            every = str(1 + self._nodes // _NODES_PER_S)
            once = "1" if self._once else ""
            text = remote.program(FOLLOW, self._there, every, once, *self._copies.begin())
            self._pipe = pipes.Pipe([*argv, remote.command(text)])
        except LaunchError as error:
            self.problem = error.message
            self._patience.pause()
            return
        self._frames = Frames(self._copies)
        self._selector.register(self._pipe.fd, selectors.EVENT_READ)
        self._pipe.send(text.encode(errors="surrogateescape"))
        self._patience.heard()

    def _end(self, problem: str) -> None:
        assert self._pipe
        self._selector.unregister(self._pipe.fd)
        code, said = self._pipe.end()
        self._pipe = None
        if not self.finished:
            self.problem = problem or last_line(said) or f"ssh ended with code {code}"
            self._patience.pause()

    def close(self) -> None:
        """End the connection."""
        if self._pipe is not None:
            self._end("")
        self._selector.close()


class LoginStream:
    """The streams of all nodes, while they are read."""

    def __init__(self, login: Login, there: str, run_dir: Path, nodes: int, offsets: Mapping[int, int]) -> None:
        self.follower = Follower(login, there, run_dir, nodes)
        self._files = FileStream(run_dir, nodes, offsets, job_output=True)

    def read(self, timeout_s: float) -> list[Chunk]:
        """What was appended to the files; fetches meanwhile."""
        limit = time.monotonic() + timeout_s
        while True:
            chunks = self._files.read(0.0)
            self.follower.turn(0.0 if chunks else max(0.0, min(0.1, limit - time.monotonic())))
            if chunks or time.monotonic() >= limit:
                return chunks or self._files.read(0.0)

    def omit(self, wanted: Wanted) -> None:
        """Leave out long output of other ranks."""
        self._files.omit(wanted)

    def close(self) -> None:
        """End the connection."""
        self.follower.close()
        self._files.close()


def fetch(login: Login, there: str, run_dir: Path, nodes: int, limit_s: float) -> tuple[str, bool]:
    """Fetch what is new once. Returns why that has failed, if it has, and whether the directory can be read there."""
    follower = Follower(login, there, run_dir, nodes, once=True)
    limit = time.monotonic() + limit_s
    while not follower.finished and not follower.problem and time.monotonic() < limit:
        follower.turn(0.1)
    follower.close()
    problem = "" if follower.finished else follower.problem or f"{login.name}: no answer within {limit_s:.0f} s"
    return problem, follower.readable
