"""Where there is no /dev/shm, what agent and ranks share is on the run's disk, which may stop to answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from launcher.agent.flight import program
from launcher.agent.node.stacks import Stacks
from launcher.agent.node.watchdog import Watchdog
from launcher.agent.ranks import progress_file
from launcher.agent.stacks import dump
from testbed import wait_until
from tests.hangs.conftest import LIMIT_S, dead_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hangs.conftest import DeadFile


def watchdog(directory: Path, told: list[Any], pid: int = 0) -> Watchdog:
    """Of a node with one silent worker; `told` gets what it tells the other nodes."""
    worker = SimpleNamespace(about={"rank": 0, "local_rank": 0, "round": 0, "pid": pid or os.getpid()})

    class Workers:
        output = SimpleNamespace(reads=0)

        def running(self) -> list[Any]:
            return [worker]

    job = SimpleNamespace(debug=None, wants_keyboard=False, hang_after_s=0.1, role="")
    place: Any = SimpleNamespace(job=job, host="n0", scratch=SimpleNamespace(path=str(directory)))
    group = SimpleNamespace(send=told.append)

    def ask() -> None:
        dump.ask(worker.about["pid"], str(directory))

    server: Any = SimpleNamespace(group=group, ask_for_stacks=ask)
    workers: Any = Workers()
    out: Any = None
    parts: Any = {"workers": workers, "stacks": Stacks(place, out, server, workers), "outcome": None, "out": out}
    return Watchdog(place, server=server, **parts)


def test_the_agents_loop_does_not_wait_for_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    directory, told = tmp_path / "dead", list[Any]()
    directory.mkdir()
    with dead_server(directory, None) as server:
        server.send_signal(signal.SIGSTOP)
        found = watchdog(directory, told)

        def loop() -> None:
            while {"quiet": True} not in told:
                found.attend(time.monotonic())
            found.hear({"stacks_asked": 1, "recorder": None})
            while "stacks" not in told[-1]:
                found.attend(time.monotonic())

        turns = threading.Thread(target=loop, daemon=True)
        turns.start()
        turns.join(LIMIT_S)
        stalls = turns.is_alive()
    turns.join(LIMIT_S)

    assert not stalls
    assert [group["ranks"] for group in told[-1]["stacks"]["groups"]] == [[0]]


WORKER = """
import sys, time
from launcher.agent.stacks import dump
dump.register(sys.argv[1])
print("ready", flush=True)
while True: time.sleep(600)
"""


def test_the_stacks_of_a_worker_are_found_without_a_file_on_that_disk(tmp_path: Path) -> None:
    told: list[Any] = []
    argv = (sys.executable, "-c", WORKER, str(tmp_path))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout
            assert worker.stdout.readline() == b"ready\n"
            found = watchdog(tmp_path, told, worker.pid)
            for number in (1, 2):
                found.hear({"stacks_asked": number, "recorder": None})
                while not told:
                    found.attend(0.0)
                (group,) = told.pop()["stacks"]["groups"]
                assert [frame["file"] for frame in group["frames"]] == ["<string>"]
        finally:
            worker.kill()

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_written_on_a_disk_is_a_sign_of_life(tmp_path: Path) -> None:
    told: list[Any] = []
    found = watchdog(tmp_path, told)

    def is_told(quiet: bool) -> bool:
        found.attend(time.monotonic() + 1.0)
        return told[-1:] == [{"quiet": quiet}]

    wait_until("silence", lambda: is_told(True), limit_s=LIMIT_S)
    (tmp_path / progress_file(0, 0)).write_text("step=1")
    wait_until("the end of the silence", lambda: is_told(False), limit_s=LIMIT_S)


def test_what_reads_dumps_from_such_a_disk_is_left_behind(dead_file: DeadFile) -> None:
    """Not even SIGKILL ends it."""
    said: list[str] = []

    def ask() -> None:
        try:
            program.ask({"do": program.READ, "paths": {"0": dead_file.path}}, 3.0)
        except program.FailedError as error:
            said.append(str(error))

    asks = threading.Thread(target=ask, daemon=True)
    asks.start()
    asks.join(LIMIT_S)
    stays = asks.is_alive()
    dead_file.end()
    asks.join(LIMIT_S)

    assert not stays
    assert said == ["it takes longer than 3 s"]
