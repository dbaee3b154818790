"""Links to a run's pages, as trackers print them: `View run NAME at: URL` of Weights & Biases and of MLflow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NODES = 8
"""So many nodes' streams are looked through, rank 0's first."""

_MOST = 8
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m|\x1b\]8;[^\x07\x1b]*(?:\x07|\x1b\\)")
_LINK = re.compile(rb"View run\b[^\n]{0,300}? at:? +(https?://[^\s\"'<>\x00-\x1f\x7f-\xff]{1,500})")


def found(nodes: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """The links in both ends of the first nodes' streams, the newest first."""
    every = [link for head, tail in nodes[:_NODES] for part in (head, tail) for link in _in(part)]
    return list(dict.fromkeys(reversed(every)))[:_MOST]


def _in(data: bytes) -> Iterable[str]:
    lines = (line for line in data.split(b"\n") if b"View run" in line and not line.startswith(b"{"))
    for line in lines:
        for link in _LINK.findall(_COLOURS.sub(b"", line)):
            yield link.decode("ascii").rstrip(".,;)'\"")
