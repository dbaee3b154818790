"""Where there is no /dev/shm, ranks tell their progress in files on the run's disk, which may stop to answer."""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from launcher.agent.node.watchdog import Watchdog
from launcher.agent.ranks import progress_file
from testbed import wait_until
from tests.hangs.conftest import LIMIT_S, dead_server

if TYPE_CHECKING:
    from pathlib import Path


def watchdog(directory: Path, told: list[Any]) -> Watchdog:
    """Of a node with one silent worker; `told` gets what it tells the other nodes."""
    worker = SimpleNamespace(about={"rank": 0, "local_rank": 0, "round": 0})

    class Workers:
        output = SimpleNamespace(reads=0)

        def running(self) -> list[Any]:
            return [worker]

    job = SimpleNamespace(debug=None, wants_keyboard=False, hang_after_s=0.1)
    place: Any = SimpleNamespace(job=job, scratch=SimpleNamespace(path=str(directory)))
    server: Any = SimpleNamespace(group=SimpleNamespace(send=told.append))
    stacks: Any = SimpleNamespace(attend=lambda: None, patience=lambda: float("inf"))
    parts: Any = {"workers": Workers(), "stacks": stacks, "outcome": None, "out": None}
    return Watchdog(place, server=server, **parts)


def test_the_agents_loop_does_not_wait_for_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    directory, told = tmp_path / "dead", list[Any]()
    directory.mkdir()
    with dead_server(directory, None) as server:
        server.send_signal(signal.SIGSTOP)
        found = watchdog(directory, told)

        def loop() -> None:
            while not told:
                found.attend(time.monotonic())

        turns = threading.Thread(target=loop, daemon=True)
        turns.start()
        turns.join(LIMIT_S)
        stalls = turns.is_alive()
    turns.join(LIMIT_S)

    assert not stalls


def test_a_file_that_is_written_on_a_disk_is_a_sign_of_life(tmp_path: Path) -> None:
    told: list[Any] = []
    found = watchdog(tmp_path, told)

    def is_told(quiet: bool) -> bool:
        found.attend(time.monotonic() + 1.0)
        return told[-1:] == [{"quiet": quiet}]

    wait_until("silence", lambda: is_told(True), limit_s=LIMIT_S)
    (tmp_path / progress_file(0, 0)).write_text("step=1")
    wait_until("the end of the silence", lambda: is_told(False), limit_s=LIMIT_S)
