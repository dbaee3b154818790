"""How `distlaunch torchrun` ends on one node: by signals, and when its processes are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.agent.node import below
from launcher.agent.system import processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torchrun.node import Node

SLEEPS = """
import os, signal, sys, time
def heard(number, frame):
    sys.stdout.write("heard " + signal.Signals(number).name + "\\n")
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, heard)
sys.stdout.write("up\\n")
while True:
    time.sleep(1)
"""
IGNORES = SLEEPS.replace("    sys.exit(0)\n", "")


@pytest.mark.parametrize(("option", "sent", "heard"), [
    ("SIGTERM,SIGINT", signal.SIGTERM, "SIGTERM"),
    ("SIGTERM,SIGINT", signal.SIGINT, "SIGINT"),
    ("SIGUSR1", signal.SIGUSR1, "SIGUSR1"),
])  # fmt: skip
def test_a_signal_that_is_handled_ends_the_run_with_it(
    start: Callable[..., Node], option: str, sent: int, heard: str
) -> None:
    node = start(SLEEPS, "--standalone", "--nproc-per-node=2", "--signals-to-handle", option, "x.py")
    node.until(lambda: node.out.count("up") == 2)

    os.kill(node.process.pid, sent)

    assert node.wait() == 1  # as torchrun's
    assert node.out.count(f"heard {heard}") == 2
    assert node.left() == []


SAVES = """
import signal, sys, time
def save(number, frame):
    time.sleep(0.3)  # shorter than the second after which the same signal would be the user's second one
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(1)
"""


WRAPS = "#!/bin/sh\necho $$ > shell\n$PYTHON x.py\nexit 0\n"


@pytest.fixture
def wrapped(start: Callable[..., Node], tmp_path: Path) -> Callable[[str], Node]:
    """Starts a node whose worker is a shell that runs the script, as its child."""
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(WRAPS)
    wrapper.chmod(0o755)
    return lambda script: start(script, "--standalone", "--no-python", "./wrapper.sh", env={"PYTHON": sys.executable})


def test_a_scheduler_that_signals_all_processes_at_once_leaves_the_workers_their_time(
    start: Callable[..., Node],
) -> None:
    node = start(SAVES, "--standalone", "x.py")
    node.until(lambda: "up" in node.out)
    below = node.below()

    node.process.terminate()
    for pid, ticks in below:
        with contextlib.suppress(ProcessLookupError):  # the first signal has already ended it
            if processes.start_ticks(pid) == ticks:
                os.kill(pid, signal.SIGTERM)

    assert node.wait() == 1
    assert "saved" in node.out


def shell_of(node: Node) -> int:
    """The process that is the wrapper."""
    return int((node.directory / "shell").read_text())


def test_a_scheduler_may_signal_a_wrapper_and_what_it_has_started_before_the_launcher(
    wrapped: Callable[[str], Node],
) -> None:
    node = wrapped(SAVES.replace("0.3", "1.5"))
    node.until(lambda: "up" in node.out)
    shell = shell_of(node)

    os.killpg(shell, signal.SIGTERM)
    node.until(lambda: processes.start_ticks(shell) is None)
    node.process.terminate()

    assert node.wait() == 1
    assert "saved" in node.out


def test_a_wrapper_that_is_killed_alone_is_a_failure(wrapped: Callable[[str], Node]) -> None:
    node = wrapped(SLEEPS)
    node.until(lambda: "up" in node.out)

    os.kill(shell_of(node), signal.SIGTERM)

    assert node.wait() == 1
    assert "killed by SIGTERM" in node.err


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_what_a_wrapper_has_started_gets_the_signal_once_and_has_its_time(
    wrapped: Callable[[str], Node], sent: signal.Signals
) -> None:
    script = SLEEPS.replace("sys.exit(0)", 'time.sleep(1); print("saved", flush=True); sys.exit(0)')
    node = wrapped(script)
    node.until(lambda: "up" in node.out)

    os.kill(node.process.pid, sent)

    assert node.wait() == 1
    assert node.out.splitlines() == ["up", f"heard {sent.name}", "saved"]


def test_the_second_signal_kills_what_a_wrapper_has_started(wrapped: Callable[[str], Node]) -> None:
    node = wrapped(IGNORES)
    node.until(lambda: "up" in node.out)

    os.kill(node.process.pid, signal.SIGTERM)
    node.until(lambda: "heard SIGTERM" in node.out)
    os.kill(node.process.pid, signal.SIGINT)

    assert node.wait() == 1


def test_the_second_signal_kills_at_once(start: Callable[..., Node]) -> None:
    node = start(IGNORES, "--standalone", "x.py")
    node.until(lambda: "up" in node.out)

    os.kill(node.process.pid, signal.SIGTERM)
    node.until(lambda: "heard SIGTERM" in node.out)
    os.kill(node.process.pid, signal.SIGINT)

    assert node.wait() == 1


def test_other_signals_are_passed_on_and_the_run_continues(start: Callable[..., Node]) -> None:
    node = start(SLEEPS, "--standalone", "--nproc-per-node=2", "x.py")
    node.until(lambda: node.out.count("up") == 2)

    os.kill(node.process.pid, signal.SIGUSR2)

    assert node.wait() == 0
    assert node.out.count("heard SIGUSR2") == 2


def test_workers_that_do_not_end_are_killed_after_the_shutdown_timeout(start: Callable[..., Node]) -> None:
    node = start(IGNORES, "--standalone", "--shutdown-timeout", "1", "x.py")
    node.until(lambda: node.out.count("up") == 1)

    os.kill(node.process.pid, signal.SIGTERM)

    assert node.wait() == 1
    assert "workers get SIGTERM, and have 1 s to end" in node.err


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "with its agent"])
def test_nothing_is_left_of_a_launcher_that_was_killed(start: Callable[..., Node], whole: bool) -> None:
    node = start(IGNORES, "--standalone", "--nproc-per-node=2", "--shutdown-timeout", "1", "x.py")
    node.until(lambda: node.out.count("up") == 2)
    started = node.below()
    agent = next(pid for pid, _ in started if processes.below(pid))

    node.process.kill()
    if whole:
        os.kill(agent, signal.SIGKILL)

    assert node.wait() == -signal.SIGKILL
    node.until(lambda: not any(processes.start_ticks(pid) == ticks for pid, ticks in started))
    if whole:  # no process was left that could remove it
        assert start("", "--standalone", "x.py").wait() == 0
    node.until(lambda: node.left() == [])


def test_a_launcher_on_another_host_with_the_same_directory_is_not_one_that_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boot, above = tmp_path / "boot_id", tmp_path / "shared"
    monkeypatch.setattr(below, "BOOT_ID", str(boot))
    above.mkdir()
    boot.write_text("0123abcd-0000")
    theirs = Path(f"{below.create(str(above))}0")
    theirs.with_name(theirs.name[:-1]).rename(theirs)  # no process here has that start time

    boot.write_text("4567abcd-0000")
    below.create(str(above))
    boot.unlink()
    below.create(str(above))
    assert theirs.exists()
    boot.write_text("0123abcd-0000")
    below.create(str(above))
    assert not theirs.exists()


def test_an_agent_that_was_killed_is_reported(start: Callable[..., Node]) -> None:
    node = start(SLEEPS, "--standalone", "--nproc-per-node=2", "x.py")
    node.until(lambda: node.out.count("up") == 2)
    started = node.below()

    os.kill(next(pid for pid, _ in started if processes.below(pid)), signal.SIGKILL)

    assert node.wait() == 1
    assert "the agent exited without reporting a result" in node.err or "SIGKILL" in node.err
    node.until(lambda: not any(processes.start_ticks(pid) == ticks for pid, ticks in started))
    assert node.left() == []
