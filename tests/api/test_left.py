"""Calls that wait for a run of their own and are left, by Ctrl-C or a timeout."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

import distlaunch
from launcher.service import cancel
from launcher.service.follow import Follower

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import NoReturn


@contextlib.contextmanager
def interrupted(when: threading.Event) -> Iterator[None]:
    """Ctrl-C for this thread at that moment."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    me = threading.get_ident()

    def interrupt() -> None:
        if when.wait(120):
            signal.pthread_kill(me, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_an_examination_that_is_left_takes_no_nodes_later(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follows = threading.Event()

    def waits_for_nodes(_self: Follower) -> NoReturn:
        follows.set()
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(Follower, "follow", waits_for_nodes)
    with pytest.raises(KeyboardInterrupt), interrupted(follows):
        distlaunch.doctor(seconds=600)

    run = distlaunch.get("last")
    asked = (run.path / "cancel.json").exists()
    if not asked:
        run.cancel(force=True)
    assert asked
    assert run.wait(120).state == "cancelled"


def test_what_ends_a_call_is_raised_though_its_run_cannot_be_cancelled(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sleeps() -> None:
        import time

        time.sleep(600)

    def unreachable(*_args: object, **_more: object) -> NoReturn:
        raise distlaunch.BackendUnavailableError("the controller is silent")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "distlaunch"):
        patched.setattr(cancel, "cancel", unreachable)
        with pytest.raises(TimeoutError):
            distlaunch.call(sleeps, timeout=0.1)

    run = distlaunch.get("last")
    (message,) = caplog.messages
    assert message == f"{run.id} was not cancelled: the controller is silent; try distlaunch cancel {run.id}"
    assert run.cancel(force=True)
