"""Scripts that use a terminal, and what a person does at it: the same on all backends."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.processes import Process
from tests.terminal.screen import Screen
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli

ASKS = """
import os, signal, sys
rank = os.environ["RANK"]
print(f"rank {rank} on {os.uname().nodename}: {[os.isatty(fd) for fd in (0, 1, 2)]}", flush=True)
if rank == sys.argv[1]:
    signal.signal(signal.SIGWINCH, lambda *_: print("window {} {}".format(*os.get_terminal_size(1))))
    print("at first {} {}".format(*os.get_terminal_size(1)))
    name = input("name? ")
    print(f"hello {name}")
    while input("more? "):
        pass
    breakpoint()
    raise ValueError(name)
"""
"""The named rank asks; all print which of their streams are a terminal.

What a test waits for is written in one piece: between two, the launcher may show output of other ranks.
"""

SHOWN = """
import os, signal, time
print(f"rank {os.environ['RANK']} on {os.uname().nodename}: {[os.isatty(fd) for fd in (0, 1, 2)]}", flush=True)
if os.isatty(1):
    signal.signal(signal.SIGWINCH, lambda *_: print("window {} {}".format(*os.get_terminal_size(1))))
    print("\x1b[32mgreen\x1b[0m {} {} {}".format(os.environ["TERM"], *os.get_terminal_size(1)))
    while os.get_terminal_size(1).columns != 99:
        time.sleep(0.05)
"""
"""Nothing is typed; a rank that writes to a terminal ends when its window is 99 columns wide."""

CHATS = """
import os
print(f"rank {os.environ['RANK']} on {os.uname().nodename}", flush=True)
if os.environ["RANK"] == "1":
    while (word := input("next? ")) != "over":
        print(f"heard {word}")
"""
"""Rank 1 answers each line until it is `over`."""


def on_screen(cli: Cli, *words: str, env: dict[str, str | None], cwd: Path | None = None) -> Screen:
    """A command of distlaunch on a terminal."""
    return Screen((sys.executable, "-m", "launcher", *words), env=cli.env(env), cwd=cwd or cli.directory)


def debug(screen: Screen, *, rank: int, host: str) -> None:
    """Type to the rank that ASKS names, on a screen of 31 lines and 71 columns, until its last debugger is left."""
    screen.until(f"rank {rank} on {host}")
    screen.until(": [True, True, True]")
    screen.until("at first 71 31")
    screen.until("name? ")
    screen.type("Jo\u00e3o\n")
    screen.until("hello Jo\u00e3o")
    screen.resize(32, 88)
    screen.type("x\n")  # a read that has begun when the signal comes ends before it is handled
    screen.until("window 88 32")
    screen.type("\n")
    screen.until("(Pdb) ")
    screen.type("p rank * 3\n")
    screen.until(f"'{rank}{rank}{rank}'")
    screen.type("c\n")
    screen.until("Traceback (most recent call last):")
    screen.until("raise ValueError(name)")
    screen.until("(Pdb) ")
    screen.type("p rank * 4\n")
    screen.until(f"'{rank}{rank}{rank}{rank}'")
    screen.type("q\n")


def look_on(screen: Screen, *, host: str) -> None:
    """Watch rank 0 of SHOWN, on a screen of 31 lines and 71 columns, to the end of the run."""
    screen.until(f"rank 0 on {host}")
    screen.until(": [False, True, True]\r\n")
    screen.until("\x1b[32mgreen\x1b[0m vt220 71 31\r\n")
    screen.resize(32, 88)
    screen.until("window 88 32\r\n")
    screen.resize(33, 99)
    screen.until("window 99 33\r\n")
    assert screen.end() == 0
    assert "rank 1" not in screen.said
    assert "warning" not in besides(screen.said)
    assert screen.modes == screen.before


def lose_connection(screen: Screen, cut: Callable[[], object]) -> None:
    """Type to rank 1 of CHATS: `cut` breaks its connection, which is reported, and it continues."""
    screen.until("next? ")
    screen.type("one\n")
    screen.until("heard one")
    screen.until("next? ")
    cut()
    screen.until("rank 1: the connection to its terminal has ended")
    assert "\n" not in screen.until("; connecting again\r\n")
    screen.wait(lambda: not screen.modes[3] & termios.ECHO, "keyboard")
    screen.type("two\n")
    screen.until("heard two")
    screen.until("next? ")


def lose_connection_for_good(
    screen: Screen, close: Callable[[], object], opened: Callable[[], object], why: str
) -> None:
    """The same if none can be made until `opened` is called: meanwhile the terminal is ours, and the run continues."""
    close()
    screen.until("rank 1: the connection to its terminal has ended")
    screen.until("; connecting again\r\n")
    screen.until("rank 1: its terminal is not reached: ")
    assert why in screen.until("; the run continues without it; Ctrl-Z, then fg, tries again\r\n")
    assert screen.modes == screen.before
    opened()
    screen.type("\x1a")  # with no shell to stop for, it continues at once
    screen.wait(lambda: not screen.modes[3] & termios.ECHO, "keyboard")
    screen.type("over\n")
    assert screen.end() == 0
    assert screen.modes == screen.before


def kill_child(screen: Screen, *words: str) -> None:
    """Send SIGKILL to the program that the launcher has started with these arguments."""
    pids: set[int] = set()
    for thread in Path(f"/proc/{screen.process.pid}/task").iterdir():  # a child is its thread's
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            pids.update(map(int, (thread / "children").read_text().split()))
    found = [
        process for pid in pids if (process := Process.of(pid)) and all(word in process.command() for word in words)
    ]
    assert len(found) == 1, [process.command() for process in found]
    found[0].send(signal.SIGKILL)


def has_no_terminal(cli: Cli, *words: str, host: str, env: dict[str, str | None], cwd: Path | None = None) -> None:
    """A command that starts SHOWN gives no rank a terminal where that is refused, or where our output is a pipe."""
    *before, script = words
    with on_screen(cli, *before, "--tty", "never", script, env=env, cwd=cwd) as screen:
        screen.until(f"rank 0 on {host}")
        screen.until(": [False, False, False]\r\n")
        assert screen.end() == 0
    piped = cli(*words, env=env, cwd=cwd or cli.directory, timeout_s=240)
    assert piped.exit_code == 0, piped.stderr
    assert re.search(rf"^rank 0 on {host}.*: \[False, False, False\]$", piped.stdout, re.MULTILINE), piped.stdout
