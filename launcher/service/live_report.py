"""The report of a run that continues: what was read of its streams is not read again."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.errors import LaunchError
from launcher.results import run as results
from launcher.runs import directories, moves
from launcher.service import logs, observe, reports
from launcher.service.report_streams import ReportStreams
from launcher.system import input_file, storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.results.report import Report
    from launcher.results.run import RunState
    from launcher.runs.records import Run

_BLOCK_BYTES = 1 << 20
_ASK_S = 5.0
"""How often a cluster is asked for a state, unless the streams tell of a change."""


class _Place(NamedTuple):
    """How far a stream was read."""

    inode: int
    offset: int


class _ReplacedError(Exception):
    """A stream is not the one that was read before."""


class LiveReport:
    """One run, ended or not. `read` may be called again and again, by one thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._streams: ReportStreams | None = None
        self._places: dict[int, _Place] = {}
        self._state: RunState = results.nothing("unknown")
        self._asked = 0.0

    def read(self) -> Report:
        """The report as of now. Raises `LaunchError`, as for a run that was removed."""
        self._run, former = directories.again(self._run), self._run
        reports.single(self._run)
        if self._streams is None or self._run.attempt != former.attempt:
            self._begin()
        trouble = self._run.private or self._bring()
        try:
            self._feed()
        except _ReplacedError:
            self._begin()
            self._feed()
        assert self._streams is not None
        self._streams.follow()
        if self._streams.news or time.monotonic() - self._asked > _ASK_S:
            self._streams.news, self._asked = False, time.monotonic()
            self._state = observe.state_of(self._run)
        if self._state["exit_code"] is not None:
            return reports.make(self._run)  # with what comes last, and what is only there at the end
        return reports.of(self._run, self._now(), self._streams, trouble)

    def _begin(self) -> None:
        self._state, self._asked = observe.state_of(self._run), time.monotonic()
        self._streams, self._places = ReportStreams(self._run, self._state), {}
        for former in moves.formers(self._run):
            for node in range(len(former.hosts)):
                for block in logs.former_blocks(former, node):
                    self._streams.feed(node, block)

    def _bring(self) -> str:
        """Have the backend bring what is new to the run's directory. Returns why it cannot."""
        if self._state["exit_code"] is not None or (sent := observe.sent(self._run)).handle is None:
            return ""
        try:
            observe.backend_of(sent).refresh(sent.handle)
        except LaunchError as error:
            return f"not all output could be read: {error.message}"
        return ""

    def _feed(self) -> None:
        """Read what is new in each stream."""
        assert self._streams is not None
        if self._run.private:
            return
        for node in range(len(self._run.hosts)):
            for block in _blocks(self._run.stream_path(node), self._places.get(node)):
                self._places[node] = block.place
                self._streams.feed(node, block.data)

    def _now(self) -> RunState:
        """The state that was asked for last; its duration continues."""
        took, passed = self._state["duration_s"], time.monotonic() - self._asked
        return self._state if took is None else {**self._state, "duration_s": round(took + passed, 3)}


class _Block(NamedTuple):
    """A part of a stream, and how far it was read with it."""

    data: bytes
    place: _Place


def _blocks(path: Path, place: _Place | None) -> Iterator[_Block]:
    """The stream from that place on. Raises `_ReplacedError`, `StorageError`."""
    with storage.read_errors(path), suppress(FileNotFoundError), input_file.open_file(path) as file:
        found = os.fstat(file.fileno())
        offset = 0 if place is None else place.offset
        if place is not None and (place.inode != found.st_ino or offset > found.st_size):
            raise _ReplacedError
        file.seek(offset)
        while block := file.read(_BLOCK_BYTES):
            offset += len(block)
            yield _Block(block, _Place(found.st_ino, offset))
