"""What is known of a run's streams when it begins to be followed again."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.agent.protocol import Event, Output
from launcher.runs import status
from launcher.runs.reader import StreamReader
from launcher.system import input_file

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.protocol import Record
    from launcher.runs.reader import Wanted
    from launcher.runs.records import Run

_LAST_BYTES = 128 * 1024
_LINE_BYTES = 4096
_MOST_BYTES, _MOST_FOR_LINES_BYTES = 64 << 20, 256 << 20
"""How much of all streams together is searched for lines of ranks that have been silent for longer, and for many."""


def sizes(run: Run) -> dict[int, int]:
    """The size of each node's stream as the run's directory has it now."""
    found = {}
    for node in range(len(run.hosts)):
        with suppress(OSError):
            found[node] = run.stream_path(node).stat().st_size
    return found


def known(
    run: Run, ranks: Wanted | None, tail: int, *, search: bool = True
) -> tuple[dict[int, int], dict[int, list[Record]]]:
    """Where to go on in each stream; and what comes before: events, and the last `tail` lines of these ranks.

    `search`: also look for lines that are not among the latest.
    """
    offsets: dict[int, int] = {}
    told: dict[int, list[Record]] = {}
    lines: dict[int, list[Record]] = {}
    for node in range(len(run.hosts)):
        path = run.stream_path(node)
        with suppress(OSError):
            end, data = _end_of(path)
            told[node] = [*status.ends(path, end)]
            offsets[node], lines[node] = end, _last_lines(data, ranks, node, tail)
    few = [node for node in lines if len(lines[node]) < tail and offsets[node] > _LAST_BYTES]
    few = [node for node in few if _may_have(told[node], ranks)]
    for node in few if search else ():
        size, most = _LAST_BYTES, min(offsets[node], _most(len(few), tail))
        with suppress(OSError):
            while len(lines[node]) < tail and size < most:
                size = min(4 * size, most)
                lines[node] = _last_lines(_end_of(run.stream_path(node), offsets[node], size)[1], ranks, node, tail)
    return offsets, {node: [*told[node], *lines[node]] for node in lines}


def _most(nodes: int, tail: int) -> int:
    """How much of the stream of each of these nodes is searched for that many lines."""
    return max(_MOST_BYTES // nodes, min(tail * _LINE_BYTES, _MOST_FOR_LINES_BYTES // nodes))


def _may_have(told: list[Record], ranks: Wanted | None) -> bool:
    """Whether the node whose stream tells this has one of the ranks."""
    named = [each.fields.get("ranks") or () for each in told if isinstance(each, Event) and each.name == "rendezvous"]
    return ranks is None or any(rank in ranks for own in named for rank in own)


def _end_of(path: Path, end: int | None = None, size: int = _LAST_BYTES) -> tuple[int, bytes]:
    """The offset after the last whole line of the stream, or of its first `end` bytes, and the last lines before it."""
    with input_file.open_file(path) as file:
        end = file.seek(0, os.SEEK_END) if end is None else end
        start = max(0, end - size)
        file.seek(start)
        data = file.read(end - start)
    whole = data.rfind(b"\n") + 1
    return start + whole, data[data.find(b"\n") + 1 if start else 0 : whole]


def _last_lines(data: bytes, ranks: Wanted | None, node: int, count: int) -> list[Record]:
    """The last lines that these ranks have written."""
    lines: list[Record] = []
    for record in StreamReader(ranks, node).feed(data) if count else ():
        if isinstance(record, Output):
            lines += [record._replace(data=part) for part in record.data.split(b"\n")]
    return lines[-count:]
