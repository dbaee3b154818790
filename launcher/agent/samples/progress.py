"""How far a rank is, as its script tells: a line `::distlaunch progress step=120/1000 loss=0.31`, or tqdm's bar."""

from __future__ import annotations

import math
import os
import re
from typing import Optional

from ..named_tuple import NamedTuple
from ..stream.traces import MARK

_READ_BYTES = 4096
_LONGEST_FILE_BYTES = 1 << 20
_PAIR = re.compile(r"(\w+)=(\S+)")
_COUNT = re.compile(r"(\d{1,15})(?:/(\d{1,15}))?", re.ASCII)
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LOSS = re.compile(rf"\bloss['\"]?\s*[=:]\s*({_NUMBER}|nan\b|inf\b)", re.ASCII)
_BAR = re.compile(rb"(\d[\d.]*)([kMGT]?)/(\d[\d.]*)([kMGT]?) \[\d[\d:]*<[^\r\n]*|(\d[\d.]*)([kMGT]?)it \[\d[^\r\n]*")
_SCALE = {b"": 1, b"k": 10**3, b"M": 10**6, b"G": 10**9, b"T": 10**12}


class Progress(NamedTuple):
    """What one rank has told; None: nothing."""

    step: Optional[int] = None
    steps: Optional[int] = None
    loss: Optional[float] = None
    """NaN: it is no finite number any more."""

    time: Optional[float] = None
    """When, on the monotonic clock."""


def of_mark(line: bytes, when: float) -> Progress:
    """The progress in a line of which `MARK` is a part; what it does not tell is None."""
    words = dict(_PAIR.findall(line.partition(MARK)[2].decode(errors="replace")))
    count = _COUNT.fullmatch(words.get("step", ""))
    total = _COUNT.fullmatch(words.get("steps", "")) if "steps" in words else None
    steps = count[2] if count and count[2] else total[1] if total else None
    return Progress(int(count[1]) if count else None, int(steps) if steps else None, _loss(words.get("loss")), when)


def of_bar(data: bytes, when: float) -> Optional[Progress]:
    """The progress that the last of tqdm's bars in this output shows; None without one."""
    bars = list(_BAR.finditer(data[-_READ_BYTES:]))
    if not bars:
        return None
    last = bars[-1]
    done, scale, total, total_scale, alone, alone_scale = last.groups()
    loss = _LOSS.search(last[0].decode(errors="replace"))
    steps = _scaled(total, total_scale) if total else None
    return Progress(_scaled(done or alone, scale or alone_scale or b""), steps, _loss(loss[1] if loss else None), when)


def of_file(path: str, wall: float, now: float) -> Optional[Progress]:
    """The progress in the last line of the file that DISTLAUNCH_PROGRESS_FILE names; None without such a line.

    `wall` and `now`: the present on both clocks.
    """
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            file.seek(max(0, about.st_size - _READ_BYTES))
            data = file.read(_READ_BYTES)
    except OSError:
        return None
    if about.st_size > _LONGEST_FILE_BYTES:  # it is in memory, and a script may append to it for ever
        os.truncate(path, 0)
    lines = [line for line in data.replace(b"\0", b"").splitlines() if b"=" in line]
    if not lines:
        return None
    line = lines[-1] if MARK in lines[-1] else MARK + lines[-1]
    return of_mark(line, now - max(0.0, wall - about.st_mtime))


def _loss(text: Optional[str]) -> Optional[float]:
    """A loss that JSON can hold, or NaN."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else math.nan


def _scaled(number: bytes, scale: bytes) -> Optional[int]:
    try:
        return round(float(number) * _SCALE[scale])
    except ValueError:
        return None
