"""How much of a run's streams is read for the lines with which `attach` begins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.protocol import Output, encode_event, line_mark
from launcher.runs.records import Run
from launcher.service import resume

if TYPE_CHECKING:
    from pathlib import Path

NODES = 600


def made(path: Path, nodes: int, stream: bytes) -> Run:
    """A run in whose record are so many nodes, and in whose directory is the stream of node 0."""
    (path / "nodes/0").mkdir(parents=True)
    (path / "nodes/0/stream").write_bytes(stream)
    rows = [{"node_rank": node, "host": f"h{node}", "workers": 2} for node in range(nodes)]
    return Run(id="many-20261120-140000-abcd", path=path, plan={"nodes": rows})


def begun(node: int, ranks: list[int]) -> bytes:
    """The head of a node's stream."""
    return encode_event("rendezvous", node, ranks=ranks, round=0, restarts=0, nodes=NODES, world_size=2 * NODES)


def read_bytes() -> int:
    """How much this process has read so far."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


def test_lines_of_a_rank_that_has_been_silent_are_found_however_many_nodes_there_are(tmp_path: Path) -> None:
    texts = [b"line %d" % number for number in range(10)]
    said = b"".join(line_mark(0, 0) + text + b"\n" for text in texts)
    noise = (line_mark(0, 1) + b"x" * 99 + b"\n") * 3000
    run = made(tmp_path, NODES, begun(0, [0, 1]) + said + noise)
    for node in range(1, NODES):
        own = tmp_path / f"nodes/{node}/stream"
        own.parent.mkdir()
        own.write_bytes(begun(node, [2 * node, 2 * node + 1]) + (line_mark(node, 2 * node) + b"x\n") * 5)

    _, found = resume.known(run, frozenset({0}), 10)

    assert [record.data for record in found[0] if isinstance(record, Output)] == texts


def test_what_is_read_of_all_streams_together_has_a_limit_whatever_is_asked_for(tmp_path: Path) -> None:
    events = begun(0, [0, 1]) + b"".join(encode_event("warning", 0, message="x" * 15_000) for _ in range(600))
    run = made(tmp_path, 100, events)
    for node in range(1, 100):
        (tmp_path / f"nodes/{node}").mkdir()
        os.link(tmp_path / "nodes/0/stream", tmp_path / f"nodes/{node}/stream")
    before = read_bytes()

    offsets, _ = resume.known(run, None, 10**7 - 1)

    assert offsets == dict.fromkeys(range(100), len(events))
    assert read_bytes() - before < 600 << 20 < len(events) * 100
