"""How often `top` asks a cluster about a run that waits to be submitted."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING

from launcher.errors import BackendUnavailableError
from launcher.runs import directories, lock, records
from launcher.service import observe, top
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from launcher.runs.handle import Handle


class Cluster:
    """It does not answer."""

    asked = 0

    def recover(self, _handle: Handle) -> None:
        self.asked += 1
        raise BackendUnavailableError("no route to the cluster")


class Pauses(threading.Event):
    """The pauses of the thread that looks, which last no time."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[float] = []
        self.over = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.taken.append(timeout or 0.0)
        if len(self.taken) == 4:
            self.over.set()
        return len(self.taken) >= 4


def test_a_cluster_that_does_not_answer_is_asked_as_seldom_as_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, pauses = Cluster(), Pauses()
    monkeypatch.setattr(observe, "backend_of", lambda _run: cluster)
    run = make(tmp_path, "train-20250101-000000-abcd", created=time.time(), result=None)
    with ExitStack() as held:
        held.enter_context(lock.hold(run.path, "slurm", submits=True))
        with monkeypatch.context() as patched:
            fakes = SimpleNamespace(Event=lambda: pauses, Lock=threading.Lock, Thread=threading.Thread)
            patched.setattr(top, "threading", fakes)
            watch = top.Watch(directories.find(tmp_path, run.id))
        records.record_handle(run, {"run_dir": str(run.path), "submitting": True})
    watch.start()  # its launcher has ended while it submitted the run
    assert pauses.over.wait(60)
    watch.close()

    assert watch.trouble == "no route to the cluster"
    assert (cluster.asked, pauses.taken) == (3, [1.0, 5.0, 5.0, 5.0])
