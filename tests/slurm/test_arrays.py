"""`--array`: one job array, one run per index, shown as one run that opens."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from testbed import packages
from tests.slurm.scripts import SHOW, WAITS, seconds_left
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm


def test_each_index_is_a_run_of_its_own_and_ls_shows_one_that_opens(login: Login) -> None:
    login.write(
        "index.py",
        "import os\nindex = os.environ['SLURM_ARRAY_TASK_ID']\nprint('index', index, 'rank', os.environ['RANK'])\n"
        "if index == '4': raise ValueError('four is bad')\n",
    )
    done = login("slurm", "--array", "0-4:2%2", "--nodes", "2", "--output", "json", "index.py")

    whole = done.json["result"]
    run = whole["run"]
    assert done.exit_code == 1, done.stderr
    assert whole["state"] == "failed"
    assert [task["run"] for task in whole["tasks"]] == [f"{run}/{index}" for index in (0, 2, 4)]
    assert "four is bad" in done.stderr

    assert [row["run"] for row in login("ls", "--output", "json").json["result"]["runs"]] == [run]
    opened = login("ls", run, "--output", "json").json["result"]["runs"]
    assert [(row["run"], row["state"]) for row in opened] == [
        (f"{run}/0", "success"),
        (f"{run}/2", "success"),
        (f"{run}/4", "failed"),
    ]
    assert sorted(login("logs", f"{run}/2").stdout.splitlines()) == ["[0:0] index 2 rank 0", "[1:1] index 2 rank 1"]
    state = login("status", f"{run}/4", "--output", "json").json["result"]
    assert state["cause"]["message"] == "ValueError: four is bad"
    assert "2 success, 1 failed" in login("status", run).stdout


def test_one_question_to_the_controller_tells_the_states_of_all_tasks(login: Login) -> None:
    real = packages.program("squeue")
    login.write("bin/squeue", f'#!/bin/sh\necho "$*" >>asked\nexec {real} "$@"\n').chmod(0o755)
    env: dict[str, str | None] = {"PATH": f"{login.cli.directory}/bin:{os.environ['PATH']}"}
    login.write("show.py", SHOW)
    run = login.detach("held", "--gres", "none", "--array", "0-19", "--sbatch", "hold", "show.py")

    held = login("status", run.id, env=env)

    assert "20 pending" in held.stdout, held.stderr
    assert len((login.cli.directory / "asked").read_text().splitlines()) == 1


def test_ctrl_c_cancels_the_tasks_that_run_and_those_that_wait(login: Login) -> None:
    login.write("waits.py", WAITS)
    run = login.follow("array", "--gres", "none", "--array", "0-7%2", "--nodes", "2", "--grace", "300s", "waits.py")
    run.wait_for("ready", times=4)

    run.interrupt()

    ended = run.end()
    assert ended.exit_code == 130, ended.stderr
    assert sorted(re.findall(rf"(?m)^{run.id}/(\d): cancelled", ended.stderr)) == [str(index) for index in range(8)]
    assert "warning" not in besides(ended.stderr)
    assert "Traceback" not in ended.stderr
    assert len(seconds_left(run.text())) == 4, "those that ran had their time, and no other one has begun"


def test_requests_that_do_not_fit_an_array_are_refused(login: Login) -> None:
    login.write("show.py", SHOW)
    run = login.detach("one", "--array", "1", "--sbatch", "hold", "show.py").id
    refused = {
        ("logs", run): f"distlaunch logs {run}/1",
        ("requeue", run): "is a job array",
        ("logs", f"{run}/7"): "tasks: 1",
        ("ls", f"{run}/1"): "is not a job array",
    }

    done = login.each({" ".join(argv): argv for argv in refused})

    for argv, words in refused.items():
        said = done[" ".join(argv)]
        assert said.exit_code == 2, f"{argv}: {said}"
        assert words in said.stderr, f"{argv}: {said}"
    cancelled = login("cancel", run)
    assert (cancelled.exit_code, cancelled.stdout, cancelled.stderr) == (0, f"{run}: cancelled\n", "")
