"""torchrun's command line from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def torchrun(args: Iterable[str], *, env: Mapping[str, str] | None = None) -> int:
    """Run this node's part of a torchrun command line, as `distlaunch torchrun ARGS` does, and return its exit code.

    It runs in its own process, which has the keyboard and writes where this process does. `env`: its whole environment.
    Ctrl-C ends it, and is raised again once it has ended.
    """
    if isinstance(args, str):
        raise SpecError(f"args is a single string, {args!r}", hint='write a list: ["--standalone", "train.py"]')
    interrupted: KeyboardInterrupt | None = None
    with subprocess.Popen([sys.executable, "-m", "distlaunch", "torchrun", *args], env=env) as process:
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt as error:
                if not _in_foreground():  # else the terminal has signalled it, too
                    process.send_signal(signal.SIGINT)
                interrupted = error
    if interrupted is not None:
        raise interrupted
    return process.returncode


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
