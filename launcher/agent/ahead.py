"""An agent whose Python is started before the launcher knows the run, and has its imports behind it by then.

It is `python -u ARCHIVE --ahead ROOM` first. By a line on stdin, `{"argv": ..., "outputs": [STDOUT, STDERR]}`, it
becomes the agent with that command line and those files, as if it had been started then. It exits if stdin ends before.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List


def become() -> None:
    """Wait for the run, and set `sys.argv`."""
    import json

    from . import job  # noqa: F401 - what an agent imports before it forks a fork server, and no more
    from .forkserver import archive, forks, imported, prefork  # noqa: F401
    from .node import run  # noqa: F401
    from .system import processes

    wanted: Dict[str, Any] = json.loads(_line())
    _take_output([os.devnull, *wanted["outputs"]])
    argv: List[str] = wanted["argv"]
    archive.move(argv[2])
    sys.path[0], sys.argv[:] = argv[2], argv[2:]
    original = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if original is not None:
        original[:] = argv
    processes.set_title(argv)


def _line() -> bytes:
    """A line from stdin; exits if there is none."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1 << 16)
        if not more:
            sys.exit(os.EX_TEMPFAIL)
        line += more
    return line


def _take_output(files: List[str]) -> None:
    """Open the standard streams; nothing else is open."""
    for number, path in enumerate(files):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
        os.dup2(fd, number)
        os.close(fd)
