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
_MOST_BYTES = 64 << 20
"""Lines of ranks that have been silent for longer, over all nodes, are not looked for, unless many are wanted."""

_LINE_BYTES = 4096


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
    budget = _MOST_BYTES // max(1, len(run.hosts)) if search else 0
    offsets: dict[int, int] = {}
    found: dict[int, list[Record]] = {}
    for node in range(len(run.hosts)):
        path = run.stream_path(node)
        with suppress(OSError):
            end, data = _end_of(path)
            told = [*status.ends(path, end)]
            lines = _last_lines(data, ranks, node, tail)
            size, most = _LAST_BYTES, max(budget, tail * _LINE_BYTES) if search and _may_have(told, ranks) else 0
            while len(lines) < tail and size < min(end, most):
                size = min(4 * size, most)
                lines = _last_lines(_end_of(path, end, size)[1], ranks, node, tail)
            offsets[node], found[node] = end, [*told, *lines]
    return offsets, found


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
