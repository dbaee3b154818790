"""Threads that tests leave in pytest's process: one that computes on and on slows all tests that follow."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pytest

from launcher.agent.system import processes

if TYPE_CHECKING:
    from collections.abc import Generator

MOST_CPU_S = 60.0
"""So much CPU time a thread may use after the test that has started it, as one of a shared fixture does."""


class Threads:
    """In each process that runs tests."""

    def __init__(self) -> None:
        self._left: WeakKeyDictionary[threading.Thread, tuple[str, float]] = WeakKeyDictionary()
        """The test after which a thread was seen first, and its CPU time then."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail if an earlier test has left a thread that computes."""
        result = yield
        for thread in threading.enumerate():
            if thread is threading.main_thread():
                continue
            used = _cpu_s(thread)
            test, before = self._left.setdefault(thread, (item.nodeid, used))
            if used - before > MOST_CPU_S:
                self._left[thread] = (test, float("inf"))  # said once
                pytest.fail(f"{test} has left the thread {thread.name!r}, which has computed for {used - before:.0f} s")
        return result


def _cpu_s(thread: threading.Thread) -> float:
    """The CPU time of a thread of this process; 0 once it has ended."""
    try:
        fields = processes.stat(f"self/task/{thread.native_id}")
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Threads(), "distlaunch-threads")
