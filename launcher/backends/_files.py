"""Agent streams in files that are readable here: on this machine, or on a file system that all nodes share."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, BinaryIO

from launcher.agent.system import processes
from launcher.backends._base import Chunk
from launcher.runs.sources import JOB_OUTPUT, Source
from launcher.system import input_file, storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_POLL_S, _POLL_EARLY_S = 0.02, 0.004
_EARLY_S = 1.0
"""For this long, few files are looked at more often: much happens when a run starts, and a short one has ended."""

_FEW = 4

_READ_BYTES = 1 << 20
_READ_ALL_BYTES, _READ_LEAST_BYTES = 1 << 20, 1 << 13
"""About how much is read at once, of all files together, and at least of each: the memory of many files is bounded."""

_OTHER_FILES = 64
"""Files that the launcher may have open besides streams; queries and programs must never fail for lack of them."""


def allow_files(count: int) -> int:
    """Raise our own limit on open files as far as allowed; returns how many of the wanted files may be open at once."""
    return max(0, processes.allow_files(count + _OTHER_FILES) - _OTHER_FILES)


class FileStream:
    """Follows the stream files as they grow."""

    def __init__(self, run_dir: Path, nodes: int, offsets: Mapping[int, int], *, job_output: bool = False) -> None:
        """`job_output`: also follow the run directory's `job.out`, which the scheduler writes."""
        self._paths: dict[Source, str] = {node: f"{run_dir}/nodes/{node}/stream" for node in range(nodes)}
        if job_output:
            self._paths[JOB_OUTPUT] = f"{run_dir}/job.out"
        self._offsets: dict[Source, int] = dict(offsets.items())
        self._files: dict[Source, BinaryIO] = {}
        self._kept = allow_files(len(self._paths))
        """How many files stay open; the others are opened for each read."""

        self._early_until = time.monotonic() + _EARLY_S
        self._early_s = min(_POLL_S, _POLL_EARLY_S * max(1.0, len(self._paths) / _FEW))
        self._turns = deque(self._paths)
        """Files in the order in which they are read."""

        self._block = min(_READ_BYTES, max(_READ_LEAST_BYTES, _READ_ALL_BYTES // max(1, len(self._paths))))

    def read(self, timeout_s: float) -> list[Chunk]:
        """What was appended to the files."""
        limit = time.monotonic() + timeout_s
        while True:
            chunks, now = self._read_some(), time.monotonic()
            if chunks or now >= limit:
                return chunks
            time.sleep(min(self._early_s if now < self._early_until else _POLL_S, limit - now))

    def _read_some(self) -> list[Chunk]:
        """A chunk of each file that has grown; the others have the next turn if it is enough."""
        chunks, size = [], 0
        for node in tuple(self._turns):
            if chunk := self._read_node(node):
                chunks.append(chunk)
                size += len(chunk.data)
            self._turns.rotate(-1)
            if size >= _READ_ALL_BYTES:
                break
        return chunks

    def _read_node(self, node: Source) -> Chunk | None:
        with storage.read_errors(self._paths[node]):
            file = self._files.get(node) or self._open(node)
            data = file.read(self._block) if file else b""
            if file and node not in self._files:
                self._offsets[node] = file.tell()
                file.close()
        return Chunk(node, data) if data else None

    def _open(self, node: Source) -> BinaryIO | None:
        try:
            file = input_file.open_file(self._paths[node])
        except FileNotFoundError:
            return None
        file.seek(self._offsets.get(node, 0))
        if len(self._files) < self._kept:
            self._files[node] = file
        return file

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
