"""An agent whose Python is started before the launcher knows the run, and has its imports behind it by then.

It is `python -u ARCHIVE --ahead ROOM` first. A line on stdin is `{"argv": ..., "outputs": [STDOUT, STDERR]}`: it
becomes the agent with that command line and those files, as if it had been started then. Or it is a list of those, for
which it forks: it answers with a list of pids, and after another line they become agents. It exits when stdin ends.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional


def become() -> None:
    """Wait for the run, and set `sys.argv`; as one of many, in a process of its own."""
    import json

    from .system import garbage

    garbage.keep()
    from . import job  # noqa: F401 - what an agent imports before it forks a fork server, and no more
    from .forkserver import archive, forks, imported, prefork  # noqa: F401
    from .node import run  # noqa: F401
    from .system import processes

    wanted: Any = json.loads(_line())
    while isinstance(wanted, list):
        found = _forked(wanted)
        wanted = json.loads(_line()) if found is None else found
    _take_output([os.devnull, *wanted["outputs"]])
    argv: List[str] = wanted["argv"]
    archive.move(argv[2])
    sys.path[0], sys.argv[:] = argv[2], argv[2:]
    original = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if original is not None:
        original[:] = argv
    processes.set_title(argv)


def _forked(agents: List[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """Fork for each agent, answer, and let them begin once there is a line. In such a process, which agent it is."""
    waits, begins = os.pipe()
    answer: List[int] = []
    try:
        for about in agents:
            answer.append(os.fork())
            if not answer[-1]:
                os.close(begins)
                os.setsid()
                if not os.read(waits, 1):
                    os._exit(os.EX_TEMPFAIL)
                os.close(waits)
                return about
    except OSError as error:  # no process can be started: those that wait end
        os.write(1, f'"{error.strerror}"\n'.encode())
        sys.exit(os.EX_OSERR)
    os.write(1, f"{answer}\n".encode())
    _line()
    os.close(waits)
    os.write(begins, bytes(len(answer)))
    os.close(begins)
    os.write(1, b"[]\n")
    return None


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
