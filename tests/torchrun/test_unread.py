"""What becomes of a launcher, and of the workers' lines, if no one reads its stdout."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system import processes
from testbed import wait_until
from tests.torchrun.node import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.torchrun.behaviour import Both, Play

LIMIT_S = 90
LINES = 3000
TALKS = f"""
import sys, time
sys.stdout.write({LINES} * ("line " + 90 * "." + "\\n"))
open("printed", "w").close()
time.sleep(600)
"""
PAGE = 4096


def fill(process: subprocess.Popen[Any]) -> None:
    """Wait until its stdout takes no more: a pipe of one page."""
    out = process.stdout
    assert out is not None
    fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, PAGE)
    wait_until("its stdout is full", lambda: any(fcntl.ioctl(out, termios.FIONREAD, bytes(4))), limit_s=LIMIT_S)


def unread(play: Play) -> None:
    (play.directory / "x.py").write_text(TALKS)
    node = play.start("--standalone", "x.py")
    fill(node)
    node.terminate()
    node.wait(LIMIT_S)


@pytest.mark.torch
def test_a_launcher_whose_stdout_is_not_read_ends_on_a_signal(played: Callable[[Callable[[Play], None]], Both]) -> None:
    both = played(unread)

    assert both.same(lambda play: play.codes) == [1]
    said = both.ours.ended[0].stderr
    assert "ended by SIGTERM\n" in said
    assert "stdout is no longer written: no one reads it" in said


@pytest.fixture
def paged(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher with a user at its terminal, who has not read to the end of its stdout."""
    (tmp_path / "x.py").write_text(TALKS)
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "launcher", "torchrun", "--standalone", "x.py"],
        cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        try:
            fill(process)
            wait_until("all is printed", (tmp_path / "printed").exists, limit_s=LIMIT_S)
            process.send_signal(signal.SIGINT)
            wait_until("the run has ended", lambda: not processes.below(process.pid), limit_s=LIMIT_S)
            yield process
        finally:
            process.kill()
    os.close(ours)
    os.close(theirs)


def test_a_user_may_read_on_after_ctrl_c(paged: subprocess.Popen[bytes]) -> None:
    """As in `distlaunch torchrun x.py | less`."""
    said = paged.communicate(timeout=LIMIT_S)[0]

    assert paged.returncode == 1
    assert said.count(b"line ") == LINES


def test_a_user_may_end_it_without_reading_on(paged: subprocess.Popen[bytes]) -> None:
    paged.terminate()

    assert paged.wait(LIMIT_S) == 1
