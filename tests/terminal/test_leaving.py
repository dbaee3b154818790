"""A run on this machine that nobody follows: who attaches to it, or looks at it, may leave it again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.terminal import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.command import Cli
    from tests.terminal.leaves import Desk
    from tests.terminal.screen import Screen

    Start = Callable[..., Screen]

PATIENT = """
import sys, time
from launcher.service import attaching
from launcher.cli import main
end = attaching.end
def patient(run):
    print("asking the cluster", file=sys.stderr, flush=True)
    time.sleep(5)
    return end(run)
attaching.end = patient
sys.exit(main())
"""
"""The launcher; a cluster takes five seconds to answer."""

ENTERED, LEFT = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"


@pytest.fixture
def desk(distlaunch: Cli) -> Iterator[Desk]:
    """A run that nobody follows."""
    distlaunch.write("ticks.py", leaves.TICKS)
    desk = leaves.Desk(distlaunch, {})
    assert desk.run("local", "--detach", "ticks.py")[0] == 0
    yield desk
    assert desk.run("cancel", "--force", "last")[0] == 0


def test_who_attaches_to_a_run_here_leaves_it_by_key_and_by_closing_the_terminal(desk: Desk) -> None:
    with desk.type("attach", "last") as by_key, desk.type("attach", "last") as closed:
        for screen in (by_key, closed):
            screen.until("d detaches, Ctrl-C asks")
            screen.until("tick ")
        by_key.type("d")
        assert by_key.end() == leaves.CONTINUES
        closed.close()
        assert closed.process.wait(60) == leaves.CONTINUES
    assert desk.run("status", "last")[1].splitlines()[1] == "state    running"


@pytest.mark.parametrize("keys", ["\x03", "\x03\x03"])
def test_ctrl_c_before_anything_of_the_run_is_followed_leaves_it_alone(desk: Desk, start: Start, keys: str) -> None:
    desk.cli.write("patient.py", PATIENT)
    screen = start("", argv=[sys.executable, "patient.py", "attach", "last"])
    screen.until("asking the cluster")
    screen.type(keys)
    screen.until("to come back: distlaunch attach ticks-")

    assert screen.end() == leaves.CONTINUES
    assert list(desk.cli.runs.glob("*/cancel.json")) == []
    assert desk.run("status", "last")[1].splitlines()[1] == "state    running"


@pytest.mark.parametrize(("words", "shown"), [("attach", "tick "), ("top", "q quit"), ("shell", "Ctrl-D leaves it")])
def test_signals_that_end_a_command_leave_the_terminal_as_it_was(desk: Desk, words: str, shown: str) -> None:
    for number in (signal.SIGQUIT, *([signal.SIGTERM] if words != "attach" else [])):
        with desk.type(words, "last") as screen:
            screen.until(shown)
            screen.wait(lambda: screen.modes != screen.before, "keys")
            screen.process.send_signal(number)

            assert screen.end() == -number
            assert screen.modes == screen.before
            assert words != "top" or screen.said.endswith(LEFT)


def test_a_shell_whose_launcher_has_gone_before_it_was_there_ends(desk: Desk) -> None:
    (run,) = desk.cli.runs.iterdir()
    wait_until("the agent", (run / "nodes/0/agent.json").exists)
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        argv = [sys.executable, str(run / "agent.pyz"), "--shell", str(run / "nodes/0")]
        process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True)
    try:
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_ctrl_z_in_top_gives_the_terminal_to_the_shell_and_fg_takes_it_again(desk: Desk, start: Start) -> None:
    desk.cli.write("rc", "PS1='shell> '\n")
    shell = start("", argv=["bash", "--rcfile", "rc", "-i"])
    shell.until("shell> ")
    shell.type(f"{sys.executable} -m launcher top last; echo ended with $?\n")
    shell.until(ENTERED)
    shell.until("q quit")
    shell.type("\x1a")
    shell.until(LEFT)
    shell.until("shell> ")
    shell.type("bg; sleep 3; echo slept $?\n")
    assert ENTERED not in shell.until("slept 0\r\n")
    shell.type("fg; echo ended with $?\n")
    shell.until(ENTERED)
    shell.until("q quit")
    shell.type("q")
    shell.until(LEFT)
    shell.until("ended with 0\r\n")
