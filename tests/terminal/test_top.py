"""`distlaunch top` on a real terminal, and without one: a detached run, keys, a narrow window, a rank that is odd."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.terminal.screen import Screen
from tests.terminal.watching import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from tests.command import Cli

SCRIPT = """\
import os, sys, time
rank, step = int(os.environ["RANK"]), 0
while not os.path.exists("go"):
    step += 1
    print(f"::distlaunch progress step={step}/1000 loss={1 / step:.3f}")
    print(f"rank {rank} says \\x1b[31mred\\x1b[0m")
    time.sleep(0.3)
"""


@pytest.fixture
def run(distlaunch: Cli) -> Iterator[str]:
    """A detached run of four ranks on two nodes, which ends with the test."""
    distlaunch.write("steps.py", SCRIPT)
    options = ("--detach", "--nodes", "2", "--nproc-per-node", "2", "--samples", "1")
    done = distlaunch("local", *options, "steps.py", env={"DISTLAUNCH_OUTPUT": "json"})
    yield done.json["result"]["run"]
    distlaunch.write("go", "")
    distlaunch("wait", done.json["result"]["run"])


@pytest.fixture
def top(distlaunch: Cli) -> Iterator[Callable[..., Window]]:
    """Starts `distlaunch top` in a window of that size."""
    screens: list[Screen] = []

    def start(*words: str, size: tuple[int, int] = (20, 100), python: tuple[str, ...] = ("-m", "launcher")) -> Window:
        argv = [sys.executable, *python, "top", *words]
        env = distlaunch.env({"TERM": "xterm", "NO_COLOR": "1"})
        screens.append(Screen(argv, env=env, cwd=distlaunch.directory, size=size))
        return Window(screens[-1], size[0])

    yield start
    for screen in screens:
        with screen:
            pass


def table(distlaunch: Cli, run: str) -> Any:
    """The same as JSON."""
    return distlaunch("top", run, env={"DISTLAUNCH_OUTPUT": "json"}).json["result"]


def until(distlaunch: Cli, run: str, met: Callable[[Any], object]) -> Any:
    """`top` as JSON, once it tells that."""
    limit = time.monotonic() + 60
    while not met(found := table(distlaunch, run)):
        assert time.monotonic() < limit, found
    return found


def test_ranks_nodes_and_logs_are_shown_and_the_terminal_is_left_as_it_was(
    run: str, top: Callable[..., Window]
) -> None:
    window = top(run)
    lines = window.until(lambda lines: "LINES/S" in "".join(lines) and "/1000" in "".join(lines))
    assert lines[0] == f"{run}: running, nodes 2, ranks 4"
    assert re.match(r"\[[#.]+\] step \d+ of 1000 \(\d %\), loss 0\.\d+, [\d.]+ steps/s, .* left", lines[1])
    assert [line.split()[0] for line in lines[3:7]] == ["0", "1", "2", "3"]
    assert not any("\x1b" in line for line in lines), "what ranks write has no effect here"

    window.screen.type("n")
    lines = window.until(lambda lines: "SEEN" in lines[2])
    assert [line.split()[0] for line in lines[3:5]] == ["0", "1"]
    window.screen.type("nj\r")
    lines = window.until(lambda lines: lines[2] == "rank 1")
    assert r"rank 1 says \x1b[31mred\x1b[0m" in lines
    window.screen.type("xs")
    window.until(lambda lines: "steps.py" in "".join(lines[2:]) and "any key" in lines[-1])
    window.screen.type("x/rank 2\r")
    lines = window.until(lambda lines: "RANK" in lines[2] and not lines[4])
    assert lines[3].split()[0] == "2"
    window.screen.type("q")

    assert window.screen.end() == 0
    assert window.screen.said.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
    assert window.screen.modes == window.screen.before


WAITS_TO_SUBMIT = """
import os, sys, time
from launcher.backends.local.backend import LocalBackend
from launcher.cli import main

def submit(*args):
    while not os.path.exists("submit"):
        time.sleep(0.05)
    return begun(*args)

begun, LocalBackend.submit = LocalBackend.submit, submit
sys.exit(main())
"""
"""The launcher; it submits a run when a test says so."""


def test_a_run_that_is_being_submitted_is_shown_once_it_runs(distlaunch: Cli, top: Callable[..., Window]) -> None:
    distlaunch.write("steps.py", SCRIPT)
    distlaunch.write("waits.py", WAITS_TO_SUBMIT)
    with distlaunch.start("local", "--name", "early", "steps.py", python=("waits.py",)) as launcher:
        wait_until("the run", lambda: distlaunch("ls", "--output", "json").json["result"]["runs"])
        try:
            window = top("last")
            window.until(lambda lines: "pending (being submitted by" in lines[0])
            distlaunch.write("submit", "")
            window.until(lambda lines: ": running, nodes 1, ranks 1" in lines[0] and "/1000" in "".join(lines[2:]))
            window.screen.type("\r")
            window.until(lambda lines: any("rank 0 says" in line for line in lines))
            window.screen.type("xq")
            assert window.screen.end() == 0
        finally:
            distlaunch.write("submit", "")
            distlaunch.write("go", "")
        assert launcher.wait(60) == 0


def test_only_lines_that_have_changed_are_written(run: str, top: Callable[..., Window]) -> None:
    """As for a slow line: while the steps advance, the lines that stay the same are written once."""
    window = top(run)
    window.until(lambda lines: " running, " in lines[0] and "/1000" in "".join(lines))
    for _ in range(4):
        before = window.lines[1]
        window.until(lambda lines: lines[1] != before)  # noqa: B023 - called at once

    assert window.screen.said.count(f"{run}: running, nodes 2, ranks 4") == 1
    assert window.screen.said.count("q quit") == 1


@pytest.mark.parametrize("columns", [40, 20])
def test_a_narrow_window_loses_columns_and_no_line_is_longer(
    run: str, top: Callable[..., Window], columns: int
) -> None:
    window = top(run, size=(10, columns))
    lines = window.until(lambda lines: any("/1000" in line for line in lines[3:]))

    assert max(map(len, lines)) <= columns
    assert [line.split()[0] for line in lines[3:6]] == ["0", "1", "2"]
    assert lines[2].startswith("RANK STATE" if columns < 40 else "RANK HOST STATE")


def test_a_suspended_rank_is_first_and_c_cancels(run: str, distlaunch: Cli, top: Callable[..., Window]) -> None:
    window = top(run)
    window.until(lambda lines: "/1000" in "".join(lines))
    stream = (distlaunch.runs / run / "nodes/1/stream").read_text()
    started = re.search(r'"event":"worker_started".*"rank":3,.*"pid":(\d+)', stream)
    assert started is not None
    os.kill(int(started[1]), signal.SIGSTOP)
    window.until(lambda lines: lines[3].split()[:4:3] == ["3", "suspended"])
    assert until(distlaunch, run, lambda found: found["ranks"][0]["rank"] == 3)["ranks"][0]["odd"] == "suspended"

    window.screen.type("cx")
    window.until(lambda lines: "q quit" in lines[-1])
    window.screen.type("cy")
    window.until(lambda lines: "cancelled" in lines[0])
    window.screen.type("q")
    assert window.screen.end() == 0


def test_the_rank_that_was_selected_stays_so_when_another_one_becomes_the_first(
    run: str, distlaunch: Cli, top: Callable[..., Window]
) -> None:
    def ranks(lines: list[str]) -> list[str]:
        first = next((number for number, line in enumerate(lines, 1) if line.startswith("RANK")), len(lines))
        return [line.split()[0] for line in lines[first:-1] if line]

    window = top(run)
    window.until(lambda lines: "/1000" in "".join(lines) and ranks(lines) == ["0", "1", "2", "3"])
    window.screen.type("j\r")
    window.until(lambda lines: "rank 1" in lines)
    stream = (distlaunch.runs / run / "nodes/1/stream").read_text()
    started = re.search(r'"event":"worker_started".*"rank":3,.*"pid":(\d+)', stream)
    assert started is not None
    os.kill(int(started[1]), signal.SIGSTOP)
    until(distlaunch, run, lambda found: found["ranks"][0]["rank"] == 3)
    window.screen.type("x")
    window.until(lambda lines: ranks(lines) == ["3", "0", "1", "2"])
    window.screen.type("\r")
    window.until(lambda lines: "any key" in lines[-1])
    os.kill(int(started[1]), signal.SIGCONT)
    window.screen.type("xq")

    assert window.screen.end() == 0
    assert set(re.findall(r"\x1b\[\d+;1H(rank \d)\x1b\[K", window.screen.said)) == {"rank 1"}


def test_all_runs_are_left_with_q_however_often_it_is_typed(run: str, top: Callable[..., Window]) -> None:
    window = top()
    window.until(lambda lines: run in "".join(lines) and "q quit" in lines[-1])
    window.screen.type("qq")

    assert window.screen.end() == 0


@pytest.mark.parametrize("keys", ["\x1bOP", "\x1b[15~", "\x1b[[A", "\x1b[a"], ids=["F1", "F5", "F1 of Linux", "rxvt"])
def test_function_keys_do_nothing_and_escape_ends_it(run: str, top: Callable[..., Window], keys: str) -> None:
    window = top(run)
    window.until(lambda lines: " running, " in lines[0])
    window.screen.type(f"{keys}n")
    window.until(lambda lines: any(line.startswith("NODE") for line in lines))
    window.screen.type("\x1b")

    assert window.screen.end() == 0


WARNS = """
import sys
from launcher import output
from launcher.backends.local.backend import LocalBackend
from launcher.cli import main

LocalBackend.refresh = lambda *_: output.warn("no connection to far")
sys.exit(main())
"""
"""A command line that reaches no cluster."""


def test_a_warning_is_shown_in_the_last_line_and_not_across_the_screen(
    run: str, distlaunch: Cli, top: Callable[..., Window]
) -> None:
    distlaunch.write("warns.py", WARNS)
    window = top(run, python=("warns.py",))
    window.until(lambda lines: " running, " in lines[0])
    window.screen.type("s")
    window.until(lambda lines: "steps.py" in "".join(lines[2:]) and "any key" in lines[-1])
    window.screen.type("x")
    window.until(lambda lines: lines[-1] == "no connection to far")
    window.screen.type("q")

    assert window.screen.end() == 0
    assert window.screen.said.count("no connection") == 1


def test_without_a_terminal_there_is_one_table(run: str, distlaunch: Cli) -> None:
    found = until(distlaunch, run, lambda found: len(found["ranks"]) == 4 and found["progress"])
    done = distlaunch("top", run)

    assert (found["state"], found["sampled"], found["findings"]) == ("running", True, [])
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2, 3]
    assert (done.exit_code, done.stderr) == (0, "")
    assert {"NODE", "RANK", "runs"} <= set(done.stdout.split())
    assert [one["run"] for one in distlaunch("top", env={"DISTLAUNCH_OUTPUT": "json"}).json["result"]["runs"]] == [run]


def test_a_run_without_samples_says_so_and_shows_the_rest(distlaunch: Cli) -> None:
    distlaunch.write("fails.py", "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(3); time.sleep(60)")
    distlaunch("local", "--samples", "0", "--nproc-per-node", "2", "fails.py")
    done = distlaunch("top", "last")

    assert done.exit_code == 0
    assert "no samples: the run is younger than their interval" in done.stdout
    first, second = map(str.split, done.stdout.splitlines()[-2:])
    assert (first[0], first[3:5]) == ("1", ["exited", "3"]), "the other one was only stopped"
    assert (second[0], second[3]) == ("0", "SIGTERM")
