"""Stopping a launcher whose output is not read: a pager that waits, a full pipe, a stopped terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from launcher.service.interrupts import Interrupts
from testbed import wait_until
from tests.cli.following import (
    WAITS,
    agents,
    end,
    nothing_is_left,  # noqa: F401 - a fixture
    recorded,
    until,
    until_stderr,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.command import Cli

TALKS = """
import signal, sys
signal.signal(signal.SIGTERM, {})
for _ in range(12):
    sys.stdout.write(("x" * 99 + "\\n") * 10_000)
sys.stdout.flush()
while True:
    signal.pause()
"""
"""Writes 12 MB: more than any pipe holds, and more than a launcher keeps."""

DEAF = TALKS.format("signal.SIG_IGN")
"""It ignores SIGTERM, so it has to be killed."""

QUIT = TALKS.format("lambda *_: sys.exit(0)")


@contextmanager
def full_pipe() -> Iterator[int]:
    """The write end of a pipe that is not read."""
    reader, writer = os.pipe()
    yield writer
    os.close(reader)


@contextmanager
def stopped_terminal() -> Iterator[int]:
    """A terminal after Ctrl-S."""
    master, slave = os.openpty()
    termios.tcflow(slave, termios.TCOOFF)
    yield slave
    os.close(master)


def written(distlaunch: Cli) -> bool:
    """Whether a worker has written most of it."""
    return any(path.stat().st_size > 11_000_000 for path in distlaunch.runs.glob("*/nodes/0/stream"))


def ends(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.mark.parametrize("terminal", [full_pipe, stopped_terminal])
@pytest.mark.parametrize(("script", "signals"), [(QUIT, (signal.SIGTERM,)), (DEAF, (signal.SIGINT, signal.SIGINT))])
def test_a_launcher_whose_output_is_not_read_can_be_stopped(
    distlaunch: Cli, terminal: object, script: str, signals: tuple[signal.Signals, ...]
) -> None:
    """All its output goes there, including its messages about the run."""
    distlaunch.write("talks.py", script)
    with terminal() as fd:  # type: ignore[operator]
        process = distlaunch.start("local", "--grace", "300s", "talks.py", stdout=fd, stderr=fd)
        os.close(fd)
        with process:
            wait_until("more than it can print", lambda: written(distlaunch), limit_s=60)
            for number in signals:
                process.send_signal(number)
                wait_until(
                    "the signal to be handled", lambda: bool(list(distlaunch.runs.glob("*/cancel.json"))), limit_s=60
                )
            code = ends(process)

    assert code == 130
    assert recorded(distlaunch)["state"] == "cancelled"


PATIENT = """
import sys
from launcher.service import limits
from launcher.backends.local import processes
from launcher.cli import main
processes._HEARS_S = limits.GIVE_UP_S = 600.0
sys.exit(main())
"""
"""The launcher; an agent that does not respond is killed only after ten minutes."""


def test_the_third_ctrl_c_ends_the_launcher_whatever_becomes_of_the_run(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    distlaunch.write("patient.py", PATIENT)
    with distlaunch.start("local", "--grace", "300s", "waits.py", python=("patient.py",)) as process:
        until(process, b"ready")
        (agent,) = agents(distlaunch)
        agent.send(signal.SIGSTOP)
        for said in (b"cancelling waits-", b"killing waits-"):
            process.send_signal(signal.SIGINT)
            until_stderr(process, said)
        process.send_signal(signal.SIGINT)
        code, stderr = end(process)
    agent.send(signal.SIGCONT)

    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert "to end it: distlaunch cancel --force waits-" in stderr
    assert distlaunch("cancel", "last").stdout.endswith(": cancelled\n")


SAVES = """
import os, signal, sys

def save(*_):
    os.makedirs("out", exist_ok=True)
    open("out/state", "w").write("step 7")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
"""
"""Writes its state when it has to end."""


def test_what_a_run_writes_when_ctrl_c_ends_it_is_fetched(distlaunch: Cli) -> None:
    distlaunch.write("saves.py", SAVES)
    with distlaunch.start(
        "local", "--output", "json", "--grace", "60s", "--fetch", "out/*", "--fetch-to", "got", "saves.py"
    ) as process:
        until_stderr(process, b"ready")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)

    found = json.loads(stdout)
    assert process.returncode == 130, stderr
    assert found["result"]["state"] == "cancelled"
    assert [file["path"] for file in found["result"]["fetched"]["files"]] == ["out/state"]
    assert (distlaunch.directory / "got/out/state").read_text() == "step 7"
    assert b"may still be running" not in stderr


SLOW_FETCH = """
import sys, threading
from launcher.cli import main
from launcher.service import fetch_node

def fetch(*_):
    print("fetches", file=sys.stderr, flush=True)
    threading.Event().wait()

fetch_node.fetch = fetch
sys.exit(main())
"""
"""The launcher; it fetches without end."""


def test_ctrl_c_while_files_are_fetched_gives_up_these_and_tells_how_the_run_has_ended(distlaunch: Cli) -> None:
    distlaunch.write("slow_fetch.py", SLOW_FETCH)
    with distlaunch.start("local", "--fetch", "out", "--no-python", "true", python=("slow_fetch.py",)) as process:
        until_stderr(process, b"fetches")
        process.send_signal(signal.SIGINT)
        code, stderr = end(process)

    assert code == 4, stderr
    assert "not fetched: stopped" in stderr
    assert "success after" in stderr
    assert "may still be running" not in stderr


def test_a_signal_that_was_ignored_when_we_started_stays_ignored() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert interrupts.stops == 0
            signal.raise_signal(signal.SIGTERM)
            assert interrupts.stops == 1
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_follows_a_run_that_a_signal_has_ended_can_be_ended_too(number: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # it may have been ignored when the tests started
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGTERM)
            interrupts.obeyed()
            with interrupts.at_once():  # that signal was obeyed
                pass

            with pytest.raises(KeyboardInterrupt), interrupts.at_once():
                signal.raise_signal(number)
    finally:
        signal.signal(number, before)
