"""`distlaunch.torchrun`, interrupted."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil

from tests.command import Cli

if TYPE_CHECKING:
    from pathlib import Path

CALLS = """
import distlaunch
try:
    distlaunch.torchrun(["--standalone", "work.py", "wait"])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_of_this_process_alone_ends_the_run_first(here: Path) -> None:
    process = Cli(here).start(python=("-c", CALLS), real=True, start_new_session=True, bufsize=0)
    with process:
        assert process.stdout
        said = b""
        while b"waits" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)

    assert process.returncode == 0
    assert rest.endswith(b"interrupted\n")
    assert len(below) > 2, "agent, fork server and worker"
    assert psutil.wait_procs(below, timeout=60)[1] == []
