"""The fork servers that runs of this user have left standing on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.warm import records

if TYPE_CHECKING:
    from launcher.results.warm import WarmServer


def standing() -> list[WarmServer]:
    """All of them, the newest first."""
    return [_shown(each) for each in records.found()]


def end() -> list[WarmServer]:
    """End all of them; returns those that stood until now. Runs that use them are not affected."""
    ended = []
    for each in records.found():
        shown = _shown(each)
        if records.end(each):
            ended.append(shown)
    return ended


def _shown(each: records.Standing) -> WarmServer:
    return {
        "pid": each.pid,
        "python": each.python,
        "modules": each.modules,
        "since": each.since,
        "until": each.until,
        "runs": each.runs,
        "memory_bytes": _memory(each.pid),
    }


def _memory(pid: int) -> int | None:
    """The memory that the process shares with no other one, and its part of what it does."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("Pss:")))
    return None
