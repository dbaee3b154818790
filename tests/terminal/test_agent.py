"""A worker's terminal as its agent serves it, to a client on its socket."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from launcher.agent.protocol import STDOUT
from launcher.agent.terminal.screen import Screen
from tests.agent.harness import Runner, all_exited
from tests.terminal.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.agent.harness import Run

    Attach = Callable[..., "Client"]

LENT: dict[str, Any] = {
    "rank": 0, "interactive": False, "stdin": "tty", "stdout": True, "stderr": True, "size": [33, 77], "term": "vt220",
}  # fmt: skip


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """Starts real agents on this machine."""
    runner = Runner(tmp_path)
    yield runner
    for run in runner.runs:
        run.backend.cancel(run.handle, force=True)
        run.wait()
        run.close()


@pytest.fixture
def client_of() -> Iterator[Attach]:
    """Attaches clients."""
    with contextlib.ExitStack() as stack:

        def attach(run: Run, **how: bool) -> Client:
            client = Client(run, **how)
            stack.callback(client.line.close)
            return client

        yield attach


SCRIPT = """
import os, sys, termios, signal
tty = os.ttyname(0) == os.ttyname(2)
print([os.isatty(fd) for fd in (0, 1, 2)], os.get_terminal_size(), os.environ.get("TERM"), tty)
print(os.tcgetpgrp(0) == os.getpid() == os.getsid(0), open("/dev/tty").isatty(), sys.stdin.seekable())
signal.signal(signal.SIGWINCH, lambda *_: print("now", os.get_terminal_size()))
name = input("name? ")
print("hello", name, file=sys.stderr)
print(repr(sys.stdin.readline()))
modes = termios.tcgetattr(0)
modes[3] &= ~termios.ISIG
termios.tcsetattr(0, termios.TCSANOW, modes)
print(repr(input("key? ")))
1 / 0
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_has_a_terminal_whose_other_end_is_served(
    runner: Runner, client_of: Attach, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    run = runner.start(SCRIPT, start_method=start, request={"terminal": LENT})
    client = client_of(run)
    client.line.send(size=[40, 90])
    run.until(lambda: b"name? " in run.stdout[0] or "name? " in client.out)
    client.line.send(keys="J\u00c3\u00b6\r")
    client.until("hello J\u00c3\u00b6\r\n")
    client.line.send(keys="\x04")
    client.until("key? ")
    assert client.modes == {"isig": False, "opost": True, "ixon": True}
    client.line.send(size=[50, 100])
    client.line.send(keys="a\x03b\r")  # a read that has begun when the signal comes ends before it is handled
    client.until("columns=100, lines=50")
    client.until_end()
    assert client.exited
    run.wait()
    said = run.stdout[0].decode()
    assert "[True, True, True] os.terminal_size(columns=" in said
    assert "vt220 True" in said
    assert "True True False" in said
    assert "name? " in said
    assert "\nhello Jö\n" in said
    assert "''" in said
    assert repr("a\x03b") in said
    assert "\r" not in said
    assert not run.stderr[0]
    assert run.cause()["message"] == "ZeroDivisionError: division by zero"
    assert "Traceback" in run.cause()["traceback"]
    names = [name for _, name, _ in run.events if name.startswith("terminal_")]
    assert names == ["terminal_opened", "terminal_attached", "terminal_detached"]


def test_a_client_is_shown_what_the_stream_has_since_it_attached(runner: Runner, client_of: Attach) -> None:
    text = (
        "import sys\nprint('early')\ninput()\nfor n in range(20000): print(n, file=(sys.stdout, sys.stderr)[n % 2])\n"
    )
    run = runner.start(text, request={"terminal": LENT})
    run.until(lambda: b"early\n" in run.stdout[0])
    client = client_of(run)
    client.line.send(keys="\n")
    client.until_end()
    run.wait()
    assert client.out.replace("\r\n", "\n") == run.stdout[0].decode().partition("early\n")[2]


def test_a_client_that_attaches_within_a_line_end_is_shown_all_of_it(runner: Runner, client_of: Attach) -> None:
    """Its own terminal adds no carriage return if the worker's no longer does."""
    text = "import sys\nsys.stdout.write('early\\r')\nsys.stdout.flush()\ninput()\nprint('late')\n"
    run = runner.start(text, request={"terminal": LENT})
    run.until(lambda: b"early" in run.stdout[0])
    client = client_of(run)
    client.line.send(keys="\n")
    client.until_end()
    run.wait()
    assert client.out == "\r\r\nlate\r\n"
    assert run.stdout[0] == b"early\r\nlate\n"


def test_a_line_end_that_is_read_in_two_pieces_is_shown_in_one() -> None:
    ours, workers = os.openpty()
    screen, shown = Screen(ours, 0, 0, STDOUT, kept=True), mock.Mock()
    screen.terminal = shown
    os.write(workers, b"one\ntwo\r")
    screen.keep(os.read(ours, 4), mock.Mock())
    os.close(workers)
    os.close(ours)
    shown.show.assert_called_once_with(b"one\r\ntwo\r")


def test_a_client_that_connects_while_the_worker_exits_is_no_failure(runner: Runner, client_of: Attach) -> None:
    text = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
    run = runner.start(text, request={"terminal": LENT})
    run.until(lambda: run.of("terminal_opened") and run.of("worker_started"))
    [worker] = run.worker_pids()
    os.kill(run.agent_pid(), signal.SIGSTOP)  # it hears of both events at once
    try:
        (runner.directory / "go").touch()
        assert all_exited(worker)
        client = client_of(run)
    finally:
        os.kill(run.agent_pid(), signal.SIGCONT)
    client.until_end()
    run.wait()
    assert run.result() == "success", run.agent_stderr()


def test_with_several_workers_one_shows_its_output_on_a_terminal_and_none_reads(runner: Runner) -> None:
    text = "import os, sys\nprint(os.environ['RANK'], [os.isatty(fd) for fd in (0, 1, 2)], sys.stdin.read())\n"
    run = runner(text, nproc_per_node="2", request={"terminal": {**LENT, "rank": 1}})
    assert run.stdout[0] == b"0 [False, False, False] \n"
    assert run.stdout[1] == b"1 [False, True, True] \n"


def test_a_client_that_only_sends_its_size_is_shown_nothing_and_not_reported_as_attached(
    runner: Runner, client_of: Attach
) -> None:
    text = """
import os, signal, time
signal.signal(signal.SIGWINCH, lambda *_: print("now", *os.get_terminal_size(1)))
print("ready")
while os.get_terminal_size(1).columns != 90:
    time.sleep(0.05)
print("over")
"""
    run = runner.start(text, request={"terminal": {**LENT, "interactive": True, "stdin": "null"}})
    client = client_of(run, looks=False)
    run.until(lambda: b"ready\n" in run.stdout[0])
    client.line.send(size=[40, 80])
    run.until(lambda: b"now 80 40\n" in run.stdout[0])
    client.line.send(size=[40, 90])
    client.until_end()
    run.wait()
    assert run.stdout[0].endswith(b"over\n")
    assert (client.out, client.modes, client.exited) == ("", {}, True)
    assert [name for _, name, _ in run.events if name.startswith("terminal_")] == ["terminal_opened"]


def test_one_of_several_can_have_the_keyboard(runner: Runner, client_of: Attach) -> None:
    text = "import os, sys\nprint(os.environ['RANK'], [os.isatty(fd) for fd in (0, 1, 2)], sys.stdin.readline())\n"
    run = runner.start(
        text, nproc_per_node="2", request={"terminal": {**LENT, "rank": 1, "interactive": True, "stdout": False}}
    )
    client = client_of(run)
    client.line.send(keys="abc\n")
    client.until("abc\r\n")
    run.wait()
    assert run.stdout[0] == b"0 [False, False, False] \n"
    assert run.stdout[1] == b"1 [True, False, True] abc\n\n"


def test_keys_can_come_through_a_pipe(runner: Runner, client_of: Attach) -> None:
    text = "import os, sys\nprint([os.isatty(fd) for fd in (0, 1, 2)], len(sys.stdin.read()))\n"
    run = runner.start(text, request={"terminal": {**LENT, "stdin": "pipe", "stdout": False, "stderr": False}})
    client = client_of(run)
    client.line.send(keys="x" * 1_000_000)
    client.line.send(keys="\n")
    client.line.send(eof=True)
    client.until_end()
    run.wait()
    assert run.stdout[0] == b"[False, False, False] 1000001\n"


def test_a_worker_reads_end_of_file_once_no_more_keys_come(runner: Runner, client_of: Attach) -> None:
    text = "import sys\nprint(sys.stdin.readlines())\nprint(repr(sys.stdin.readline()))\n"
    run = runner.start(text, request={"terminal": LENT})
    client = client_of(run)
    client.line.send(keys="one\ntwo\n")
    client.line.send(eof=True)
    client.until_end()
    assert "['one\\n', 'two\\n']\r\n''\r\n" in client.out


def test_a_suspended_worker_continues_on_request_and_when_its_client_has_left(
    runner: Runner, client_of: Attach
) -> None:
    text = "print('ready')\nwhile input():\n    print('again')\nprint('over')\ninput()\n"
    run = runner.start(text, request={"terminal": LENT})
    run.until(lambda: b"ready" in run.stdout[0])
    client = client_of(run)
    [pid] = run.worker_pids()

    def state() -> str:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0]

    client.line.send(suspend=True)
    run.until(lambda: state() == "T")
    client.line.send(**{"continue": True})
    client.line.send(keys="x\n")
    client.until("again")
    client.line.send(suspend=True)
    run.until(lambda: state() == "T")
    client.line.close()
    run.until(lambda: state() != "T")
    other = client_of(run)
    other.line.send(keys="\n")
    run.until(lambda: b"over" in run.stdout[0])
    other.line.send(suspend=True)
    run.until(lambda: state() == "T")
    run.backend.cancel(run.handle)
    run.wait()
    assert run.result() == "cancelled"
    assert run.of("worker_exited")[0]["signal"] == "SIGTERM"


def test_an_agent_waits_for_no_client_that_does_not_read_while_others_work(runner: Runner, client_of: Attach) -> None:
    text = """
import os, time
first = os.environ["RANK"] == "0"
while not os.path.exists("go" if first else "over"): time.sleep(0.01)
for _ in range(1000 * first): print("x" * 1000)
"""
    run = runner.start(text, nproc_per_node="2", request={"terminal": LENT})
    client = client_of(run)
    run.until(lambda: run.of("terminal_attached"))
    (runner.directory / "go").touch()
    run.until(lambda: run.of("worker_exited"))
    (runner.directory / "over").touch()
    run.until(lambda: len(run.of("worker_exited")) == 2)
    client.until_end()
    run.wait()
    assert run.result() == "success"
    names = [name for _, name, _ in run.events if name in ("worker_exited", "terminal_detached")]
    assert names == ["worker_exited", "worker_exited", "terminal_detached"], "the agent stood still for the client"
    assert client.exited
    assert client.out.count("x") == 1_000_000, "it can still read everything"


def test_no_worker_waits_for_a_client_that_only_looks_on_and_does_not_read(runner: Runner, client_of: Attach) -> None:
    text = """
import os, time
if os.environ["RANK"] == "0":
    while not os.path.exists("go"):
        time.sleep(0.01)
    for _ in range(20000): print("x" * 1000)
"""
    run = runner.start(text, nproc_per_node="2", request={"terminal": LENT})
    client_of(run)
    run.until(lambda: run.of("terminal_attached"))
    (runner.directory / "go").touch()
    run.wait()
    assert run.result() == "success"
    assert len(run.stdout[0]) == 20000 * 1001
