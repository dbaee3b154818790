"""`--stragglers quarantine` where Slurm chooses the hosts: the slow one goes by the name that its agent reports."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from launcher.runs import directories
from testbed import wait_until
from tests.ansible.test_slow_host import STEPS, some_steps, throttle, worker_pid  # noqa: F401 - a fixture
from tests.command import Cli
from tests.slurm.conftest import Login, idle_afterwards

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.slurm import Slurm

pytestmark = pytest.mark.slurm


def test_a_slow_node_is_excluded_from_later_jobs(slurm: Slurm, tmp_path: Path, throttle: Path) -> None:  # noqa: F811
    with idle_afterwards(Login(Cli(tmp_path), slurm)) as login:
        login.write("steps.py", STEPS)
        login.write(
            ".config/distlaunch/config.toml", f'[clusters.lab]\nbackend = "slurm"\npython = "{sys.executable}"\n'
        )
        go = login.cli.directory / "go"
        how = ("--on", "lab", "--gres", "none", "--nodes", "3", "--nproc-per-node", "1", "--samples", "1")
        run = login.detach("slow", *how, "--stragglers", "quarantine", "steps.py", str(go))
        found = directories.find(login.cli.runs, run.id)
        throttle.write_text(str(wait_until("the worker", lambda: worker_pid(found, 1), limit_s=120)))
        wait_until("some steps of the slowed worker", lambda: some_steps(found, 1), limit_s=120)
        slow = run.status()["nodes"][1]["host"]
        go.touch()
        waited = login("wait", run.id)

        assert waited.exit_code == 0, waited.stderr
        assert f"{slow} is in lab's quarantine from now on: rank 1 takes " in waited.stderr
        listed = login("hosts", "--on", "lab", "--output", "json").json["result"]["hosts"]
        assert [host["host"] for host in listed if host["quarantine"]] == [slow]
        later = login("run", "--on", "lab", "--dry-run", "steps.py")
        assert f"#SBATCH --exclude={slow}\n" in later.stdout, later.stdout
