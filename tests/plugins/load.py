"""`--load N`: N processes per core compute while tests run. Which tests pass on a busy host?

scripts/test --load 1 --count 30 tests/cli/test_follow.py::test_that_failed_now_and_then
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(1_000_000))"
"""Ends when its parent has exited, even if that was killed."""


class Load:
    """In the process that reports."""

    def __init__(self, each: int) -> None:
        self.number = each * len(os.sched_getaffinity(0))
        self.processes: list[subprocess.Popen[bytes]] = []

    def pytest_report_header(self) -> str:
        return f"load: {self.number} processes that compute"

    def pytest_sessionstart(self) -> None:
        argv = (sys.executable, "-S", "-c", BUSY, str(os.getpid()))
        self.processes = [subprocess.Popen(argv) for _ in range(self.number)]

    def pytest_unconfigure(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("selection of tests").addoption(
        "--load", type=int, default=0, metavar="N", help="with N processes per core that compute beside the tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("load") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Load(config.getoption("load")), "distlaunch-load")
