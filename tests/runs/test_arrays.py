"""Job arrays that are followed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import encode_event
from launcher.runs import cancel_notes, records
from launcher.runs.liveness import Liveness
from launcher.service import arrays, observe, removal
from launcher.service.interrupts import Interrupts
from launcher.service.leaving import Leaving
from launcher.system.dataclass import replace
from tests.runs.test_removal import fill
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs.handle import Handle


class Cluster:
    """A backend whose tasks end soon after they are cancelled, and later without that."""

    cancelled, asked = False, 0

    def liveness(self, _handle: Handle) -> Liveness:
        self.asked += 1
        return Liveness(nodes=("ended" if self.cancelled or self.asked > 8 else "running",))

    def cancel(self, _handle: Handle, *, force: bool) -> None:
        self.cancelled = not force


def test_ctrl_c_cancels_a_job_array_whose_disk_is_full(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster, interrupts = Cluster(), Interrupts()
    monkeypatch.setattr(observe, "backend_of", lambda _run: cluster)
    run = make(small_disk / "runs", "train-20250101-000000-abcd", result=None)
    run = records.record_handle(replace(run, plan={**run.plan, "tasks": [0, 1]}), {"run_dir": str(run.path)})
    for index in run.tasks:
        run.task(index).path.mkdir(parents=True)
    fill(small_disk)
    interrupts.stops = 1

    state = arrays.follow(run, Leaving(interrupts))

    assert cluster.cancelled
    assert state["exit_code"] is not None
    assert "No space left on device; cancelling without recording it" in capfd.readouterr().err


def test_the_request_to_cancel_reaches_each_task_and_the_disk_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    run = replace(run, plan={**run.plan, "tasks": list(range(40))})
    for index in run.tasks:
        run.task(index).path.mkdir(parents=True)
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)

    cancel_notes.note(run, force=False)

    assert all(run.task(index).cancel_requested is not None for index in run.tasks)
    assert len(waits) == 1


DAY_S = 86400.0


@pytest.mark.parametrize(("days", "found"), [((61, 60), True), ((60, 1), False)])
def test_an_array_is_as_old_as_the_end_of_its_last_task_though_no_one_has_looked(
    tmp_path: Path, days: tuple[float, ...], found: bool
) -> None:
    created = time.time() - 62 * DAY_S
    run = make(tmp_path, "train-20250101-000000-abcd", created=created, result=None)
    run = records.record_handle(replace(run, plan={**run.plan, "tasks": [0, 1]}), {"run_dir": str(run.path)})
    for index, age in zip(run.tasks, days, strict=True):
        stream = run.task(index).stream_path(0)
        stream.parent.mkdir(parents=True)
        then = time.time() - age * DAY_S
        how = {"result": "success", "exit_code": 0, "cause": None, "restarts": 0, "duration_s": 1.0}
        stream.write_bytes(encode_event("done", 0, **how, time=then))
        os.utime(stream, (then, then))

    for _ in range(2):  # the first one records its end
        assert [each.run.id for each in removal.prunable(tmp_path, 30 * DAY_S, keep_failed=False)] == [run.id] * found
