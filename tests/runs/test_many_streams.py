"""The streams of a thousand nodes are followed with a bounded number of open files, and files that are silent rest."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.backends._files import FileStream
from launcher.runs.sources import JOB_OUTPUT, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = 1000
MOST_FILES = 200


class Streams:
    """The files of a run, and what was read of them."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.read = defaultdict[Source, bytes](bytes)
        self._before = len(os.listdir("/proc/self/fd"))
        self.stream = FileStream(run, NODES, {}, job_output=True)

    def append(self, source: Source, data: bytes) -> None:
        path = self.run / ("job.out" if source == JOB_OUTPUT else f"nodes/{source}/stream")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def until(self, total: int) -> None:
        """Read until that many bytes have come."""
        while sum(map(len, self.read.values())) < total:
            for chunk in self.stream.read(60.0):
                self.read[chunk.node] += chunk.data
            assert len(os.listdir("/proc/self/fd")) - self._before <= MOST_FILES


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    found = Streams(tmp_path)
    yield found
    found.stream.close()


def test_all_bytes_of_all_nodes_arrive_in_order(streams: Streams) -> None:
    written = defaultdict[Source, bytes](bytes)
    sources: list[Source] = [*range(NODES), JOB_OUTPUT]
    for turn in range(3):
        for source in sources[turn:]:
            data = f"{source} {turn}\n".encode() * (1 + 4000 * (source == 7))
            streams.append(source, data)
            written[source] += data
        streams.until(sum(map(len, written.values())))

    assert streams.read == written
    assert streams.stream.read(0.0) == []


def test_a_node_that_was_silent_for_long_is_read_when_it_writes(streams: Streams) -> None:
    assert streams.stream.read(2.0) == []

    streams.append(NODES - 1, b"late\n")
    streams.until(5)

    assert streams.read[NODES - 1] == b"late\n"


def test_silent_files_are_rarely_read(streams: Streams) -> None:
    for node in range(NODES):
        streams.append(node, b"x\n")
    streams.until(2 * NODES)
    before = _reads()

    assert streams.stream.read(5.0) == []

    assert _reads() - before < 5 * NODES, "each of the files that stay open, about twice a second"


def _reads() -> int:
    """Reading system calls of this process."""
    return int(Path("/proc/self/io").read_text().split("syscr:")[1].split()[0])
