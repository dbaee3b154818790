"""The agent streams of a run over SSH: fetched into its directory by one connection per host, resumed where it broke.

Each byte goes to its own offset in the node's file: another process that fetches at the same time writes the same bytes
to the same place, so none is lost or duplicated. All readers read the files.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends._copy import Copy
from launcher.backends._files import FileStream, allow_files
from launcher.backends._patience import Patience
from launcher.backends.ansible import silence, ssh, taking_over
from launcher.backends.ansible.frames import FrameError, Frames
from launcher.backends.ansible.gate import Gates
from launcher.backends.ansible.handle import more_s
from launcher.errors import CommandError
from launcher.login.hints import last_line
from launcher.system import pipes, proc
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends._base import Chunk
    from launcher.backends.ansible.handle import AnsibleHandle, Node
    from launcher.runs.liveness import NodeState
    from launcher.runs.reader import Wanted
    from launcher.system.pipes import LentPipe

_FILES_PER_NODE = 2 + taking_over.FILES_PER_HOST
"""The stream file as it is written and as it is read, and a connection."""

FETCH_S = 25.0
"""How long the streams of all nodes may take that are fetched once."""

_READ_BYTES = 1 << 20
_GARBLED = 3
"""After this many answers that no agent sends, a host is not asked again."""


class _Odd:
    """What a host has sent that no agent sends."""

    def __init__(self) -> None:
        self.times = 0
        self.last = ""
        """From the current connection."""

    def hear(self, said: str) -> None:
        """Record one more case."""
        self.times += 1
        self.last = f"its answer is not an agent's: {said}"


@dataclass
class _Connection:
    """A connection, and what has come of the frame that it carries."""

    pipe: pipes.Pipe | LentPipe
    frames: Frames


class Tail:
    """One node's stream: a connection, or the wait for the next one."""

    def __init__(self, node: Node, run_dir: Path, *, once: bool = False, first: LentPipe | None = None) -> None:
        """`first`: a connection that is open already, on which the host sends the stream from its beginning."""
        self.node = node
        self.state: NodeState = "unknown"
        self.problem = ""
        self.lost_at: float | None = None
        """When it last sent something, on the monotonic clock; None while it is connected."""

        self.ending: dict[str, str] = {}
        self.finished = False
        self._copy = Copy(run_dir / "nodes" / str(node["rank"]))
        self._once = once
        self._connection: _Connection | None = None
        self._first = first
        self._odd = _Odd()
        self._patience = Patience(more_s(node))

    @property
    def stream(self) -> Path:
        """The file with what was fetched."""
        return self._copy.path

    def is_due(self) -> bool:
        """Whether it is time to connect."""
        return not self.finished and self._connection is None and self._patience.may_try()

    def wait(self, problem: str) -> None:
        """Note why the host is not asked now, if that is known. It is not lost meanwhile."""
        self.problem = problem or self.problem
        if problem:
            self.lost_at = time.monotonic()
            silence.ends(self.stream, self.node["host"])

    def count_silence(self) -> None:
        """Count the time since the first of several connections, one after the other, that had no answer."""
        if self.state == "unknown" and self.lost_at is not None:
            self.lost_at = silence.begins(self.stream, self.node["host"], self.lost_at)
        else:
            silence.ends(self.stream, self.node["host"])

    def open(self) -> int | None:
        """Connect if it is time to; returns the descriptor to read from."""
        if not self.is_due():
            return None
        offset = self._copy.begin()
        here, there = self.node.get("stream_from", (0, 0))  # if the host took the node over from another
        first, self._first = self._first, None
        if first is not None and (offset or here):
            first.end()
            first = None
        words = ("tail", self.node["directory"], str(self.node["rank"]), str(max(there, there + offset - here)))
        pipe = first or pipes.Pipe(ssh.argv(self.node, *words, *(("--once",) if self._once else ())))
        self._connection = _Connection(pipe, Frames())
        self._patience.heard()
        return pipe.fd

    def read(self) -> bool:
        """Process what has arrived; False when the connection has ended."""
        data = os.read(self._connection.pipe.fd, _READ_BYTES) if self._connection else b""
        if self._connection is None or not data:
            return False
        self._patience.heard()
        try:
            for frame in self._connection.frames.feed(data):
                self._heed()
                if isinstance(frame, bytes):
                    self._copy.add(frame)
                elif frame is None:
                    self.state, self.finished = "running", True
                else:
                    self._end(frame)
        except FrameError as error:
            self._garble(str(error))
            return False
        self._heed()
        return True

    def _heed(self) -> None:
        """Treat the host as connected once it has answered."""
        if self._connection and self._connection.frames.answered and not self.finished:
            self.lost_at, self.problem = None, ""
            self._patience.renew()
            self.state = "running" if self.state == "unknown" else self.state

    def _garble(self, said: str) -> None:
        """Record what no agent sends; after a few times, give the host up."""
        self._odd.hear(said)
        if self._odd.times >= _GARBLED:
            self.state, self.finished, self.problem = "ended", True, self._odd.last
            self.ending = {"message": self._odd.last}

    def _end(self, ending: dict[str, str]) -> None:
        self.state, self.finished, self.ending = "ended", True, ending
        self.problem = ending.get("message", "")
        self._copy.end(ending)

    def silent(self) -> bool:
        """Whether an open connection has been silent for too long."""
        return self._connection is not None and self._patience.is_over()

    def flooded(self) -> bool:
        """Whether it prints too much on stderr."""
        if self._connection is None or not self._connection.pipe.flooded():
            return False
        self._garble("too much on stderr")
        return True

    def close(self) -> None:
        """Close the connection; if the node has not ended, another one follows after a pause."""
        connection, hung, self._connection = self._connection, self.silent(), None
        if connection is None:
            return
        code, said = connection.pipe.end()
        if not self.finished:
            self.problem = "no answer" if hung else self._odd.last or last_line(said) or _how(code)
            self._odd.last = ""
            self.lost_at = self.lost_at or self._patience.heard_at
            self._patience.pause()
        if hung:
            self._patience.grow()
            threading.Thread(target=self._drop_master, name="drop-master", daemon=True).start()  # not waited for

    def _drop_master(self) -> None:
        """End the shared connection, which hangs: the next connection must not use it."""
        *options, host = ssh.own_words(self.node)
        with contextlib.suppress(CommandError):
            proc.run((*options, "-O", "exit", host), timeout_s=5)


def _how(code: int | None) -> str:
    return "its connection has ended" if code is None else f"ssh ended with code {code}"


class Pump:
    """Holds the connections of several tails, and processes what arrives."""

    def __init__(self, tails: Sequence[Tail]) -> None:
        self.tails = tails
        self._gates = Gates()
        self._selector = selectors.DefaultSelector()

    def turn(self, timeout_s: float) -> None:
        """Connect where it is time to, then wait for data and process it."""
        for tail in filter(Tail.is_due, self.tails):
            gate = self._gates.of(tail.node)
            if not gate.is_open():
                tail.wait(gate.problem)
            elif (fd := tail.open()) is not None:
                self._selector.register(fd, selectors.EVENT_READ, tail)
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return
        for key, _ in self._selector.select(timeout_s):
            if not key.data.read() or key.data.finished:
                self._close(key.data)
        for tail in self.tails:  # after reading: unread data in a pipe is not silence
            if tail.silent() or tail.flooded():
                self._close(tail)

    def _close(self, tail: Tail) -> None:
        for key in [key for key in self._selector.get_map().values() if key.data is tail]:
            self._selector.unregister(key.fileobj)
        tail.close()

    def close(self) -> None:
        """End all connections."""
        for tail in self.tails:
            self._close(tail)
        self._selector.close()


class HostStreams:
    """The streams of all nodes, while they are read."""

    def __init__(self, handle: AnsibleHandle, offsets: Mapping[int, int]) -> None:
        run_dir = Path(handle["run_dir"])
        self.tails = [
            Tail(node, run_dir, first=taking_over.connection(run_dir, node["host"])) for node in handle["nodes"]
        ]
        allow_files(_FILES_PER_NODE * len(self.tails))
        self._pump = Pump(self.tails)
        self._files = FileStream(run_dir, len(handle["hosts"]), offsets)

    def read(self, timeout_s: float) -> list[Chunk]:
        """What was appended to the files; fetches meanwhile."""
        limit = time.monotonic() + timeout_s
        while True:
            chunks = self._files.read(0.0)
            self._pump.turn(0.0 if chunks else max(0.0, min(0.1, limit - time.monotonic())))
            if chunks or time.monotonic() >= limit:
                return chunks or self._files.read(0.0)

    def omit(self, wanted: Wanted) -> None:
        """Leave out long output of other ranks."""
        self._files.omit(wanted)

    def close(self) -> None:
        """End all connections."""
        self._pump.close()
        self._files.close()


def fetch(handle: AnsibleHandle, limit_s: float) -> list[Tail]:
    """Fetch what is new of all streams once; nodes that do not answer in time stay `unknown`.

    In a process that asks again and again, a host counts as silent since the first call that it did not answer.
    """
    allow_files(_FILES_PER_NODE * len(handle["nodes"]))
    pump = Pump([Tail(node, Path(handle["run_dir"]), once=True) for node in handle["nodes"]])
    limit = time.monotonic() + limit_s + max(map(more_s, handle["nodes"]), default=0.0)
    try:
        while not all(tail.finished or tail.lost_at is not None for tail in pump.tails) and time.monotonic() < limit:
            pump.turn(0.1)
    finally:
        pump.close()
    for tail in pump.tails:
        tail.count_silence()
    return list(pump.tails)
