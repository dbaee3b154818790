"""Agent streams in files that are readable here: on this machine, or on a file system that all nodes share."""

from __future__ import annotations

import itertools
import os
import time
from heapq import heapreplace
from typing import TYPE_CHECKING, BinaryIO

from launcher.agent.system import processes
from launcher.backends._base import Chunk
from launcher.runs import blocks
from launcher.runs.sources import JOB_OUTPUT, Source
from launcher.system import input_file, storage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from launcher.runs.reader import Wanted

_POLL_S, _POLL_EARLY_S = 0.02, 0.004
_EARLY_S = 1.0
"""For this long, few files are looked at more often: much happens when a run starts, and a short one has ended."""

_MUCH_BYTES, _GATHER_S = 1 << 16, 0.004
"""After so much at once, what follows is gathered for a moment: reading it in large blocks costs less."""

_FEW = 4

_MANY = 64
"""So many files are all looked at each time; more of them by turns, those that are silent for long less often."""

_TURN_S = 0.0001
"""For each of many files: how long it is until it is looked at again at the earliest."""

_SILENT_SHARE, _SILENT_MOST_S = 1 / 8, 0.5
"""A silent file is looked at again after this share of its silence, and at the latest after this time."""

_READ_BYTES = 1 << 20
_READ_ALL_BYTES, _READ_LEAST_BYTES = 1 << 20, 1 << 13
"""About how much is read at once, of all files together, and at least of each: the memory of many files is bounded."""

_LOOK_BYTES = 1 << 14
"""How much is read after output that was left out: the next block may be of another such rank."""

_PASS_BYTES = 64 << 20
"""Of one file, about so much is passed over at once: others, and the user, have their turn."""

_KEPT_BYTES = 16 << 20
"""glibc gives no freed memory back to the kernel up to the largest block that was ever freed (mallopt(3))."""

_MOST_OPEN = 128
"""So many files stay open at most."""

_OTHER_FILES = 64
"""Files that the launcher may have open besides streams; queries and programs must never fail for lack of them."""


def allow_files(count: int) -> int:
    """Raise our own limit on open files as far as allowed; returns how many of the wanted files may be open at once."""
    return max(0, processes.allow_files(count + _OTHER_FILES) - _OTHER_FILES)


class FileStream:
    """Follows the stream files as they grow."""

    def __init__(
        self, run_dir: Path, nodes: int | Iterable[int], offsets: Mapping[int, int], *, job_output: bool = False
    ) -> None:
        """`job_output`: also follow the run directory's `job.out`, which the scheduler writes."""
        bytes(_KEPT_BYTES)  # freed at once: reading blocks of changing sizes costs no page faults from now on
        self._run_dir = run_dir
        self._offsets: dict[Source, int] = dict(offsets.items())
        self._files: dict[Source, BinaryIO] = {}
        self._paths = self._streams(range(nodes) if isinstance(nodes, int) else nodes)
        if job_output:
            self._paths[JOB_OUTPUT] = f"{run_dir}/job.out"
        self._wanted: Wanted | None = None
        self._left_out: set[Source] = set()
        """Files of which something was left out last time."""

        self._expected: set[Source] = set()
        self._gathers = False
        self._arrange()

    def include(self, nodes: Iterable[int]) -> None:
        """Follow these nodes' streams, too."""
        if new := self._streams(node for node in nodes if node not in self._paths):
            self._paths.update(new)
            self._arrange()

    def omit(self, wanted: Wanted) -> None:
        """Leave out blocks of other ranks, of which only the first event and some lines are read."""
        self._wanted = wanted

    def _streams(self, nodes: Iterable[int]) -> dict[Source, str]:
        return {node: f"{self._run_dir}/nodes/{node}/stream" for node in nodes}

    def _arrange(self) -> None:
        """Choose by the number of files how they are read."""
        self._kept = allow_files(min(len(self._paths), _MOST_OPEN))
        """How many files stay open; the others are opened for each read."""

        self._turns = _Turns(self._paths)
        self._block = min(_READ_BYTES, max(_READ_LEAST_BYTES, _READ_ALL_BYTES // max(1, len(self._paths))))

    def read(self, timeout_s: float) -> list[Chunk]:
        """What was appended to the files."""
        limit = time.monotonic() + timeout_s
        if self._gathers:
            time.sleep(min(_GATHER_S, timeout_s))
        while True:
            chunks, now = self._read_some(), time.monotonic()
            if chunks or now >= limit:
                return chunks
            time.sleep(min(self._turns.pause_s(now), limit - now))

    def _read_some(self) -> list[Chunk]:
        """A chunk of each file that has grown; the others have the next turn if it is enough."""
        chunks, size, now = [], 0, time.monotonic()
        for node in self._turns.due(now):
            data, passed = self._read_node(node)
            more = passed in (self._block, _LOOK_BYTES) or passed > _MUCH_BYTES
            if passed or node in self._expected:
                chunks.append(Chunk(node, data, more))
                size += passed
            (self._expected.add if more else self._expected.discard)(node)
            self._turns.looked(node, now, passed, more=more)
            if size >= _READ_ALL_BYTES:
                break
        self._gathers = _MUCH_BYTES < size < _READ_ALL_BYTES
        return chunks

    def _read_node(self, node: Source) -> tuple[bytes, int]:
        """What follows in the file, and by how many bytes it is now ahead."""
        with storage.read_errors(self._paths[node]):
            file = self._files.get(node) or self._open(node)
            if not file:
                return b"", 0
            data = file.read(_LOOK_BYTES if node in self._left_out else self._block)
            passed = len(data)
            if data and self._wanted is not None:
                before = file.tell() - passed
                data = self._without_others(file, data, self._wanted)
                passed = file.tell() - before
                (self._left_out.add if len(data) < passed else self._left_out.discard)(node)
            if node not in self._files:
                self._offsets[node] = file.tell()
                file.close()
        return data, passed

    def _without_others(self, file: BinaryIO, data: bytes, wanted: Wanted) -> bytes:
        """Read on after the data without blocks of other ranks, as far as these are in the file with their last event.

        It ends between blocks, as only there one that follows can be left out.
        """
        parts, size, began = [], 0, file.tell()
        while file.tell() - began < _PASS_BYTES and (cut := blocks.cut_off(data)):
            end = file.tell() + cut.missing
            if os.pread(file.fileno(), len(cut.frame), end) != cut.frame:
                break
            if cut.rank in wanted and cut.missing > self._block:
                break
            if cut.rank in wanted:
                parts.append(data)
                size += len(data)
                data = file.read(cut.missing + len(cut.frame) + (_LOOK_BYTES if size < self._block else 0))
            else:
                parts.append(data[: cut.at])
                size += cut.at
                file.seek(end + len(cut.frame))
                data = file.read(_LOOK_BYTES)
        return b"".join([*parts, data]) if parts else data

    def _open(self, node: Source) -> BinaryIO | None:
        """The file at its offset; of those that do not stay open, only one that has grown."""
        offset, stays = self._offsets.get(node, 0), len(self._files) < self._kept
        try:
            if not stays and os.stat(self._paths[node]).st_size == offset:
                return None
            file = input_file.open_file(self._paths[node])
        except FileNotFoundError:
            return None
        file.seek(offset)
        if stays:
            self._files[node] = file
        return file

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _Turns:
    """When each file is looked at: a few of them each time, of many those that are due, together in ticks."""

    def __init__(self, files: Collection[Source]) -> None:
        began = time.monotonic()
        self._early_until = began + _EARLY_S
        self._early_s = min(_POLL_S, _POLL_EARLY_S * max(1.0, len(files) / _FEW))
        self._tick_s = 0.0 if len(files) <= _MANY else max(_POLL_S, _TURN_S * len(files))
        self._grown = dict.fromkeys(files, began)
        """When each has grown last."""

        self._looks = itertools.count()
        self._waiting = [(0.0, next(self._looks), node) for node in files]
        """A heap: when, and in which order."""

    def due(self, now: float) -> Iterator[Source]:
        """The files to look at, those first that have waited for longest; `looked` follows on each."""
        while self._waiting and self._waiting[0][0] < now:
            yield self._waiting[0][2]

    def looked(self, node: Source, now: float, read: int, *, more: bool) -> None:
        """Note that the first of them was looked at, and how much was read; `more`: there may be more of it."""
        if read:
            self._grown[node] = now
        due = now
        if self._tick_s and not more:
            wait = min((now - self._grown[node]) * _SILENT_SHARE, _SILENT_MOST_S)
            due = (now // self._tick_s + max(1, round(wait / self._tick_s))) * self._tick_s
        heapreplace(self._waiting, (due, next(self._looks), node))

    def pause_s(self, now: float) -> float:
        """How long there is nothing to look at."""
        if self._tick_s:
            return max(_POLL_EARLY_S, self._waiting[0][0] - now)
        return self._early_s if now < self._early_until else _POLL_S
