"""`distlaunch clusters` on a real Slurm: what is free, who waits, and when a job would start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm

BUSY = "#!/bin/sh\nexec sleep 1000\n"


def told(login: Login, *options: str) -> dict[str, Any]:
    """The row of the only cluster."""
    (found,) = login("clusters", "--output", "json", *options).json["result"]["clusters"]
    assert found["problem"] is None, found
    row: dict[str, Any] = found
    return row


def numbers(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("nodes_free", "nodes", "gpus_free", "gpus", "waiting", "own_runs"))


def test_what_is_free_who_waits_and_when_slurm_would_start_a_job(login: Login) -> None:
    login.write("distlaunch.toml", '[clusters.juno]\nbackend = "slurm"\n')
    login.slurm.wait_idle()
    job = ("--nodes", "4", "--gpus-per-node", "2", "--time", "1h")
    idle = told(login, *job)
    assert numbers(idle) == (4, 4, 8, 8, 0, 0)
    assert abs(idle["start"]["at"] - time.time()) < 60
    assert "Slurm's estimate" in idle["start"]["how"]

    login.write("x.py", "import time; time.sleep(1000)\n")
    first = login.slurm.sbatch(BUSY, "-N2", "--gres=gpu:2", "--exclusive", "--time=30")
    run = login.detach("own", "--nodes", "1", "--gpus-per-node", "1", "--time", "30m", "x.py")
    for number in (first, run.job):
        login.slurm.wait_job(number, "RUNNING")
    login.slurm.sbatch(BUSY, "-N4", "--gres=gpu:2", "--time=30")
    busy = told(login, *job)
    assert numbers(busy) == (1, 4, 3, 8, 1, 1)
    assert busy["start"]["at"] - time.time() > 20 * 60, "both jobs have a time limit of 30 minutes"

    never = told(login, "--nodes", "9")["start"]
    assert never["at"] is None
    assert never["how"]
    text = login("clusters", "--nodes", "9").stdout.splitlines()
    assert text[1].split()[:8] == ["juno", "slurm", "1", "of", "4", "3", "of", "8"]
    assert f"unknown ({never['how']})" in text[1]
