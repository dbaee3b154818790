"""`--load`: the host is busy while tests run, and not afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.waiting import wait_until
from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.plugins_tests.conftest import Inner

TEST = """
import os
from pathlib import Path

def test_one():
    directory = Path("/proc", str({controller}), "task", str({controller}), "children")
    pids = directory.read_text().split()
    busy = [pid for pid in pids if b"range(1_000_000)" in Path("/proc", pid, "cmdline").read_bytes()]
    Path("busy").write_text(" ".join(busy))
"""


@pytest.mark.parametrize(("processes", "controller"), [("0", "os.getpid()"), ("1", "os.getppid()")])
def test_the_requested_number_of_processes_per_core_compute_until_the_run_ends(
    inner: Callable[..., Inner], tmp_path: Path, processes: str, controller: str
) -> None:
    done = inner({"test_some.py": TEST.format(controller=controller)}, f"-n{processes}", "--load", "1", "--count", "2")

    assert "2 passed" in done.lines[-1]
    number = len(os.sched_getaffinity(0))
    assert f"load: {number} processes that compute" in done.lines
    busy = (tmp_path / "inner/busy").read_text().split()
    assert len(busy) == number
    assert not [pid for pid in busy if Path("/proc", pid).exists()]


def test_busy_processes_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TEST.format(controller="os.getpid()") + "    os.read(0, 1)\n")
    argv = (
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.plugins.load",
        "-n0",
        "-s",
        "--load",
        "1",
        "-p",
        "no:cacheprovider",
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as run:
        wait_until("the busy processes", lambda: (tmp_path / "busy").exists() and (tmp_path / "busy").read_text())
        run.send_signal(signal.SIGKILL)

    busy = [Path("/proc", pid) for pid in (tmp_path / "busy").read_text().split()]
    wait_until("their end", lambda: not any(path.exists() for path in busy))
