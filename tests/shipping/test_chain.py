"""Nodes with disks of their own get an environment from one another."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.shipping import environments


def files_of(directory: Path) -> dict[str, bytes]:
    """The content of all files below."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_each_node_gets_every_byte_once_and_reads_nothing_from_the_shared_disk(tmp_path: Path) -> None:
    source = environments.venv(tmp_path / "source")
    (source / "lib/large.bin").write_bytes(os.urandom(9 << 20))

    parts = environments.start(tmp_path, source, range(4), 4)
    results = [part.result() for part in parts.values()]

    (digest,) = {result["digest"] for result in results}
    received = [result["received_bytes"] for result in results]
    assert len(set(received)) == 1
    assert received[0] > 9 << 20
    for rank in range(4):
        there = tmp_path / f"disk{rank}/envs/{digest}/env"
        assert (there / "lib/large.bin").read_bytes() == (source / "lib/large.bin").read_bytes()
        assert not (there / "lib/large.bin").samefile(source / "lib/large.bin")
        assert Path(results[rank]["python"]).resolve().is_relative_to(tmp_path / f"disk{rank}")
