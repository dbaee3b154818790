"""Runs that go on on another cluster, as other threads see them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import distlaunch
from launcher.service import carrying

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 120


@pytest.fixture
def lab(here: Path) -> str:
    """Another cluster, on this machine, too."""
    (here / "distlaunch.toml").write_text('[clusters.lab]\nbackend = "local"\n')
    return "lab"


def waiting() -> distlaunch.Run:
    """A run whose workers wait."""
    run = distlaunch.submit("work.py", ["wait"])
    assert next(line for line in run.logs(follow=True) if line.text == "waits")
    return run


def test_a_run_that_another_thread_moves_has_not_ended(here: Path, lab: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, has_stopped, may_go_on = waiting(), threading.Event(), threading.Event()
    stopped = carrying.stopped

    def held(*args: Any) -> Any:
        found = stopped(*args)
        has_stopped.set()
        assert may_go_on.wait(LIMIT_S)
        return found

    monkeypatch.setattr(carrying, "stopped", held)
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(run.move, lab)
        try:
            assert has_stopped.wait(LIMIT_S)
            assert (run.state, run.result) == ("pending", None)
            with pytest.raises(TimeoutError):
                run.wait(0)
        finally:
            may_go_on.set()
        assert moved.result(LIMIT_S).state in ("pending", "starting", "running")
    ended = run.cancel(force=True)
    assert ended is not None
    assert ended.attempt == 1


def test_a_run_is_the_same_wherever_it_has_moved(here: Path, lab: str) -> None:
    run, other = waiting(), waiting()

    moved = run.move(lab)

    assert moved.path != run.path
    assert (moved == run, hash(moved), run == other) == (True, hash(run), False)
    assert run in distlaunch.runs(cluster=lab)
    for each in (run, other):
        each.cancel(force=True)
