"""Tells distlaunch how far this rank is, in the file that DISTLAUNCH_PROGRESS_FILE names."""

from __future__ import annotations

import os
import time
from typing import Optional

EVERY_S = 1.0


class ProgressFile:
    """One rank's; does nothing without the variable."""

    def __init__(self) -> None:
        self._path = os.environ.get("DISTLAUNCH_PROGRESS_FILE")
        self._next_s = 0.0
        self.loss: Optional[float] = None
        """The loss to tell with the steps, as soon as there is one."""

    @property
    def due(self) -> bool:
        """Whether to tell a step now: once per second is enough."""
        return self._path is not None and time.monotonic() >= self._next_s

    def tell(self, step: int, steps: int) -> None:
        """Write that `step` of `steps` are done."""
        if self._path is None:
            return
        self._next_s = time.monotonic() + EVERY_S
        loss = "" if self.loss is None else f" loss={self.loss:.6g}"
        try:
            with open(self._path, "w", encoding="ascii") as file:
                file.write(f"step={step}/{steps}{loss}\n")
        except OSError:  # training continues without
            self._path = None
