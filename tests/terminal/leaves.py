"""A person leaves a run and comes back, at a terminal: the same on all clusters."""

from __future__ import annotations

import signal
import termios
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from tests.terminal.asks import on_screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.command import Cli
    from tests.terminal.screen import Screen

TICKS = """
import itertools, os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
for count in itertools.count():
    print("tick", count, flush=True)
    time.sleep(0.1)
"""
"""Goes on until it gets SIGUSR1; then it fails."""

CONTINUES = 5
"""Exit code of a command whose run continues."""


class Desk:
    """Where a person types commands of distlaunch."""

    def __init__(self, cli: Cli, env: Mapping[str, str | None], cwd: Path | None = None) -> None:
        self.cli, self._env, self._cwd = cli, dict(env), cwd or cli.directory

    @contextmanager
    def type(self, *words: str) -> Iterator[Screen]:
        """Run a command on a new terminal, which is left as it was found."""
        with on_screen(self.cli, *words, env={"TERM": "xterm", "NO_COLOR": "1", **self._env}, cwd=self._cwd) as screen:
            yield screen
            with suppress(termios.error):  # its window was closed
                assert screen.modes == screen.before

    def run(self, *words: str) -> tuple[int, str]:
        """Run a command in a script: its exit code, and what it prints."""
        done = self.cli(*words, env=self._env, cwd=self._cwd, timeout_s=240)
        return done.exit_code, done.stdout.strip()


def leaves_and_comes_back(desk: Desk, *launch: str) -> None:
    """`launch`: a command that starts TICKS on a cluster, with `--name ticks`."""
    with desk.type(*launch) as screen:
        screen.until("d detaches, Ctrl-C asks")
        screen.until("tick 1")
        screen.type("d")
        screen.until("ticks-")
        screen.until("continues")
        screen.until("to come back: distlaunch attach ticks-")
        assert screen.end() == CONTINUES
    assert desk.run("status", "last")[1].splitlines()[1].startswith("state    running")

    with desk.type("shell", "--node", "1", "last") as screen:
        screen.until("exit or Ctrl-D leaves it")
        screen.type("echo in-$DISTLAUNCH_RUN_ID, $(stty size); sleep 100\n")
        screen.until("in-ticks-2")
        screen.until(", 31 71")
        screen.type("\x03")  # ends only sleep
        screen.type("test -e ticks.py && echo out-$((40 + 2)) && exit\n")
        screen.until("out-42")
        assert screen.end() == 0

    with desk.type("attach", "last") as screen:
        screen.until("tick ")
        screen.type("\x03")
        screen.until("cancel, detach or go on?")
        screen.type("g")
        screen.until("going on")
        screen.until("tick ")
        screen.type("\x03")
        screen.until("cancel, detach or go on?")
        screen.type("d")
        assert screen.end() == CONTINUES

    with (
        desk.type("attach", "last") as closed,
        desk.type("attach", "last") as one,
        desk.type("attach", "last") as other,
    ):
        for screen in (closed, one, other):
            screen.until("tick ")
        closed.close()
        assert closed.process.wait(60) == CONTINUES
        one.process.send_signal(signal.SIGUSR1)  # passed on to the workers
        for screen in (one, other):
            screen.until("failed after")
            assert screen.end() == 1
    assert desk.run("wait", "last") == (1, f"{desk.run('ls')[1].splitlines()[-1].split()[0]}: failed")
    assert [desk.run(*words, "last")[0] for words in (("attach",), ("shell",))] == [1, 2]
    assert [desk.run(*words, "last")[0] for words in (("logs", "-f"), ("logs", "-f", "--exit-code"), ("status",))] == [
        0,
        1,
        0,
    ]
    assert desk.run("status", "--exit-code", "last")[0] == 1


def cancels_without_an_answer(desk: Desk, *launch: str) -> None:
    """Ctrl-C, and nothing else."""
    with desk.type(*launch) as screen:
        screen.until("tick 1")
        screen.type("\x03")
        screen.until("without an answer it is cancelled in 2 s")
        screen.until("cancelling ticks-")
        screen.until("cancelled after")
        assert screen.end() == 130


def is_disconnected_while_it_starts(
    desk: Desk, launch: tuple[str, ...], running: Callable[[str], int], times: int
) -> None:
    """Close the terminal at different moments of a start: what was begun is one run, and what was not is none.

    `running`: how many nodes of the run exist on the cluster.
    """
    before = set(_runs(desk))
    for part in range(times):
        with desk.type(*launch) as screen:
            marks = ("", "on ", "d detaches", "tick 1")
            if mark := marks[part % len(marks)]:
                screen.until(mark)
            else:
                screen.wait(partial(_begun, desk, before, screen), "begin")
            screen.close()
            code = screen.process.wait(120)
            assert code in (CONTINUES, -signal.SIGHUP), f"part {part} ended with {code}: {screen.said}"
        new = set(_runs(desk)) - before
        before |= new
        assert len(new) <= 1
        for run in new:
            assert running(run) == 1, f"{run} of part {part}"
            assert desk.run("cancel", "--force", run)[0] == 0


def _begun(desk: Desk, before: set[str], screen: Screen) -> bool:
    return bool(set(_runs(desk)) - before or screen.said)


def _runs(desk: Desk) -> list[str]:
    return [path.name for path in desk.cli.runs.glob("ticks-2*")] if desk.cli.runs.exists() else []
