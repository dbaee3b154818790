"""What `distlaunch top` shows of a detached run on any backend, from a process that has not started it."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli

STEPS = """\
import os, time
rank, step = int(os.environ["RANK"]), 0
while True:
    step += 1
    print(f"::distlaunch progress step={step}/100000 loss={1 / step:.3f}")
    print(f"rank {rank} says hello", flush=True)
    time.sleep(0.5 if rank == 3 else 0.1)
"""
"""Four ranks; the last one takes five times as long for a step."""

LIMIT_S = 120
ROWS, COLUMNS = 20, 110
_MOVE = re.compile(r"\x1b\[(\d+);1H(.*?)\x1b\[K|\x1b\[2J", re.DOTALL)


class Window:
    """What the program has drawn by now."""

    def __init__(self, screen: Screen, rows: int) -> None:
        self.screen, self._rows = screen, rows

    @property
    def lines(self) -> list[str]:
        """The lines of the window."""
        found = [""] * self._rows
        for row, line in _MOVE.findall(self.screen.said):
            if row:
                found[int(row) - 1] = re.sub(r"\x1b\[\d*m", "", line).rstrip()
        return found

    def until(self, met: Callable[[list[str]], object]) -> list[str]:
        """Read until the window shows it."""
        self.screen.wait(lambda: met(self.lines), "such a window")
        return self.lines


@dataclass
class Desk:
    """Where a user works: a command line, and the variables with which it knows the cluster."""

    cli: Cli
    env: dict[str, str | None] = field(default_factory=dict)

    def table(self, run: str) -> Any:
        """`top` without a terminal, as JSON."""
        done = self.cli("top", run, "--output", "json", env=self.env)
        assert done.exit_code == 0, done.stderr
        return done.json["result"]

    def until(self, run: str, met: Callable[[Any], object]) -> Any:
        """The same, once it tells that."""
        limit = time.monotonic() + LIMIT_S
        while not met(found := self.table(run)):
            assert time.monotonic() < limit, found
            time.sleep(0.5)
        return found

    def window(self, run: str) -> Window:
        """`top` on a terminal."""
        env = self.cli.env({**self.env, "TERM": "xterm", "NO_COLOR": "1"})
        argv = [sys.executable, "-m", "launcher", "top", run]
        return Window(Screen(argv, env=env, cwd=self.cli.directory, size=(ROWS, COLUMNS)), ROWS)


def is_watched_with_keys_and_cancelled(desk: Desk, run: str) -> Any:
    """Watch a run of `STEPS`, two ranks on each of two nodes, without a terminal and on one; returns the table."""
    found = desk.until(run, lambda now: len(now["ranks"]) == 4 and now["findings"])
    assert (found["state"], found["sampled"]) == ("running", True)
    assert found["ranks"][0]["rank"] == 3, "the odd one is first"
    assert found["ranks"][0]["odd"].startswith("rank 3 takes 0.5")
    assert all(rank["step"] and rank["memory_bytes"] for rank in found["ranks"])
    assert all(node["cpus"] and node["memory_bytes"] for node in found["nodes"])
    assert desk.cli("top", run, env=desk.env).stdout.splitlines()[0].startswith(f"{run}: running")
    stacks = desk.cli("stacks", run, "--output", "json", env=desk.env).json["result"]
    assert {host for group in stacks["groups"] for host in group["hosts"]} == {node["host"] for node in found["nodes"]}

    window = desk.window(run)
    with window.screen:
        _uses_keys(window, run)
        window.screen.type("c")
        window.until(lambda lines: "cancel this run?" in lines[-1])
        window.screen.type("y")
        window.until(lambda lines: "cancelled" in lines[0])
        window.screen.type("q")
        assert window.screen.end() == 0
        assert window.screen.modes == window.screen.before
    return found


def _uses_keys(window: Window, run: str) -> None:
    """The odd rank is first; the keys show nodes, its log and its stack, and filter."""
    lines = window.until(lambda lines: lines[4].split()[:1] == ["3"] and "odd: " in lines[2])
    assert lines[0] == f"{run}: running, nodes 2, ranks 4"
    assert re.match(rf"odd: {lines[4].split()[2]}: rank 3 takes 0\.5", lines[2]), lines
    window.screen.type("n")
    window.until(lambda lines: "SEEN" in lines[3])
    window.screen.type("n\r")
    window.until(lambda lines: "rank 3 says hello" in lines)
    window.screen.type("x/says\r")
    window.until(lambda lines: lines[-1].startswith("filter: says"))
    window.screen.type("/\x7f\x7f\x7f\x7frank 2\r")
    window.until(lambda lines: "filter: rank 2" in lines[-1] and lines[4].split()[0] == "2" and not lines[5])
    window.screen.type("s")
    window.until(lambda lines: "steps.py" in "".join(lines[3:]) and "any key" in lines[-1])
    window.screen.type("x")
    window.until(lambda lines: lines[-1].startswith("filter: rank 2"))
