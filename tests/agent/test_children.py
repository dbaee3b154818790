"""A process's children, by the kernel's list and by a look at all processes, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any
from unittest.mock import MagicMock

import pytest

from launcher.agent.channel import Channel
from launcher.agent.forkserver.prefork import Forked
from launcher.agent.job import Job
from launcher.agent.node.children import ServerProcess
from launcher.agent.system import cgroup, processes

PROGRAM = """
import os, subprocess, sys, threading, time
from launcher.agent.system import processes

def sleeper():
    return subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

started = [sleeper()]
thread = threading.Thread(target=lambda: (started.append(sleeper()), over.wait()))
over = threading.Event()
thread.start()
while len(started) < 2:
    time.sleep(0.01)
zombie = os.fork()
if not zombie:
    os._exit(0)
os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
wanted = sorted([zombie, *(each.pid for each in started)])
listed = processes._listed_children()
print(sorted(processes._children_among_all()) == wanted, listed is None or sorted(listed) == wanted)
over.set()
thread.join()  # its children are now the other thread's
print(sorted(processes.children()) == wanted)
processes.become_subreaper()
subprocess.run(["sh", "-c", "(sleep 60 & sleep 60 & :) > /dev/null 2>&1"], check=True)
print(len(processes.children()) == 5, processes.sweep(keep=[started[0].pid]), processes.children() == [started[0].pid])
print(processes.sweep(), processes.children())
"""


@pytest.mark.parametrize("listed", [True, False])
def test_all_are_found_and_ended_whether_or_not_the_kernel_lists_them(listed: bool) -> None:
    hide = "" if listed else "from launcher.agent.system import processes\nprocesses._listed_children = lambda: None\n"

    done = subprocess.run(
        [sys.executable, "-c", hide + PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split("\n")[:-1] == ["True True", "True", "True [] True", "[] []"], done.stderr


def test_a_wait_for_children_ends_with_the_first_that_exits_or_with_its_time() -> None:
    quick, slow = (subprocess.Popen(["sh", "-c", "read _"], stdin=subprocess.PIPE) for _ in range(2))
    try:
        began = time.monotonic()
        assert processes.wait_for_any([quick.pid, slow.pid], 0.1)
        assert time.monotonic() - began > 0.09, "none has exited"

        assert quick.stdin
        quick.stdin.close()
        began = time.monotonic()
        assert processes.wait_for_any([quick.pid, slow.pid], 60.0)
        assert time.monotonic() - began < 30, "the exit ends the wait"
        assert os.waitpid(quick.pid, os.WNOHANG)[0] == quick.pid
        assert os.waitpid(slow.pid, os.WNOHANG)[0] == 0

        open_before = len(os.listdir("/proc/self/fd"))
        assert not processes.wait_for_any([slow.pid, quick.pid], 60.0), "one is no child any more"
        assert not processes.wait_for_any([os.getppid()], 60.0), "nor is this one"
        assert len(os.listdir("/proc/self/fd")) == open_before
    finally:
        slow.kill()
        slow.communicate()
        quick.wait()


@pytest.mark.parametrize("why", [AttributeError("none in this Python"), OSError(38, "none in this kernel")])
def test_children_are_ended_where_there_are_no_pidfds(why: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_pid: int) -> int:
        raise why

    monkeypatch.setattr(os, "pidfd_open", none, raising=False)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    child = subprocess.Popen(["sleep", "60"])

    kept = [pid for pid in processes.children() if pid != child.pid]
    assert processes.sweep(keep=kept) == []

    assert child.pid not in processes.children()
    assert pauses[:1] == [0.001]
    child.wait()


def test_a_zombie_that_only_its_debugger_can_reap_is_looked_at_after_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pidfd says that it has exited, and `waitid` that it has not."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(os, "waitid", lambda *_: None)

    assert not processes.wait_for_any([child.pid], 60.0)

    child.wait()


def test_a_list_that_cannot_be_complete_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that ends between two looks hands its children to one that may have been looked at before."""
    child = subprocess.Popen(["sleep", "60"])
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    before = os.listdir

    def threads(path: str) -> list[str]:
        return [*before(path), "999999999"] if path == "/proc/self/task" else before(path)

    monkeypatch.setattr(os, "listdir", threads)
    try:
        assert processes._listed_children() is None
        assert child.pid in processes.children()
    finally:
        over.set()
        thread.join()
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_a_fork_server_that_sigkill_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(timeout: float | None = None) -> None:
        assert timeout is not None, "it would wait forever"
        raise subprocess.TimeoutExpired("fork server", timeout)

    monkeypatch.setattr(cgroup, "create", lambda _: None)
    stuck = MagicMock(pid=1 << 30, wait=wait)
    monkeypatch.setattr(processes, "sweep", lambda **_: [stuck.pid])
    ends: tuple[Channel[Any, Any], ...] = Channel.pair()
    channel, other = ends
    forked: Any = Forked(stuck, channel, channel, -1)
    server = ServerProcess(Job("run", ["x.py"], "script", "/", {}, "/", {}, max_nodes=1), 0, forked)

    assert server.end(at_once=True) == [stuck.pid]

    assert stuck.kill.called
    channel.close()
    other.close()
