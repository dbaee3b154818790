"""What one worker gives a person at a terminal: the same as torchrun's worker, key by key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli
    from tests.terminal.screen import Screen

    Start = Callable[..., Screen]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]

SESSION = r"""
import curses, os, sys, termios
print("begin", [os.isatty(fd) for fd in (0, 1, 2)], os.get_terminal_size(), os.environ["TERM"])
print(termios.tcgetattr(0))
print("answer", repr(input("name? ")))
print("lines", end="? ")
print("lines", repr(sys.stdin.readline()), repr(sys.stdin.readline()), repr(input("on? ")))
x = 41
breakpoint()
for n in range(4):
    sys.stderr.write(f"\r{n * 25:3d}% {'#' * n}")
    print(end=".")
print("\x1b[32mgreen\x1b[0m")
input("resized? ")
print(os.get_terminal_size())

def body(screen):
    curses.raw()
    screen.addstr(2, 3, "press keys")
    return screen.getmaxyx(), [screen.getch() for _ in range(4)]

print("curses", curses.wrapper(body))
assert x == 42
print("over")
"""


def session(screen: Screen, *, told: bool) -> tuple[str, str]:
    """Type as a person does; return what is on the screen from the script's first to its last line, split by a resize.

    `told`: the worker learns the new size, so its line is drawn again. torchrun's is in a session without a terminal.
    """
    for waits_for, keys in (
        ("name? ", "Jöx\x7f\n"),
        ("lines? ", "one\n\x04"),
        ("on? ", "1\n"),
        ("(Pdb) ", "p x\n"),
        ("41\r\n(Pdb) ", "!x = 42\n"),
        ("(Pdb) ", "c\n"),
    ):
        screen.until(waits_for)
        screen.type(keys)
    screen.until("resized? ")
    screen.resize(44, 99)
    if told:
        screen.type("x")  # a readline that is about to wait for a key handles the signal at the next one
        screen.until("resized? ")
    screen.type("\n")
    screen.until("press keys")
    screen.type("q\x03\r\x1a")
    screen.until("\nover\r\n")
    said = screen.said
    begin, resized, end = (said.index(words) for words in ("begin [", "resized? ", "\nover\r\n"))
    return said[begin:resized], said[resized:end]


@pytest.mark.torch
def test_a_session_at_the_keyboard_is_the_same_as_under_torchrun(start: Start) -> None:
    theirs = start(SESSION, argv=TORCHRUN)
    expected, resized = session(theirs, told=False)
    assert theirs.end() == 0

    ours = start(SESSION)
    before, after = session(ours, told=True)
    assert before == expected
    assert ours.end() == 0
    assert ours.modes == ours.before
    assert "begin [True, True, True] os.terminal_size(columns=71, lines=31) xterm" in expected
    for said in (resized, after):
        assert "os.terminal_size(columns=99, lines=44)" in said
        assert "[113, 3, 10, 26])" in said
    assert "curses ((44, 99)" in after


def test_a_stdin_that_is_no_terminal_is_the_workers_own(distlaunch: Cli) -> None:
    script = distlaunch.write("reads.py", "import os, sys\nsys.stdout.write(f'{os.read(0, 4)}\\n')\n")
    text = distlaunch.directory / "text"
    text.write_text("one\ntwo\nthr\n")
    with text.open() as file:
        done = distlaunch("local", "--nproc-per-node", "2", "--log-ranks", "all", str(script), stdin=file)
        assert done.exit_code == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["[0:0] b'one\\n'", "[0:1] b'two\\n'"] or sorted(
            done.stdout.splitlines()
        ) == [
            "[0:0] b'two\\n'",
            "[0:1] b'one\\n'",
        ]
        assert os.read(file.fileno(), 9) == b"thr\n", "only the workers have read"
    done = distlaunch("local", "--nproc-per-node", "2", "--log-ranks", "all", str(script))
    assert done.stdout.count("b''") == 2


def test_of_many_workers_the_one_that_is_shown_has_a_terminal_to_write_to(start: Start) -> None:
    script = "import os, sys\nprint(f'{[os.isatty(fd) for fd in (0, 1, 2)]} {sys.stdin.read()!r}')\n"
    screen = start(script + "if os.isatty(1): print(os.get_terminal_size())\n", "--nproc-per-node", "2")
    screen.until("[False, True, True] ''\r\nos.terminal_size(columns=71, lines=31)\r\n")
    assert screen.end() == 0

    for options in (["--tty", "never"], ["--log-ranks", "all"]):
        screen = start(script, "--nproc-per-node", "2", *options)
        screen.until("[False, False, False] ''\r\n")
        assert screen.end() == 0


@pytest.mark.parametrize("options", [["--log-ranks", "all"], ["--log-ranks", "0-3"], ["--tee", "3"]])
def test_a_worker_that_runs_alone_has_the_terminal_whichever_ranks_are_shown(start: Start, options: list[str]) -> None:
    screen = start("import os\nprint([os.isatty(fd) for fd in (0, 1, 2)])\nprint(input('name? '))\n", *options)
    screen.until("[True, True, True]\r\n")
    screen.until("name? ")
    screen.type("typed\n")
    screen.until("\r\ntyped\r\n")
    assert screen.end() == 0
    assert "[0:0]" not in screen.said


def reads_stdin(pid: str) -> bool:
    """Whether a process is in a system call on its stdin: Python misses a signal between its prompt and its read."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[1:2] == ["0x0"]


def test_one_of_many_can_have_the_keyboard_with_all_its_keys(start: Start) -> None:
    script = """
import os, sys, time
rank = os.environ["RANK"]
print(f"{rank} {[os.isatty(fd) for fd in (0, 1, 2)]} pid {os.getpid()}.")
if rank == "1":
    try:
        input("here? ")
    except KeyboardInterrupt:
        print("interrupted")
    print(repr(input("more? ")))
"""
    screen = start(script, "--nproc-per-node", "2", "--interactive", "1")
    screen.until("1 [True, True, True] pid ")
    reader = screen.until(".")
    screen.until("here? ")
    wait_until("the script to read its terminal", lambda: reads_stdin(reader), limit_s=60.0)
    screen.type("\x03")
    screen.until("interrupted")  # the echo of the key may come before the line's end
    screen.until("more? ")
    screen.type("\x1ab\n")
    screen.until("'b'\r\n")
    assert screen.end() == 0
    assert re.search(r"\[0:0\] 0 \[False, False, False\] pid \d+\.\r\n", screen.said)
    assert screen.modes == screen.before


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--interactive", "2"], "--interactive 2: there is no such rank"),
        (["--interactive", "x"], "interactive 'x' is not a rank"),
        (["--interactive", "0", "--detach"], "--interactive and --detach exclude each other"),
        (["--interactive", "0", "--tty", "never"], "--interactive and --tty never exclude each other"),
        (["--tty", "always"], "tty 'always' is not known"),
    ],
)
def test_impossible_requests_are_one_error(distlaunch: Cli, options: list[str], why: str) -> None:
    distlaunch.write("x.py", "")
    done = distlaunch("local", "--nproc-per-node", "2", *options, "x.py")
    assert done.exit_code == 2
    assert why in done.stderr


def test_a_stream_that_is_not_a_terminal_here_is_not_one_for_the_worker(start: Start, distlaunch: Cli) -> None:
    script = (
        "import os, sys\nprint([os.isatty(fd) for fd in (0, 1, 2)])\nprint('error', file=sys.stderr)\n"
        "print(input('more? '))\n"
    )
    with (distlaunch.directory / "out").open("w+") as out:
        screen = start(script, stdout=out)
        screen.until("error\r\n")
        screen.type("typed\n")
        screen.until("typed\r\n")
        assert screen.end() == 0
        out.seek(0)
        assert out.read() == "[True, False, True]\nmore? typed\n"
    screen = start(script, stdin=subprocess.DEVNULL)
    screen.until("[False, True, True]\r\n")
    assert screen.end() == 1
    assert "EOFError" in screen.said


def test_what_a_terminal_has_shown_is_in_the_log_as_text(start: Start, distlaunch: Cli) -> None:
    screen = start("import sys\nprint('one')\nprint('two', file=sys.stderr)\ninput('three? ')\n")
    screen.until("three? ")
    screen.type("x\n")
    assert screen.end() == 0
    assert distlaunch("logs", "last").stdout == "[0:0] one\n[0:0] two\n[0:0] three? x\n"


RAW = """
import sys, termios
input("begin? ")
for n in range(3000):
    print("line", n)
modes = termios.tcgetattr(1)
termios.tcsetattr(1, termios.TCSADRAIN, [modes[0], modes[1] & ~termios.OPOST, *modes[2:]])
input("one\\ntwo")
termios.tcsetattr(1, termios.TCSADRAIN, modes)
input("over? ")
"""
"""Like curses, it writes its own line ends for a while."""


def test_a_line_ends_as_it_did_when_it_was_written(start: Start) -> None:
    screen = start(RAW)
    screen.until("begin? ")
    screen.type("\n")
    said = screen.until("one\ntwo")
    screen.type("\n")
    screen.until("\nover? ")
    screen.type("\n")
    assert screen.end() == 0
    assert said[said.index("line 0") :] == "".join(f"line {n}\r\n" for n in range(3000))


@pytest.mark.torch
def test_the_bundled_trainer_draws_its_bar_under_its_own_launcher(start: Start) -> None:
    words = [sys.executable, "-m", "launcher", "local", "--nproc-per-node", "2", "train.py", "--epochs", "1"]
    screen = start("", argv=words)
    assert screen.end() == 0
    assert re.search(r"\r    1  #*\.*  [\d,]+ of 1,438 samples\x1b\[K", screen.said)
    assert re.search(r"\r\x1b\[Ktest accuracy|\ntest accuracy", screen.said)


def test_rich_draws_its_bar(start: Start) -> None:
    script = "import rich.progress\nfor _ in rich.progress.track(range(3)): pass\nprint('over')\n"
    screen = start(script, "--nproc-per-node", "2")
    screen.until("over")
    assert screen.end() == 0
    assert "\x1b[" in screen.said
    assert "100%" in screen.said
