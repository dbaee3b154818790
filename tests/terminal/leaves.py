"""A person leaves a run and comes back, at a terminal: the same on all clusters."""

from __future__ import annotations

import random
import re
import signal
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.runs import lock
from testbed import wait_until
from tests.terminal.asks import on_screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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

_AT_ONCE, _LINES = 5, 30
LINES = """
import os, signal, sys, time
def stop(*_):
    for count in range(3):
        print("last", count, flush=True)
        time.sleep(0.1)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
rank = os.environ["RANK"]
for count in range(30):
    print("line", count, flush=True)
    time.sleep(0.05)
if sys.argv[1] == "stays" or (sys.argv[1] == "fails" and rank == "0"):
    signal.pause()
if sys.argv[1] == "fails":
    time.sleep(2)  # the other rank may be slower
    sys.exit(3)
"""
"""Writes lines; then it ends as its argument says. Asked to stop, it writes three more."""

MOMENTS = (
    *(("succeeds", "line {}", "", 0), ("fails", "line {}", "", 1)) * 2,
    ("succeeds", "line 29", "", 0),
    *(("fails", "line 29", "", 1),) * 2,
    *(("stays", "line 29", "\x03c", 130),) * 3,
)
"""How a run ends, what its terminal shows before it is closed, what is typed then, and the run's exit code."""

_RUN = re.compile(r"(lines-\d{8}-\d{6}-\w{4}) on ")


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


def is_disconnected_while_it_runs(desk: Desk, *launch: str, removes_logs: bool = False) -> None:
    """Close ten terminals while lines come, at the end, and while a run is cancelled: it ends as it would have.

    `launch`: what comes before the script's name. Each run has all of its lines, once, and leaves nothing.
    `removes_logs`: what a stopped node writes after its last reader has left may be lost, with its pod.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = list(pool.map(lambda part: _closed(desk, launch, part), range(len(MOMENTS))))
        codes = list(pool.map(lambda run: desk.run("wait", run)[0], runs))
    assert codes == [code for *_, code in MOMENTS], runs
    whole, stopped = [f"line {count}" for count in range(_LINES)], [f"last {count}" for count in range(3)]
    for run, (ends, *_) in zip(runs, MOMENTS, strict=True):
        shown = desk.run("logs", run)[1].splitlines()
        for rank in (0, 1):
            lines = [line.partition("] ")[2] for line in shown if line.startswith(f"[{rank}:{rank}] ")]
            told = f"rank {rank} of {run}, which {ends}: {lines}"
            last = [line for line in lines if line.startswith("last")]
            written = lines[: len(lines) - len(last)]
            if ends == "stays" or (ends == "fails" and rank == 0):  # stopped, maybe before its last line
                assert (written, last) == (whole[: len(written)], stopped[: len(last)]), told
                assert removes_logs or last == stopped, told
            else:
                assert lines == whole, told
        assert lock.owner(desk.cli.runs / run) is None
    assert sorted(_runs(desk, "lines")) == sorted(runs)
    wait_until("no process to be left", lambda: not [process for run in runs for process in _of(run)])


def _closed(desk: Desk, launch: tuple[str, ...], part: int) -> str:
    """Start a run and close its terminal at the moment of this part; the run's id."""
    chance = random.Random(part)
    ends, mark, keys, final = MOMENTS[part]
    with desk.type(*launch, "lines.py", ends) as screen:
        screen.until(mark.format(chance.randrange(2, 28)))
        time.sleep(chance.random() * (0.0 if "{" in mark else 2.5 if ends == "fails" else 0.6))
        if keys:
            screen.type(keys[0])
            screen.until("cancel, detach or go on?")
            screen.type(keys[1:])
            screen.until("cancelling")
            time.sleep(chance.random() * 0.3)
        screen.close()
        code = screen.process.wait(120)
        assert code in (CONTINUES, -signal.SIGHUP, final), f"part {part} ended with {code}: {screen.said}"
        found = _RUN.search(screen.said)
        assert found is not None, screen.said
        return found[1]


def _of(run: str) -> list[str]:
    """The processes on this machine, and so on the testbed's hosts, whose command names the run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [str(path)] if run.encode() in path.read_bytes() else []
    return found


def _begun(desk: Desk, before: set[str], screen: Screen) -> bool:
    return bool(set(_runs(desk)) - before or screen.said)


def _runs(desk: Desk, name: str = "ticks") -> list[str]:
    return [path.name for path in desk.cli.runs.glob(f"{name}-2*")] if desk.cli.runs.exists() else []
