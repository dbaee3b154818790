"""What is known of a run's streams when it begins to be followed again."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.agent.protocol import Output
from launcher.runs import status
from launcher.runs.reader import StreamReader
from launcher.system import input_file

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.protocol import Record
    from launcher.runs.reader import Wanted
    from launcher.runs.records import Run

_LAST_BYTES = 128 * 1024


def sizes(run: Run) -> dict[int, int]:
    """The size of each node's stream as the run's directory has it now."""
    found = {}
    for node in range(len(run.hosts)):
        with suppress(OSError):
            found[node] = run.stream_path(node).stat().st_size
    return found


def known(run: Run, ranks: Wanted | None, tail: int) -> tuple[dict[int, int], dict[int, list[Record]]]:
    """Where to go on in each stream; and what comes before: events, and the last `tail` lines of these ranks."""
    offsets: dict[int, int] = {}
    found: dict[int, list[Record]] = {}
    for node in range(len(run.hosts)):
        path = run.stream_path(node)
        with suppress(OSError):
            offsets[node], last = _whole_lines(path)
            found[node] = [*status.ends(path, offsets[node]), *_last_lines(last, ranks, node, tail)]
    return offsets, found


def _whole_lines(path: Path) -> tuple[int, bytes]:
    """The offset after the last whole line of the stream, and the last lines before it."""
    with input_file.open_file(path) as file:
        start = max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES)
        file.seek(start)
        data = file.read(_LAST_BYTES)
    end = data.rfind(b"\n") + 1
    return start + end, data[data.find(b"\n") + 1 if start else 0 : end]


def _last_lines(data: bytes, ranks: Wanted | None, node: int, count: int) -> list[Record]:
    """The last lines that these ranks have written."""
    lines: list[Record] = []
    for record in StreamReader(ranks, node).feed(data) if count else ():
        if isinstance(record, Output):
            lines += [record._replace(data=part) for part in record.data.split(b"\n")]
    return lines[-count:]
