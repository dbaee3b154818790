"""A node's place in the run: which node of which job, on which host, and where its files are."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from typing import Optional

from ..channel import Message
from ..job import Job
from ..named_tuple import NamedTuple
from ..schedulers import slurm
from ..system import files, processes
from ..system.scratch import ENVIRONMENT, Scratch, in_memory
from .project_use import ProjectUse


class Place(NamedTuple):
    """What stays the same from the agent's start to its end."""

    job: Job
    node_rank: int
    host: str
    directory: str
    """The node's directory, in the run's."""

    scratch: Scratch
    began: float
    """The start on the monotonic clock."""

    project: ProjectUse

    @classmethod
    def take(cls, job: Job, node_rank: int) -> Place:
        """Find the place of this process and make its directories."""
        host = os.environ.get("DISTLAUNCH_HOST") or socket.gethostname()
        directory = os.path.join(job.directory, "nodes", str(node_rank))
        os.makedirs(directory, exist_ok=True)
        return cls(job, node_rank, host, directory, Scratch(directory), time.monotonic(), ProjectUse(job, node_rank))

    def identify(self, cgroup: Optional[str]) -> Message:
        """Identify this process.

        More is recorded in a file, to clean up after a killed agent or to connect to a worker's terminal.
        """
        identity = {"pid": os.getpid(), "start_ticks": processes.start_ticks(os.getpid()), "host": self.host}
        more = {"cgroup": cgroup, "scratch": self.scratch.path, "python": sys.executable}
        path = os.path.join(self.directory, "agent.json")
        with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as file:
            json.dump({**identity, **more, **slurm.names(os.environ)}, file)
        if self.job.warm_s:
            self._note_environment()
        return identity

    def _note_environment(self) -> None:
        """Write our variables to a file in memory: /proc shows those of the run whose process we were forked from.

        Without room the file is left out: after a cold start, /proc is right.
        """
        if in_memory(self.scratch.path):
            text = b"".join(b"%s=%s\0" % pair for pair in os.environb.items())
            with contextlib.suppress(OSError):
                files.write_whole(os.path.join(self.scratch.path, ENVIRONMENT), text, 0o600, sync=False)

    def forget_last_attempt(self, *, with_result: bool) -> None:
        """Remove files of a previous attempt: a scheduler may requeue the run in the same directory."""
        errors = os.path.join(self.directory, "errors")
        kept = os.listdir(errors) if os.path.isdir(errors) else []
        old = [os.path.join(self.directory, "deadline"), *(os.path.join(errors, name) for name in kept)]
        if with_result:
            old.append(os.path.join(self.job.directory, "result.json"))
        for path in old:
            with contextlib.suppress(OSError):
                os.remove(path)
