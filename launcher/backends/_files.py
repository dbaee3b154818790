"""Agent streams in files that we can read: on this machine, or on a file system that all nodes share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from launcher.backends._base import Chunk
from launcher.runs import JOB_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_POLL_S = 0.02
_READ_BYTES = 1 << 20


class FileStream:
    """Follows the stream files by their growth."""

    def __init__(self, run_dir: Path, nodes: int, offsets: Mapping[int, int], *, job_output: bool = False) -> None:
        """`job_output`: the scheduler writes to the run folder's `job.out`."""
        self._paths = {node: run_dir / "nodes" / str(node) / "stream" for node in range(nodes)}
        if job_output:
            self._paths[JOB_OUTPUT] = run_dir / "job.out"
        self._offsets = offsets
        self._files: dict[int, Any] = {}

    def read(self, timeout_s: float) -> list[Chunk]:
        """What the files have grown by."""
        limit = time.monotonic() + timeout_s
        while True:
            chunks = [chunk for node in self._paths if (chunk := self._read_node(node))]
            left = limit - time.monotonic()
            if chunks or left <= 0:
                return chunks
            time.sleep(min(_POLL_S, left))

    def _read_node(self, node: int) -> Chunk | None:
        if node not in self._files:
            try:
                self._files[node] = open(self._paths[node], "rb", buffering=0)  # noqa: SIM115 - closed by close()
                self._files[node].seek(self._offsets.get(node, 0))
            except OSError:
                return None
        data = self._files[node].read(_READ_BYTES)
        return Chunk(node, data) if data else None

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
