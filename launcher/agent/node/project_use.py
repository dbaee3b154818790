"""That this node uses the project's directory, if the run has one: noted in a thread, as its disk may stall."""

from __future__ import annotations

import os
import threading
from typing import Optional

from ..job import Job
from ..system import threads
from ..system.scratch import within

_LEAVES_S = 2.0


class ProjectUse:
    """At most one note is being made; the last one is that the node does not use the directory any more."""

    def __init__(self, job: Job, node_rank: int) -> None:
        self._project = os.path.dirname(job.output_dir) if job.project and job.output_dir else None
        self._run, self._node = job.run, node_rank
        self._thread: Optional[threading.Thread] = None

    def note(self, limit_s: float = 0.0) -> None:
        """Note it, unless that is still being done; waits for it up to `limit_s`."""
        if self._project is None or (self._thread is not None and self._thread.is_alive()):
            return
        from ..outputs import project  # few runs have one

        about = (self._project, self._run, self._node)
        thread = threading.Thread(target=project.touch, args=about, daemon=True, name="project")
        if threads.started(thread):
            self._thread = thread
            thread.join(limit_s)
        else:
            project.touch(*about)

    def leave(self) -> None:
        """Note that it does not any more."""
        if self._project is not None:
            within(_LEAVES_S, self._leave, None)

    def _leave(self) -> None:
        from ..outputs import project

        if self._thread is not None:
            self._thread.join()  # a mark that is made later would outlive the run
        project.leave(self._project or "", self._run, self._node)
