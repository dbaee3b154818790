"""Whether this node's workers have told anything: to a pipe, or to the file in which they tell their progress."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import List, Optional, Sequence

from ..ranks import progress_file
from ..system import scratch, threads
from .workers import Workers


class Life:
    """Its signs. On a host without /dev/shm, the files are on the run's disk, for which the agent does not wait."""

    def __init__(self, directory: str, workers: Workers) -> None:
        self._directory, self._workers = directory, workers
        self._thread: Optional[threading.Thread] = None
        self._files: List[object] = []
        self._noted: List[object] = []
        self._now: List[object] = []

    def has_changed(self) -> bool:
        """Whether they differ from those that were noted; of files on a disk, by an earlier look."""
        about = (worker.about for worker in self._workers.running())
        names = [progress_file(each["round"], each["local_rank"]) for each in about]
        if scratch.in_memory(self._directory):
            self._look(names)
        elif self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._look, args=(names,), daemon=True, name="progress")
            self._thread = thread if threads.started(thread) else None
        self._now = [self._workers.output.reads, *self._files]
        return self._now != self._noted

    def note(self) -> None:
        """Compare with what was found now."""
        self._noted = self._now

    def _look(self, names: Sequence[str]) -> None:
        found: List[object] = []
        for name in names:
            with contextlib.suppress(OSError):  # most have none
                about = os.stat(os.path.join(self._directory, name))
                found.append((name, about.st_mtime_ns, about.st_size))
        self._files = found
