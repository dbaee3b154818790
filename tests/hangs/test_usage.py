"""What ranks have used, with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from launcher.agent.stacks import usage

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTS = """
import os, subprocess, sys, time
below = [sys.executable, "-c", "while True: pass"]
child = subprocess.Popen(["sleep", "600"] if sys.argv[1] == "sleeps" else below)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def ranks() -> Iterator[list[int]]:
    """The pids of processes that only sleep, and have a child. That of the first one computes."""
    with ExitStack() as cleanup:
        pids = []
        for number in range(8):
            argv = (sys.executable, "-c", STARTS, "sleeps" if number else "computes")
            worker = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
            cleanup.enter_context(worker)
            cleanup.callback(os.killpg, worker.pid, signal.SIGKILL)
            assert worker.stdout
            assert worker.stdout.readline() == b"ready\n"
            pids.append(worker.pid)
        yield pids


def test_what_a_rank_has_started_counts_for_that_rank(ranks: list[int]) -> None:
    before = usage.of_each(ranks)
    while (after := usage.of_each(ranks))[ranks[0]][0] < before[ranks[0]][0] + 0.5:
        pass

    assert all(after[pid][0] - before[pid][0] < 0.2 for pid in ranks[1:])
    assert usage.of_each([2**22 + 1]) == {2**22 + 1: (0.0, 0)}


def test_the_processes_of_a_host_are_read_once_however_many_ranks_it_has(
    ranks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host of many cores has thousands, and the agent attends to nothing else meanwhile."""
    looks: list[str] = []
    listed = os.listdir

    def listdir(path: str) -> list[str]:
        looks.append(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", listdir)

    usage.of_each(ranks)

    assert looks == ["/proc"]
