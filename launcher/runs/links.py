"""Links to a run's pages, as trackers print them: `View run NAME at: URL` of Weights & Biases and of MLflow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.runs.status import END_BYTES
from launcher.system import input_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.runs.records import Run

_NODES = 8
"""So many nodes' streams are looked through, rank 0's first."""

_MOST = 8
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m|\x1b\]8;[^\x07\x1b]*(?:\x07|\x1b\\)")
_LINK = re.compile(rb"View run\b[^\n]{0,300}? at:? +(https?://[^\s\"'<>\x00-\x1f\x7f-\xff]{1,500})")


def of(run: Run) -> list[str]:
    """The links that its ranks have printed near the beginning or the end of their output, the newest first."""
    if run.tasks or run.private:
        return []
    found: list[str] = []
    for node in range(min(_NODES, len(run.hosts))):
        try:
            with input_file.open_file(run.stream_path(node)) as file:
                head = file.read(END_BYTES)
            tail = input_file.end_of(run.stream_path(node), END_BYTES)
        except OSError:
            continue
        found += [*_in(head), *_in(tail)]
    return list(dict.fromkeys(reversed(found)))[:_MOST]


def _in(data: bytes) -> Iterable[str]:
    lines = (line for line in data.split(b"\n") if b"View run" in line and not line.startswith(b"{"))
    for line in lines:
        for link in _LINK.findall(_COLOURS.sub(b"", line)):
            yield link.decode("ascii").rstrip(".,;)'\"")
