"""What `--debug RANK` adds to a worker: an uncaught exception opens pdb on its terminal, and other ranks stay."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import List

from ..system import processes
from . import notes, worker
from .program import Program


def argv(python: str, archive: str, scratch: str, program: Program) -> List[str]:
    """The command of such a worker if it has an interpreter of its own."""
    what = [program.kind, program.target, *program.args]
    return [python, *program.options, "-u", os.path.abspath(archive), "--debug", scratch, *what]


def main(scratch: str, kind: str, command: List[str]) -> None:
    """Run as that worker."""
    archive = sys.path.pop(0)
    program = Program(command, kind, os.getcwd(), processes.options())
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, program.directory)
    debugger = Debugger(scratch)
    program.compile()
    worker.forget(archive)
    worker.run(program, sys.executable, debugger=debugger)


class Debugger:
    """Called in the worker with the exception; returns when the user leaves the debugger."""

    def __init__(self, scratch: str) -> None:
        self._pid, self._server, self._scratch = os.getpid(), os.getppid(), scratch

    def __call__(self, error: BaseException) -> None:
        """Open the debugger, except for Ctrl-C and in a process that the script has forked."""
        if isinstance(error, KeyboardInterrupt) or error.__traceback__ is None or os.getpid() != self._pid:
            return
        notes.leave(self._scratch, notes.DEBUGGER, worker.text_of(error), self._server)
        import pdb  # noqa: T100 - its purpose; imported late, as the script would see it

        # The terminal, even if the script has replaced these.
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        with contextlib.suppress(Exception):
            # Since Python 3.13 it takes the exception, and shows those that caused it.
            pdb.post_mortem(error if sys.version_info >= (3, 13) else error.__traceback__)  # type: ignore[arg-type,unused-ignore]
