"""Ctrl-C, Ctrl-Z, fg, bg and the end of a terminal: what they do to a worker, and how they leave the terminal."""

from __future__ import annotations

import os
import signal
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli
    from tests.terminal.screen import Screen

    Start = Callable[..., Screen]

WAITS = "import os, time\nprint('pid', os.getpid(), end='.')\nanswer = input('ready? ')\nprint('got', answer)\n"


def test_ctrl_c_cancels_and_leaves_the_terminal_as_it_was(start: Start) -> None:
    screen = start(WAITS)
    screen.until("ready? ")
    assert screen.modes != screen.before
    screen.type("\x03")

    assert screen.end() == 130
    assert screen.modes == screen.before


def test_a_signal_to_the_launcher_and_a_failure_leave_the_terminal_as_it_was(start: Start) -> None:
    screen = start(WAITS)
    screen.until("ready? ")
    screen.process.terminate()
    assert screen.end() == 130
    assert screen.modes == screen.before

    screen = start("input('ready? ')\n1 / 0\n")
    screen.until("ready? ")
    screen.type("\n")
    assert screen.end() == 1
    assert "1 / 0" in screen.said
    assert screen.modes == screen.before

    screen = start(WAITS)
    screen.until("ready? ")
    screen.type("\x1c")
    assert screen.end() == -signal.SIGQUIT
    assert screen.modes == screen.before


def state(pid: str) -> str:
    """The state of a process: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def test_ctrl_z_stops_worker_and_launcher_and_fg_and_bg_continue_both(start: Start, distlaunch: Cli) -> None:
    distlaunch.write("rc", "PS1='shell> '\n")
    script = distlaunch.write("waits.py", WAITS)
    shell = start("", argv=["bash", "--rcfile", "rc", "-i"])
    shell.until("shell> ")
    shell.type(f"{sys.executable} -m launcher local -q {script}\n")
    shell.until("pid ")
    pid = shell.until(".")
    shell.until("ready? ")
    shell.type("J")
    shell.until("J")  # echoed by the worker's own terminal: it is connected
    shell.type("\x1a")
    shell.until("shell> ")
    shell.wait(lambda: state(pid) == "T", "stop")
    shell.type("stty -a; echo still here\n")
    assert " icanon " in shell.until("\nstill here\r\n")
    shell.type("bg; echo in the background\n")
    shell.until("\nin the background\r\n")
    shell.wait(lambda: state(pid) != "T", "continuation")
    shell.type("echo it takes no keys\n")
    shell.until("\rit takes no keys\r\n")
    shell.type("fg; echo ended with $?\n")
    shell.wait(lambda: os.tcgetpgrp(shell.fd) != shell.process.pid and not shell.modes[3] & termios.ECHO, "keyboard")
    shell.type("o\n")
    shell.until("got Jo\r\n")
    shell.until("ended with 0\r\n")
    shell.type("stty -a; echo as it was\n")
    said = shell.until("\nas it was\r\n")
    assert " icanon " in said
    assert " echo " in said


def test_a_worker_whose_terminal_goes_away_while_it_is_in_the_background_reads_end_of_file(
    start: Start, distlaunch: Cli
) -> None:
    distlaunch.write("rc", "PS1='shell> '\n")
    script = distlaunch.write(
        "waits.py", "try:\n    input('ready? ')\nexcept EOFError:\n    open('over', 'w').close()\n"
    )
    shell = start("", argv=["bash", "--rcfile", "rc", "-i"])
    shell.until("shell> ")
    shell.type(f"{sys.executable} -m launcher local -q {script}\n")
    shell.until("ready? ")
    shell.type("\x1a")
    shell.until("shell> ")
    shell.type("bg; echo in the background\n")
    shell.until("\nin the background\r\n")

    shell.process.kill()
    shell.process.wait()
    shell.close()

    wait_until("the worker to read end of file", (distlaunch.directory / "over").exists)
