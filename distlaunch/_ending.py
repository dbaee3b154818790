"""The end of a command: as the interpreter's, but without taking apart all modules, which takes 10 ms."""

from __future__ import annotations

import atexit
import os
import sys

_codes: list[int] = []


def install() -> None:
    """Register the last exit hook: hooks run last in, first out. Without effect if others are registered already."""
    count = getattr(atexit, "_ncallbacks", None)
    if count is not None and count() == 0:
        atexit.register(_leave)


def expect(code: int) -> int:
    """Set the exit code, and return it; without a call, the interpreter ends the process."""
    _codes[:] = [code]
    return code


def _leave() -> None:
    """End the process: threads are joined, and all other hooks have run."""
    if not _codes:
        return
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):  # the interpreter has a message and an exit code for that
        return
    os._exit(_codes[0])
