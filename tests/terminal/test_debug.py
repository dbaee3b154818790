"""`--debug RANK` on this machine, and the options that it excludes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.terminal.asks import ASKS, debug, on_screen

if TYPE_CHECKING:
    from tests.command import Cli


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_one_of_two_ranks_is_debugged_at_the_keyboard(distlaunch: Cli, start: str) -> None:
    distlaunch.write("asks.py", ASKS)
    words = ("local", "--nproc-per-node", "2", "--start-method", start, "--debug", "1", "asks.py", "1")
    with on_screen(distlaunch, *words, env={}) as screen:
        debug(screen, rank=1, host=os.uname().nodename)
        assert screen.end() == 1
        assert screen.modes == screen.before
    assert "rank 1 stopped in the debugger: ValueError: Jo\u00e3o; leave it with q" in screen.said
    assert "the script failed: ValueError: Jo\u00e3o" in screen.said
    assert "\n[0:1] ValueError: Jo\u00e3o\n" in distlaunch("logs", "last").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--debug", "x", "x.py"), "debug 'x' is not a rank"),
        (("--debug", "2", "--nproc-per-node", "2", "x.py"), "--debug 2: there is no such rank"),
        (("--debug", "0", "--interactive", "1", "x.py"), "--debug 0 and --interactive 1 name different ranks"),
        (("--debug", "0", "--detach", "x.py"), "--debug and --detach exclude each other"),
        (("--interactive", "0", "--tty", "never", "x.py"), "--interactive and --tty never exclude each other"),
        (("--debug", "0", "--no-python", "true"), "--debug and --no-python exclude each other"),
    ],
)
def test_impossible_requests_are_one_clear_error(distlaunch: Cli, words: tuple[str, ...], said: str) -> None:
    distlaunch.write("x.py", "print(1)\n")
    done = distlaunch("local", *words)
    assert done.exit_code == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(distlaunch.runs.glob("*"))
