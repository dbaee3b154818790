"""Ctrl-C to a command whose JSON lines are not read: it ends, and what is read after that is whole lines."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.cli.following import nothing_is_left  # noqa: F401 - a fixture

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.command import Cli

PRINTS = """
for number in range({lines}):
    print(str(number) + "-" * {size})
while True:
    __import__("signal").pause()
"""


@contextmanager
def blocked(distlaunch: Cli, lines: int, size: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command that follows a run as JSON lines and has filled the pipe that is its stdout; and its read end."""
    distlaunch.write("prints.py", PRINTS.format(lines=lines, size=size))
    run = distlaunch("local", "--detach", "prints.py").stdout.strip()
    read, write = os.pipe()
    try:
        with distlaunch.start("logs", "-f", "--output", "json", run, stdout=write) as process:
            limit = time.monotonic() + 60
            while select.select([], [write], [], 0)[1]:
                assert process.poll() is None
                assert time.monotonic() < limit
                time.sleep(0.01)
            os.close(write)
            try:
                yield process, read
            finally:
                process.kill()
    finally:
        os.close(read)
        assert distlaunch("cancel", "--force", run).exit_code == 0


@pytest.mark.parametrize(("lines", "size"), [(10_000, 40), (9, 200_000)])
def test_ctrl_c_ends_it_if_no_one_reads(distlaunch: Cli, lines: int, size: int) -> None:
    with blocked(distlaunch, lines, size) as (process, read):
        process.send_signal(signal.SIGINT)

        assert process.wait(60) == 130
        with open(read, "rb", closefd=False) as stdout:
            assert b"interrupted" not in stdout.read()


def test_a_line_that_ctrl_c_cuts_is_not_continued_by_the_last_object(distlaunch: Cli) -> None:
    with blocked(distlaunch, 9, 200_000) as (process, read):
        process.send_signal(signal.SIGSTOP)  # what it is writing is cut, and goes on only with SIGCONT
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        begun = os.read(read, 1 << 20)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        with open(read, "rb", closefd=False) as stdout:
            *_, last = (begun + stdout.read()).splitlines()

        assert process.wait(60) == 130
        assert not begun.endswith(b"\n")
        assert json.loads(last)["error"]["code"] == "interrupted"
