"""How runs with roles end on Slurm, and how they start again: all components together."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.slurm.roles import AGAIN_ONCE, FAILS, WAITING, agent, attempts, job_of, roles_file
from tests.slurm.scripts import AGAIN, WAITS, printed, seconds_left

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_the_failure_of_a_role_ends_the_run_starts_the_role_again_or_is_ignored(login: Login) -> None:
    login.write("fails.py", FAILS)
    runs = {
        name: login.follow(
            name, "--gres", "none", "--log-ranks", "all", "--roles", roles_file(login, name, sound="end", frail=what)
        )
        for name, what in (("end", "end"), ("again", "restart_role"), ("ignored", "ignore"))
    }

    done = {name: run.end() for name, run in runs.items()}

    assert [done[name].exit_code for name in runs] == [1, 0, 0], done
    assert re.search(r"first failure: rank 1, role frail, host n\d, node 1, exit code 1", done["end"].stderr)
    assert done["end"].stderr.count("the script failed: ValueError: frail indeed\n") == 1
    begun = {name: [line.split()[-1] for line in done[name].stdout.splitlines() if "begins" in line] for name in runs}
    assert sorted(begun["again"]) == ["frail", "frail", "sound"]
    assert "ValueError: frail indeed; ignored, as its role frail is to be" in done["ignored"].stderr
    login.slurm.wait_idle()
    states = [login.queue("%T", f"--jobs={job_of(runs[name])}") for name in ("end", "again")]
    assert states == [["FAILED", "FAILED"], ["COMPLETED", "COMPLETED"]]


@pytest.mark.parametrize("node", [0, 2], ids=["of the first role", "of the second role"])
def test_a_killed_agent_leaves_nothing_and_is_the_cause(login: Login, node: int) -> None:
    login.write("waits.py", WAITS)
    run = login.follow("killed", *WAITING)
    run.wait_for("ready", times=3)
    pid = agent(run, node)["pid"]

    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    done = run.end()

    assert time.monotonic() - began < 30
    assert done.exit_code == 1
    cause = run.status()["cause"]
    assert (cause["class"], cause["node"], cause["message"]) == (
        "killed",
        node,
        f"the agent (pid {pid}) was killed by SIGKILL",
    )
    login.slurm.wait_idle()


def test_a_waiting_run_and_a_running_one_are_cancelled_listed_and_adopted_with_all_components(login: Login) -> None:
    login.write("waits.py", WAITS)
    run = login.detach("running", *WAITING)
    run.wait_for("ready", times=3)
    waiting = login.detach("waiting", *WAITING, "--sbatch", "hold")
    job, held = job_of(run), job_of(waiting)
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(login.cli.directory / "elsewhere")}

    listed = {row["run"]: row for row in login("ls", "--on", "slurm", "--output", "json").json["result"]["runs"]}
    adopted = login("adopt", "--on", "slurm", f"{job}+1", env=elsewhere)
    shown = login("status", run.id, "--output", "json", env=elsewhere).json["result"]
    ended = {each.id: login("cancel", each.id) for each in (waiting, run)}

    assert (listed[run.id]["job_id"], listed[run.id]["nodes"]) == (job, "3")
    assert listed[run.id]["hosts"] == [agent(run, node)["host"] for node in range(3)]
    assert listed[waiting.id]["state"] == "pending"
    assert adopted.stdout == f"{run.id}\n", adopted.stderr
    assert (shown["state"], len(shown["nodes"])) == ("running", 3)
    assert [node.get("role") for node in shown["nodes"]] == ["one", "two", "two"]
    assert [done.exit_code for done in ended.values()] == [0, 0], ended
    assert len(seconds_left("\n".join(printed(run.directory)))) == 3
    for each in (run, waiting):
        assert each.wait_end()["state"] == "cancelled"
    login.slurm.wait_idle()
    for number in (job, held):
        assert set(login.queue("%T", f"--jobs={number}")) == {"CANCELLED"}


def test_at_the_time_limit_all_roles_are_told_and_it_can_start_again(login: Login) -> None:
    login.write("waits.py", WAITS)
    login.write("again.py", AGAIN)
    limit = ("--time", "1m", "--lead", "50s")
    run = login.follow("limit", *limit, *WAITING)
    again = login.follow("again", *limit, "--max-requeues", "1", "--log-ranks", "all", *AGAIN_ONCE)

    done, twice = run.end(), again.end()

    assert done.exit_code == 124, done.stderr
    assert len(seconds_left("\n".join(printed(run.directory)))) == 3
    assert run.status()["state"] == "timeout"
    assert twice.exit_code == 0, twice.stderr
    assert attempts(twice) == [*["ready 0 after nothing"] * 3, *["ready 1 after timeout"] * 3]


def test_a_preempted_run_starts_again_with_all_of_its_roles(login: Login) -> None:
    login.write("again.py", AGAIN)
    how = ("--partition", "low", "--max-requeues", "1", "--log-ranks", "all")
    run = login.follow("low", *how, *AGAIN_ONCE)
    run.wait_for("ready 0 after nothing", times=3)

    login.slurm.sbatch("#!/bin/sh\n", "--partition=high", "--nodes=4", "--exclusive")
    done = run.end()

    assert done.exit_code == 0, done.stderr
    assert attempts(done) == [*["ready 0 after nothing"] * 3, *["ready 1 after preempted"] * 3]
    assert "started again by the scheduler after preemption, attempt 1" in done.stderr


def test_a_lost_host_of_one_role_ends_the_run_and_all_components(mishaps: Login) -> None:
    slurm = mishaps.slurm
    mishaps.write("again.py", AGAIN)
    words = ("--role", "one:1:again.py 9", "--role", "two:2:again.py 9", "--gres", "none")
    run = mishaps.follow("lost", "--max-requeues", "0", *words)
    run.wait_for("ready", times=3)
    lost = agent(run, 2)["host"]
    host = next(host for host in slurm.hosts if host.name == lost)

    host.kill()
    try:
        done = run.end()
    finally:
        slurm.start_slurmd(host)

    assert done.exit_code == 1, done.stderr
    status = run.status()
    assert (status["state"], status["cause"]["class"], status["cause"]["host"]) == ("failed", "node", lost)
    assert set(mishaps.queue("%T", f"--jobs={job_of(run)}")) == {"NODE_FAIL"}
    slurm.wait_state(host, "IDLE")
