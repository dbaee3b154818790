"""What a process that is forked here has from before, and what it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Optional

if TYPE_CHECKING:
    from .imported import Imported

READ_AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ")
"""Prefixes of variables that the interpreter, the loader and the C library read once."""

become_agent: Optional[Callable[[List[str]], None]] = None
"""Runs an agent with these words in this process; set by the agent if its fork server may be left standing."""

prepare: Optional[Callable[[], None]] = None
"""Imports what an agent and its worker group's process need. Set likewise."""

differs: Optional[Callable[[List[str], Imported], str]] = None
"""Why an agent with these words must not use what was imported. Set likewise."""


class Child(BaseException):
    """Carries the forked child's task to the interpreter's top level, so that a worker exits like an interpreter."""

    def __init__(self, task: Callable[[], None]) -> None:
        super().__init__()
        self.task = task
