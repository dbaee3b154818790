"""Which of the tracebacks that a worker has printed ended it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from launcher.agent.stream import tail as tail_module
from launcher.agent.stream.tail import TRACEBACK, Tail

if TYPE_CHECKING:
    from tests.agent.harness import Runner

RAISES = """
import os, sys, time, traceback

def deeper(depth):
    if depth:
        [deeper, here][depth % 2](depth - 1)
    raise ConnectionResetError(104, "Connection reset by peer")

def here(depth):
    deeper(depth)

def said(lines):
    sys.stderr.write("a line that says how far it is\\n" * lines)

"""
HANDLED = "try: deeper(0)\nexcept OSError: traceback.print_exc()\nsaid({lines})\n"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


@pytest.mark.parametrize("ends", ["sys.exit(3)", "os._exit(3)"])
def test_an_exception_that_a_script_has_handled_is_not_why_it_exits_later(agents: Runner, ends: str) -> None:
    later = "time.sleep(3)\nsaid(1)\n"

    found = agents(RAISES + HANDLED.format(lines=2000) + later + ends + "\n").cause()

    assert (found["message"], found["class"], found["secondary"]) == ("exited with code 3", "user_code", False)
    assert found["traceback"] is None


def test_nor_if_it_has_written_nothing_since(agents: Runner) -> None:
    a_minute_later = "now = time.time\ntime.time = lambda: now() + 61\n"

    found = agents(RAISES + HANDLED.format(lines=0) + a_minute_later + "sys.exit(3)\n").cause()

    assert (found["message"], found["class"], found["secondary"]) == ("exited with code 3", "user_code", False)
    assert found["traceback"] is None


def test_one_is_in_whose_handler_it_exits_after_a_minute_such_as_for_a_checkpoint(agents: Runner) -> None:
    saves = "now = time.time\ndef save(): time.time = lambda: now() + 61\n"
    handler = "traceback.print_exc(); save(); sys.exit(1)"

    found = agents(f"{RAISES}{saves}try: deeper(0)\nexcept OSError: {handler}\n").cause()

    assert (found["message"], found["class"], found["secondary"]) == (RESET, "fabric", True)


@pytest.mark.parametrize("later", ["", "save()\n    "], ids=["at once", "after a minute"])
def test_so_is_a_group_of_exceptions(agents: Runner, later: str) -> None:
    """What `asyncio.TaskGroup` raises: all lines of its traceback are indented."""
    saves = "now = time.time\ndef save(): time.time = lambda: now() + 61\n"
    raises = (
        "def both():\n    try: deeper(0)\n    except OSError as error: raise ExceptionGroup('two', [error, error])\n"
    )

    handler = f"except ExceptionGroup:\n    traceback.print_exc()\n    {later}sys.exit(1)\n"

    found = agents(f"{RAISES}{saves}{raises}try: both()\n{handler}").cause()

    assert found["class"] == "fabric"


def test_so_is_one_from_which_the_exit_is_raised_outside_of_its_handler(agents: Runner) -> None:
    saves = "now = time.time\ndef save(): time.time = lambda: now() + 61\n"
    handler = "try: deeper(0)\nexcept OSError as error: traceback.print_exc(); why = error\n"

    found = agents(f"{RAISES}{saves}{handler}save()\nraise SystemExit(1) from why\n").cause()

    assert (found["message"], found["class"], found["secondary"]) == (RESET, "fabric", True)


@pytest.mark.parametrize(
    "ends",
    ["try: next(iter(()))\nexcept StopIteration: sys.exit(3)", "try: raise Stops\nexcept Stops: sys.exit(3)"],
    ids=["of Python", "that is false"],
)
def test_nor_if_it_exits_in_the_handler_of_another_one(agents: Runner, ends: str) -> None:
    stops = "class Stops(Exception):\n    def __bool__(self): raise KeyError\n"
    a_minute_later = "now = time.time\ntime.time = lambda: now() + 61\n"

    found = agents(RAISES + stops + HANDLED.format(lines=0) + a_minute_later + ends + "\n").cause()

    assert (found["message"], found["class"], found["secondary"]) == ("exited with code 3", "user_code", False)
    assert found["traceback"] is None


def test_one_is_in_whose_handler_the_save_for_it_fails(agents: Runner) -> None:
    saves = "now = time.time\ndef save():\n    time.time = lambda: now() + 61\n    raise KeyError('no disk')\n"
    script = f"{RAISES}{saves}try: deeper(0)\nexcept OSError:\n    traceback.print_exc()\n    try: save()\n"

    found = agents(script + "    except KeyError: sys.exit(1)\n").cause()

    assert (found["message"], found["class"], found["secondary"]) == (RESET, "fabric", True)


def test_one_that_it_prints_and_then_exits_is(agents: Runner) -> None:
    found = agents(RAISES + HANDLED.format(lines=5) + "os._exit(1)\n").cause()

    assert (found["message"], found["class"], found["secondary"]) == (RESET, "fabric", True)


@pytest.mark.parametrize("prefix", ["", "[rank0]: "], ids=["as it is", "with torch's prefix"])
def test_a_traceback_is_known_by_its_start_and_its_exception_however_long_it_is(agents: Runner, prefix: str) -> None:
    script = RAISES + (
        "try: deeper(400)\n"
        "except OSError: text = traceback.format_exc()\n"
        f"sys.stderr.write(''.join({prefix!r} + line + '\\n' for line in text.splitlines()))\n"
        "assert len(text) > 40_000\n"
        "said(5)\n"
        "os._exit(1)\n"
    )

    found = agents(script).cause()

    assert (found["message"], found["class"]) == (RESET, "fabric")
    assert found["traceback"].startswith(TRACEBACK.decode())
    assert "in <module>" in found["traceback"]


LONG = TRACEBACK + b'  File "x.py", line 1, in f\n' * 2000 + b"ValueError: no\n"
WIDE = TRACEBACK + b'  File "x.py", line 1, in f\n' + b"ValueError: " + b"no " * 20_000
AFTER = b"one more line\n" * 3000


@pytest.mark.parametrize("size", [14, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("at_once", "later", "has_start"),
    [
        (LONG, b"", True),
        (LONG, AFTER[:1400], True),
        (LONG, AFTER, False),
        (LONG + AFTER, b"", True),  # as long as a message can be
        (LONG + AFTER, AFTER[:14], False),
        (WIDE, b"", True),
        (WIDE, AFTER[:14], True),
    ],
    ids=["alone", "and a little", "and much", "a message", "a message and more", "one line", "one line and more"],
)
def test_what_is_kept_does_not_depend_on_how_it_was_read(
    size: int, at_once: bytes, later: bytes, has_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(tail_module, "time", SimpleNamespace(time=lambda: now[0]))
    tail = Tail()
    for data in (at_once, later):
        for start in range(0, len(data), size):
            tail.add(data[start : start + size])
        now[0] += 5

    text = tail.text(now[0])

    assert text.startswith(TRACEBACK) is has_start
    assert text.endswith((at_once + later)[-1000:])


@pytest.mark.parametrize("prefix", [b"", b"[rank0]: "])
@pytest.mark.parametrize(("handles", "is_kept"), [("Lost", True), ("Los", False), ("ost", False), ("KeyError", False)])
def test_the_handler_is_that_of_the_exception_by_its_name(prefix: bytes, handles: str, *, is_kept: bool) -> None:
    tail = Tail()
    lines = [TRACEBACK, b'  File "x.py", line 1, in f\n', b"    Lost: no\n", b"net.errors.Lost: a peer\n"]
    tail.add(b"".join(prefix + line for line in lines))
    now = time.time()

    text = tail.text(now + 90, now + 80, ["OtherError", handles])

    assert (TRACEBACK in text) is is_kept


NESTED = b"""\
    | Exception Group Traceback (most recent call last):
    |   File "x.py", line 9, in g
    | ExceptionGroup: in (1 sub-exception)
    +-+---------------- 1 ----------------
      | KeyError: 1
      +------------------------------------
"""
GROUP = b"""\
  + Exception Group Traceback (most recent call last):
  |   File "x.py", line 6, in f
  | tasks.Failures: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "x.py", line 5, in f
    | OSError: x
    +---------------- 2 ----------------
    | ValueError: 1
    +------------------------------------
"""
WITHOUT = b"".join(line for line in GROUP.splitlines(keepends=True) if b"1 ---" not in line and b"    |" not in line)


@pytest.mark.parametrize("text", [GROUP, WITHOUT, GROUP + NESTED], ids=["members with tracebacks", "without", "nested"])
@pytest.mark.parametrize(("handles", "is_kept"), [("Failures", True), ("OSError", False), ("KeyError", False)])
def test_the_handler_of_a_group_is_that_of_the_group_itself(text: bytes, handles: str, *, is_kept: bool) -> None:
    tail = Tail()
    tail.add(b"a line\n" + text + b"KeyError: this line is of the script\n")
    now = time.time()

    assert (TRACEBACK in tail.text(now + 90, now + 80, [handles])) is is_kept


@pytest.mark.parametrize("line", [b"Lost at step 9\n", b"saved\nLost: a file\n"])
def test_a_line_that_begins_like_it_is_no_exception(line: bytes) -> None:
    tail = Tail()
    tail.add(TRACEBACK + b'  File "x.py", line 1, in f\nOSError: no\n' + line)
    now = time.time()

    assert TRACEBACK not in tail.text(now + 90, now + 80, ["Lost"])


def test_no_part_of_a_prefix_reads_as_the_exception_wherever_the_start_of_a_long_traceback_ends() -> None:
    for padding in range(40):
        lines = [TRACEBACK, b'  File "x.py", line 1' + b" " * padding + b"\n", *[b'  File "x.py", line 1\n'] * 3000]
        tail = Tail()
        tail.add(b"".join(b"[rank0]: " + line for line in (*lines, b"OSError: the end\n")))

        said = [line for line in tail.text(time.time()).splitlines() if not line.startswith(b"[rank0]:  ")]

        assert said == [TRACEBACK.strip(), b"[rank0]: OSError: the end"]


@pytest.mark.parametrize("exit_after_s", [None, 1])
def test_a_process_that_takes_minutes_to_exit_keeps_its_exception(exit_after_s: int | None) -> None:
    tail = Tail()
    tail.add(TRACEBACK + b'  File "x.py", line 1\nOSError: the end\n')
    now = time.time()

    assert tail.text(now + 600, exit_after_s and now + exit_after_s).startswith(TRACEBACK)


def test_a_traceback_from_long_ago_is_left_out_though_little_was_written_since() -> None:
    tail = Tail()
    tail.add(TRACEBACK + b'  File "x.py", line 1\nOSError: it was handled\ndiverged\n')

    assert tail.text(time.time()).startswith(TRACEBACK)
    assert TRACEBACK not in tail.text(time.time() + 3600)
    assert tail.text(time.time() + 3600).endswith(b"diverged\n")
