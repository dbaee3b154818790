"""One command at a time changes a run, even if others try and its process dies."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system.processes import start_ticks
from launcher.errors import RequestError, StorageError
from launcher.runs import lock, renewal
from launcher.system import storage
from tests.runs.test_removal import fill

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]

HOLDS = """
import os, sys, time
from pathlib import Path
from launcher.runs import lock
from launcher.agent.system.processes import start_ticks
directory, marker = Path(sys.argv[1]), Path(sys.argv[1], "inside")
for _ in range(int(sys.argv[2])):
    with lock.hold(directory, "test", wait_s=300):
        if marker.exists():
            pid, began = map(int, marker.read_text().split() or (0, 0))
            if start_ticks(pid) != began:
                marker.unlink()  # the process that made it was killed in here
        with open(marker, "x") as file:
            file.write(f"{os.getpid()} {start_ticks(os.getpid())}")
            file.flush()
            time.sleep(0.002)
        marker.unlink()
"""
"""Fails where two are inside at once."""


def holder(directory: Path, times: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", HOLDS, str(directory), str(times)], cwd=ROOT, stderr=subprocess.PIPE)


def test_two_are_never_inside_even_if_some_are_killed_there(tmp_path: Path) -> None:
    choose = random.Random(13)
    with ExitStack() as stack:
        others = [stack.enter_context(holder(tmp_path, 15)) for _ in range(3)]
        for _ in range(6):
            with holder(tmp_path, 10**9) as victim:
                while not (tmp_path / "inside").exists() and victim.poll() is None:
                    time.sleep(0.001)
                time.sleep(choose.random() / 20)
                victim.kill()
                _, said = victim.communicate(timeout=60)
            assert (victim.returncode, said) == (-signal.SIGKILL, b"")
        for other in others:
            _, said = other.communicate(timeout=120)
            assert (other.returncode, said) == (0, b"")
    with lock.hold(tmp_path, "test"):
        pass  # the last one may have been killed before it removed its predecessor's
    assert len(list(tmp_path.glob("lock-*"))) == 1


def elsewhere(directory: Path, **more: object) -> Path:
    """A lock held on another host, by a process with the pid of one of ours."""
    about = {
        "doing": "requeue",
        "submits": True,
        "host": "far",
        "pid": os.getpid(),
        "start_ticks": 1,
        "machine": "other",
    }
    path = directory / "lock-7"
    storage.write_whole(path, storage.encode_json({**about, "renewed": time.time(), **more}))
    return path


def test_an_owner_on_another_host_keeps_its_lock_as_long_as_it_renews_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid means nothing here, and its clock may be years off."""
    monkeypatch.setattr(lock, "_SILENT_S", 3600.0)
    path = elsewhere(tmp_path, renewed=0.0)
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.05):
            elsewhere(tmp_path, renewed=time.monotonic())

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        told = f"is being changed by `distlaunch requeue`, process {os.getpid()} on far"
        with pytest.raises(RequestError, match=told), lock.hold(tmp_path, "cancel"):
            raise AssertionError
    finally:
        over.set()
        renewing.join()
    assert path.exists()


def test_an_owner_on_another_host_that_is_silent_for_long_loses_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_SILENT_S", 0.3)
    path = elsewhere(tmp_path)

    with lock.hold(tmp_path, "cancel"):
        owner = lock.owner(tmp_path)
        assert not path.exists()

    assert owner is not None
    assert (owner.doing, owner.pid, owner.start_ticks) == ("cancel", os.getpid(), start_ticks(os.getpid()))
    assert lock.owner(tmp_path) is None


def test_a_released_lock_is_free_even_if_a_renewal_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late, go_on = threading.Event(), threading.Event()

    def write(path: Path, about: object, really: Callable[[Path, Any], None] = renewal.write) -> None:
        late.set()
        assert go_on.wait(60)
        really(path, about)

    monkeypatch.setattr(renewal, "_RENEW_S", 0.05)
    monkeypatch.setattr(renewal, "write", write)
    with lock.hold(tmp_path, "cancel"):
        assert late.wait(60)
        (renewing,) = (thread for thread in threading.enumerate() if thread.name == "renew-lock")
    go_on.set()
    renewing.join()

    assert lock.owner(tmp_path) is None


def test_a_lock_is_renewed_while_it_is_held_and_its_watch_function_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "_RENEW_S", 0.05)
    looked, seen = threading.Event(), set[float]()
    with lock.hold(tmp_path, "cancel", watch=looked.set):
        assert looked.wait(60)
        while len(seen) < 3:
            owner = lock.owner(tmp_path)
            assert owner is not None
            seen.add(owner.renewed)


def test_a_lock_is_released_on_a_full_disk(small_disk: Path) -> None:
    run = small_disk / "run"
    run.mkdir()

    with lock.hold(run, "status"):
        fill(small_disk)

    assert lock.owner(run) is None
    (small_disk / "more").unlink()
    with lock.hold(run, "cancel"):
        pass


def test_a_lock_whose_release_fails_is_released_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recovers = threading.Event()

    def release(path: Path, really: Callable[[Path], None] = renewal.release) -> None:
        if not recovers.is_set():
            raise OSError(errno.EIO, "Input/output error")
        really(path)

    monkeypatch.setattr(renewal, "_RENEW_S", 0.05)
    monkeypatch.setattr(renewal, "release", release)
    with lock.hold(tmp_path, "status"):
        (renewing,) = (thread for thread in threading.enumerate() if thread.name == "renew-lock")
    with pytest.raises(RequestError), lock.hold(tmp_path, "cancel"):
        pass
    recovers.set()
    renewing.join()

    with lock.hold(tmp_path, "cancel"):
        pass


def test_a_lock_that_cannot_be_compared_with_others_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, listed = storage.write_once, os.listdir

    def fails(_: object) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    def taken(*args: Any, **more: Any) -> bool:
        made = once(*args, **more)
        monkeypatch.setattr(os, "listdir", fails)
        return made

    monkeypatch.setattr(storage, "write_once", taken)
    with pytest.raises(StorageError), lock.hold(tmp_path, "logs"):
        pass
    monkeypatch.setattr(os, "listdir", listed)

    assert lock.owner(tmp_path) is None


def test_a_lock_is_released_if_what_watches_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def watch() -> None:
        failed.set()
        raise ValueError

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with lock.hold(tmp_path, "logs", watch=watch):
        assert failed.wait(60)

    assert lock.owner(tmp_path) is None


def test_a_look_at_a_run_that_was_removed_does_not_hold_its_lock(tmp_path: Path) -> None:
    with lock.at_once(tmp_path / "gone") as ours:
        assert not ours
