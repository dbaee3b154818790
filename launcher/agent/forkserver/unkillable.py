"""Workers that SIGKILL does not end: they wait in the kernel, for a device or a file system that does not answer."""

from __future__ import annotations

import contextlib
import time
from typing import Dict, List, Optional, Set, Tuple

from ..system import processes

_ENDS_S, _EXITS_S = 8.0, 60.0
"""How long a worker may take after SIGKILL; one that exits may have much memory to free, on GPUs as well."""

_LOOK_MS = 500
_FLAGS, _EXITING = 6, 0x4
"""The place of the flags in `processes.stat`, and the one of a process that exits: PF_EXITING."""


class Killed:
    """The workers that were sent SIGKILL."""

    def __init__(self) -> None:
        self._since: Dict[int, float] = {}
        self.left: Set[int] = set()
        """Those that were given up, as long as they exist."""

    def sent(self, pid: int) -> None:
        """Record that a worker was sent SIGKILL."""
        self._since.setdefault(pid, time.monotonic())

    def reaped(self, pid: int) -> None:
        """Forget a worker that has ended."""
        self._since.pop(pid, None)
        self.left.discard(pid)

    def patience_ms(self) -> Optional[int]:
        """How soon `given_up` must be called again; None: it need not."""
        return _LOOK_MS if self._since else None

    def given_up(self) -> List[Tuple[int, str]]:
        """Workers that have had their time, and what the kernel says of them. What they have started is killed."""
        now, found = time.monotonic(), []
        for pid, since in list(self._since.items()):
            if now - since > (_EXITS_S if _exits(pid) else _ENDS_S):
                del self._since[pid]
                self.left.add(pid)
                processes.kill_below(pid)
                found.append((pid, _words(pid)))
        return found


def _exits(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return bool(int(processes.stat(pid)[_FLAGS]) & _EXITING)
    return False


def _words(pid: int) -> str:
    from ..stacks import kernel  # few workers are like that

    return kernel.words(pid)
