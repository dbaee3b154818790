"""A person leaves a run and comes back, at a terminal: the same on all clusters."""

from __future__ import annotations

import hashlib
import random
import signal
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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

_AT_ONCE, _LINES = 5, 80
LINES = """
import os, signal, sys, time
def stop(*_):
    for count in range(3):
        print("last", count, flush=True)
        time.sleep(0.1)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
rank = os.environ["RANK"]
for count in range(80):
    print("line", count, flush=True)
    time.sleep(0.1)
if sys.argv[1] == "stays" or (sys.argv[1] == "fails" and rank == "0"):
    signal.pause()
if sys.argv[1] == "fails":
    time.sleep(2)  # the other rank may be slower
    sys.exit(3)
"""
"""Writes lines; then it ends as its argument says. Asked to stop, it writes three more."""

_ENDS = ("succeeds", "stays", "stays", "fails") * 5
"""How each of the runs ends; those that stay are cancelled."""

_CODES = {"succeeds": 0, "fails": 1, "stays": 130}

WRITES = """
import hashlib, os, signal
data = os.urandom(16 << 20)
with open("big.bin", "wb") as file:
    file.write(data)
print("digest", hashlib.sha256(data).hexdigest(), flush=True)
signal.pause()
"""


class Desk:
    """Where a person types commands of distlaunch."""

    def __init__(self, cli: Cli, env: Mapping[str, str | None], cwd: Path | None = None) -> None:
        self.cli, self._env, self.cwd = cli, dict(env), cwd or cli.directory

    @contextmanager
    def type(self, *words: str) -> Iterator[Screen]:
        """Run a command on a new terminal, which is left as it was found."""
        with on_screen(self.cli, *words, env={"TERM": "xterm", "NO_COLOR": "1", **self._env}, cwd=self.cwd) as screen:
            yield screen
            with suppress(termios.error):  # its window was closed
                assert screen.modes == screen.before

    def run(self, *words: str) -> tuple[int, str]:
        """Run a command in a script: its exit code, and what it prints."""
        done = self.cli(*words, env=self._env, cwd=self.cwd, timeout_s=240)
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
        screen.type("echo in-$DISTLAUNCH_RUN_ID, $(stty size); sh -c 'echo asleep-$((40 + 2)); exec sleep 1000'\n")
        screen.until("in-ticks-2")
        screen.until(", 31 71")
        screen.until("asleep-42")  # before that, a shell may miss the key
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


def is_disconnected_in_each_phase(
    desk: Desk, *launch: str, submission_s: float, begun: Callable[[str], int], removes_logs: bool = False
) -> None:
    """Close ten terminals while runs are submitted, ten while they start, twenty while lines come, ten at a run's end,
    and ten while one is cancelled: each is one run, it ends as it would have, and has all of its lines, once.

    `launch`: what comes before the script's name, `submission_s`: about how long it takes, `begun`: how many jobs or
    agents of the run the cluster has ever had. `removes_logs`: what a stopped node writes after its last reader has
    left may be lost, with its pod.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = list(pool.map(lambda part: _closed(desk, launch, part, submission_s, begun), range(len(_ENDS))))
    said = desk.run("wait", *runs)[1].splitlines()
    states = {"succeeds": "success", "fails": "failed", "stays": "cancelled"}
    assert sorted(said) == sorted(f"{run}: {states[ends]}" for run, ends in zip(runs, _ENDS, strict=True))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        shown = list(pool.map(lambda run: desk.run("logs", run)[1].splitlines(), runs))
    for run, ends, lines in zip(runs, _ENDS, shown, strict=True):
        _check(run, ends, lines, removes_logs=removes_logs)
        assert lock.owner(desk.cli.runs / run) is None
    assert sorted(_runs(desk, "lines*")) == sorted(runs)
    wait_until("no process to be left", lambda: not [process for run in runs for process in _of(run)])


def _closed(desk: Desk, launch: tuple[str, ...], part: int, submission_s: float, begun: Callable[[str], int]) -> str:
    """Start a run and close three terminals of it; the run's id."""
    chance = random.Random(part)
    ends, name = _ENDS[part], f"lines{part}"
    with desk.type(*launch, "--name", name, "lines.py", ends) as screen:
        if part // 2 % 2:
            screen.wait(lambda: bool(_runs(desk, name)), "begin")
            time.sleep(chance.random() * submission_s)
        else:
            screen.until("d detaches")
            time.sleep(chance.random())
        _close(screen, CONTINUES, f"part {part}")
    (run,) = _runs(desk, name)
    last, final = f"line {_LINES - 1}", (_CODES[ends], -signal.SIGHUP)
    with desk.type("attach", run) as meanwhile, desk.type("attach", run) as screen:
        _wait(meanwhile, "line ")
        time.sleep(chance.random() * 2)
        _close(meanwhile, CONTINUES, run, *(final if ends != "stays" else ()))  # a run may have ended meanwhile
        _wait(screen, last)
        assert begun(run) == 1, run
        time.sleep(chance.random() * {"fails": 2.5, "succeeds": 0.6, "stays": 0.0}[ends])
        if ends == "stays":
            screen.type("\x03")
            screen.until("cancel, detach or go on?")
            screen.type("c")
            screen.until("cancelling")
            time.sleep(chance.random() * 0.3)
        _close(screen, CONTINUES, run, *final)
    return run


def _wait(screen: Screen, line: str) -> None:
    """Wait for this line, or the end of the run if that was faster than a new terminal."""
    screen.wait(lambda: line in screen.said or " after " in screen.said, repr(line))


def _close(screen: Screen, code: int, what: str, *final: int) -> None:
    screen.close()
    ended = screen.process.wait(120)
    assert ended in (code, *final), f"{what} ended with {ended}: {screen.said}"


def _check(run: str, ends: str, shown: list[str], *, removes_logs: bool) -> None:
    whole, stopped = [f"line {count}" for count in range(_LINES)], [f"last {count}" for count in range(3)]
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


def is_disconnected_while_it_fetches(desk: Desk, *launch: str) -> None:
    """Close ten terminals while a file of WRITES is fetched; fetched again, each is whole, and nothing else is left.

    `launch`: a command that starts WRITES on one node.
    """
    assert desk.run(*launch, "--detach", "writes.py")[0] == 0
    digest = wait_until("the file", lambda: desk.run("logs", "last")[1].partition("digest ")[2])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda part: _cut_fetch(desk, part, digest), range(10)))
    assert desk.run("cancel", "last")[0] == 0


def _cut_fetch(desk: Desk, part: int, digest: str) -> None:
    to = desk.cwd / f"got{part}"
    with desk.type("fetch", "last", "big.bin", "--to", to.name) as screen:
        screen.wait(lambda: to.exists() and any(to.iterdir()), "a file")
        time.sleep(random.Random(part).random() * 0.3)
        _close(screen, -signal.SIGHUP, f"fetch {part}", 0)
    code, said = desk.run("fetch", "last", "big.bin", "--to", to.name)
    assert code == 0, said
    assert [path.name for path in to.iterdir()] == ["big.bin"]
    assert hashlib.sha256((to / "big.bin").read_bytes()).hexdigest() == digest


def _of(run: str) -> list[str]:
    """The processes on this machine, and so on the testbed's hosts, whose command names the run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [str(path)] if run.encode() in path.read_bytes() else []
    return found


def _runs(desk: Desk, name: str = "ticks") -> list[str]:
    return [path.name for path in desk.cli.runs.glob(f"{name}-2*")] if desk.cli.runs.exists() else []
