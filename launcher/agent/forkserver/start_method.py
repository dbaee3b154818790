"""Whether workers are forked from the fork server, or each has an interpreter of its own."""

from __future__ import annotations

import os
import sys
from typing import Iterable, Sequence

from . import cpython, notes
from .agent import Agent
from .setup import Setup


class StartMethod:
    """Workers are forked if scripts cannot tell the difference; else they are spawned, with a warning that says why."""

    def __init__(self, setup: Setup, agent: Agent) -> None:
        self._setup, self._agent = setup, agent
        self.forks = setup.job["start"] == "fork"
        """Whether the fork server imports what workers import."""

        self._again = False
        """Whether forked workers had to start again, so those of the next round are spawned."""

    @property
    def executes(self) -> bool:
        """Whether the next worker gets an interpreter of its own."""
        return self._again or not self.forks

    def look_at_program(self) -> None:
        """Spawn if another interpreter is needed, or the imports must read variables or CPUs in each worker."""
        setup = self._setup
        if setup.program.kind == "program":
            self.forks = False
            return
        early = setup.program.early_variables() if self.forks else []
        if setup.other_python():
            self._spawn(f"PYTHON_EXEC names another interpreter, {setup.other_python()}")
        elif setup.job["numa_binding"] and "OMP_NUM_THREADS" not in setup.env:
            self._spawn("torch counts the CPUs that a worker is bound to when it is imported")
        elif cpython.missing():
            self._spawn(
                f"Python {sys.version.split()[0]} lacks {', '.join(cpython.missing())}, which forked workers need"
            )
        elif early:
            self._spawn(f"the script sets {', '.join(early)} before it imports torch")

    def look_at_imports(self, *, preloads_more: bool) -> None:
        """Spawn if the imports do not survive a fork; `preloads_more`: they were more than torch."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        own = self._own_named_like_imported(executed=not preloads_more) if self.forks else []
        threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 2
        if cuda is not None and cuda.is_initialized():
            self._spawn("a preloaded module has initialised CUDA, which does not survive a fork")
        elif threads != 1:
            self._spawn(f"the preloaded modules have started {threads - 1} threads, which a fork would lose")
        elif own:
            self._spawn(f"{own[0]} has the name of a module that was imported before the script")

    def _own_named_like_imported(self, *, executed: bool) -> Sequence[str]:
        from . import origins  # not for programs

        return origins.named_like_imported(self._setup.program.directory, executed=executed)

    def _spawn(self, reason: str) -> None:
        """Use one interpreter, with its own imports, per worker."""
        if self.forks:
            self.forks = False
            self._agent.warn(f"workers are spawned, not forked: {reason}")

    def hear_of_workers(self, pids: Iterable[int]) -> None:
        """Spawn the workers of the next round if forked ones have started again; the warning is sent once."""
        for pid in pids:
            reasons = notes.take(self._setup.scratch, notes.AGAIN, pid)
            if reasons is not None and not self._again:
                self._again = True
                why = "; ".join(reasons)
                self._agent.warn(
                    f"workers start again, each in its own interpreter: {why}; "
                    "use --start-method spawn to avoid the restart"
                )
