"""`distlaunch clusters` on a real Slurm: what is free, who waits, and when a job would start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.slurm import outlook, times
from launcher.backends.slurm.site import Site
from tests.slurm.commands import pretend

if TYPE_CHECKING:
    from tests.command import Cli
    from tests.slurm.conftest import Login
    from tests.slurm.laptop import Laptop

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


def test_a_login_node_in_another_time_zone_reports_the_same_times(laptop: Laptop) -> None:
    laptop.cli.write("show.py", "print(1)\n")
    run = laptop.detached("--gres", "none", "show.py")
    tokyo: dict[str, str | None] = {"TZ": "JST-9"}

    listed = laptop("ls", "--on", "juno", "--output", "json", env=tokyo).json["result"]["runs"]
    start = laptop("clusters", "--nodes", "1", "--output", "json", env=tokyo).json["result"]["clusters"][0]["start"]

    (created,) = (row["created"] for row in listed if row["run"] == run)
    assert abs(created - time.time()) < 3600
    assert abs(start["at"] - time.time()) < 3600, start


def test_a_local_time_of_another_host_is_shown_and_not_compared(
    distlaunch: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login node that takes single commands only prints one."""
    says = "sbatch: Job 3 to start at {} using 4 processors on nodes n[1-4] in partition main"
    found = []
    for text in ("2026-11-29T21:00:00", "1795986000"):
        env = pretend(distlaunch, {"sbatch": f"echo '{says.format(text)}' >&2\n"})
        monkeypatch.setenv("PATH", str(env["PATH"]))
        found.append(outlook.start(Site(), ""))

    assert found[0] == {"at": None, "how": "Slurm's estimate: 2026-11-29T21:00:00 there, on n[1-4]"}
    assert found[1] == {"at": 1795986000.0, "how": "Slurm's estimate, on n[1-4]"}
    assert times.shown("N/A") == "N/A"
