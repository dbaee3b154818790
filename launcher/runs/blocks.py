"""Blocks of an agent's stream: many lines of one rank between two equal events, which tell how many bytes they are."""

from __future__ import annotations

import re

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.protocol import RECORD

FRAME = re.compile(rb'\{"event":"block",[^\n]*"bytes":(\d{1,9}),"number":\d+\}\n')
"""The event before and after the lines."""

_BEGINS = b'\n{"event":"block",'


class CutOff(NamedTuple):
    """A block of which only the beginning was read."""

    at: int
    """Where its first event begins."""

    frame: bytes
    """That event, which follows its lines once more."""

    missing: int
    """How many bytes of its lines were not read."""

    rank: int


def cut_off(data: bytes) -> CutOff | None:
    """The block at the end of the data, if it is cut off. It may be none after all: its second event shows that."""
    at = data.rfind(_BEGINS) + 1
    frame = FRAME.match(data, at)
    mark = frame and RECORD.match(data, frame.end())
    if not (frame and mark):
        return None
    missing = frame.end() + int(frame[1]) - len(data)
    return CutOff(at, frame[0], missing, int(mark[2] or mark[4])) if missing > 0 else None
