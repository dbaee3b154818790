"""How long workers have when the scheduler announces the end of the time limit."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.job import Job
from launcher.agent.node.stops import Stops

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_700_000_000.0
LEAD_S = 600.0
MARGIN_S = 10.0


@pytest.mark.parametrize(
    ("said_s", "left_s"),
    [(None, LEAD_S), (LEAD_S + 50, LEAD_S + 50), (-3600, LEAD_S), (7200, LEAD_S)],
    ids=["nothing said", "announced early", "limit extended since", "limit reduced since"],
)
def test_the_end_that_slurm_has_announced_counts_though_its_variable_is_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said_s: float | None, left_s: float
) -> None:
    job = Job("r-1", ["x.py"], "script", "/", {}, str(tmp_path), {}, max_nodes=1, end_signal="SIGURG", lead_s=LEAD_S)
    place: Any = SimpleNamespace(job=job, directory=str(tmp_path), scratch=SimpleNamespace(path=str(tmp_path)))
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "" if said_s is None else f"{NOW + said_s:.0f}")

    ask = Stops(place).asked_by(signal.SIGURG)

    assert ask is not None
    assert ask.deadline == NOW + left_s - MARGIN_S
