"""`--array`: one job array, one run per index, shown as one run that opens."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from launcher.backends._slurm_script import indices
from launcher.errors import SpecError
from tests.testbed import wait_until

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
    assert "1 failed" in login("status", run).stdout


def test_ctrl_c_cancels_the_tasks_that_run_and_those_that_wait(login: Login) -> None:
    login.write("rests.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    follower = login.start("slurm", "--array", "0-7%2", "--nodes", "2", "--grace", "2s", "rests.py")
    wait_until(
        "two tasks to run", lambda: login.slurm.run(("squeue", "-h", "-o", "%t")).stdout.split().count("R") == 2, limit_s=60
    )
    wait_until(
        "a worker",
        lambda: any(b"ready" in path.read_bytes() for path in login.cli.runs.glob("*/tasks/*/nodes/0/stream")),
        limit_s=60,
    )

    follower.send_signal(signal.SIGINT)

    _, stderr = follower.communicate(timeout=90)
    assert follower.returncode == 130, stderr
    assert stderr.count(b": cancelled") == 8
    assert b"Traceback" not in stderr


def test_what_does_not_fit_an_array_is_told(login: Login) -> None:
    run = login("slurm", "--array", "1", "--detach", "reduce.py").stdout.strip()

    for argv, words in [
        (("logs", run), f"distlaunch logs {run}/1"),
        (("requeue", run), "is a job array"),
        (("logs", f"{run}/7"), "tasks: 1"),
        (("ls", f"{run}/1"), "is no job array"),
    ]:
        done = login(*argv)
        assert done.exit_code == 2
        assert words in done.stderr
    assert login("cancel", run).exit_code == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [("0-3", (0, 1, 2, 3)), ("5", (5,)), ("1,3,7-8", (1, 3, 7, 8)), ("0-9:4", (0, 4, 8)), ("0-1%1", (0, 1)), ("2,1,2", (1, 2))],
)
def test_indices_are_read_as_sbatch_reads_them(text: str, found: tuple[int, ...]) -> None:
    assert indices(text) == found


@pytest.mark.parametrize("text", ["3-1", "x", "0-9:0", "0-9%", "0-9%0", "-1", "1,,2", "0-9%2%3", ""])
def test_other_arrays_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        indices(text)
