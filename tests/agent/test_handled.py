"""Which of the tracebacks that a worker has printed ended it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from launcher.agent.stream.tail import TRACEBACK, Tail

if TYPE_CHECKING:
    from tests.agent.harness import Runner

RAISES = """
import os, sys, traceback

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
    found = agents(RAISES + HANDLED.format(lines=2000) + ends + "\n").cause()

    assert (found["message"], found["class"], found["secondary"]) == ("exited with code 3", "user_code", False)
    assert found["traceback"] is None


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


@pytest.mark.parametrize("size", [14, 1000, 1 << 20])
def test_what_is_kept_does_not_depend_on_how_it_was_read(size: int) -> None:
    long = TRACEBACK + b'  File "x.py", line 1, in f\n' * 2000 + b"ValueError: no\n"
    wide = TRACEBACK + b'  File "x.py", line 1, in f\n' + b"ValueError: " + b"no " * 20_000
    after = b"one more line\n" * 3000
    for data, has_start in ((long, True), (long + after[:1000], True), (long + after, False), (wide, True)):
        tail = Tail()
        for start in range(0, len(data), size):
            tail.add(data[start : start + size])

        text = tail.text(time.time())

        assert text.startswith(TRACEBACK) is has_start
        assert text.endswith(data[-1000:])


def test_a_traceback_from_long_ago_is_left_out_though_little_was_written_since() -> None:
    tail = Tail()
    tail.add(TRACEBACK + b'  File "x.py", line 1\nOSError: it was handled\ndiverged\n')

    assert tail.text(time.time()).startswith(TRACEBACK)
    assert TRACEBACK not in tail.text(time.time() + 3600)
    assert tail.text(time.time() + 3600).endswith(b"diverged\n")
