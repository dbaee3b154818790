"""`distlaunch top` of a detached job of Slurm: a table, a terminal with its keys, and a rank that is slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.command import Cli
from tests.slurm.conftest import Login, idle_afterwards
from tests.terminal.watching import STEPS, Desk, is_watched_with_keys_and_cancelled

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.slurm import Slurm
    from tests.slurm.laptop import Laptop

pytestmark = pytest.mark.slurm
WHERE = ("--nodes", "2", "--nproc-per-node", "2", "--samples", "1", "--gres", "none")


def test_a_detached_job_is_watched_from_another_process_and_cancelled_by_a_key(slurm: Slurm, tmp_path: Path) -> None:
    with idle_afterwards(Login(Cli(tmp_path), slurm)) as login:
        login.write("steps.py", STEPS)
        run = login.detach("watched", *WHERE, "steps.py")
        found = is_watched_with_keys_and_cancelled(Desk(login.cli, login.env()), run.id)

        assert len({node["host"] for node in found["nodes"]} & {host.name for host in slurm.hosts}) == 2
        assert run.wait_end()["state"] == "cancelled"


def test_behind_a_login_node_it_is_the_same(laptop: Laptop) -> None:
    laptop.cli.write("steps.py", STEPS)
    run = laptop.detached(*WHERE, "steps.py")
    is_watched_with_keys_and_cancelled(Desk(laptop.cli, laptop.env()), run)

    assert laptop.wait_end(run)["state"] == "cancelled"
