"""Runs that Slurm or a user starts again: preemption, the time limit, `distlaunch requeue`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.command import Cli
from tests.slurm.conftest import Login, idle_afterwards
from tests.slurm.scripts import AGAIN, WAITS, seconds_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.slurm import Slurm
    from tests.slurm.conftest import Run

pytestmark = pytest.mark.slurm

LOW = ("--partition", "low", "--exclude", "n4")
LIMITED = ("--nodelist", "n4", "--time", "1h", "--lead", "20m")
DIES = """
import os, signal, subprocess
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
def end(*_):
    # The next attempt shall not be near its end, too.
    subprocess.run(["scontrol", "update", "JobId=" + os.environ["SLURM_JOB_ID"], "TimeLimit=60"], check=True)
    with open(f"/proc/{os.getppid()}/stat") as file:  # the fork server's
        os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
signal.signal(signal.SIGTERM, end)
print(f"ready {attempt} after {os.environ.get('DISTLAUNCH_ATTEMPT_REASON', 'nothing')}", flush=True)
while attempt < "1":
    signal.pause()
"""
"""Kills its agent when it is told to end: srun then reports no time limit, but a task that was killed."""

OPTIONS = {
    "trains": (*LOW, "--nodes", "2", "train.py", "--out", "kept", "--checkpoint-every", "1", "--epochs", "20000"),
    "anew": (*LOW, "again.py", "1"),
    "never": (*LOW, "--max-requeues", "0", "again.py", "9"),
    "once": (*LOW, "--max-requeues", "1", "again.py", "9"),
    "limit": (*LIMITED, "--max-requeues", "1", "dies.py"),
    "ends": (*LIMITED, "waits.py"),
}
"""Several runs at once: two reach their time limit, one job preempts all others, and a second `once` and `trains`."""


@pytest.fixture(scope="module")
def runs(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """All of them, ended."""
    with idle_afterwards(Login(Cli(tmp_path_factory.mktemp("again")), slurm)) as login:
        login.write("again.py", AGAIN)
        login.write("waits.py", WAITS)
        login.write("dies.py", DIES)
        found = {name: login.follow(name, *options) for name, options in OPTIONS.items()}
        try:
            befall(found, slurm)
            yield found
        finally:
            for run in found.values():
                run.kill()


def befall(runs: dict[str, Run], slurm: Slurm) -> None:
    """What happens to them until they end."""
    for name in ("anew", "never", "once", "limit", "ends"):
        runs[name].wait_for("ready")
    for name in ("limit", "ends"):  # Slurm looks every half a minute whose end is near; now they are within their lead
        slurm.run(("scontrol", "update", f"JobId={runs[name].job}", "TimeLimit=10"))
    runs["trains"].wait_file("kept/checkpoint-*.pt")
    slurm.sbatch("#!/bin/sh\n", "--partition=high", "--nodelist=n[1-3]", "--exclusive")
    runs["once"].wait_for("ready 1 after preempted")
    runs["trains"].wait_for("resumed from")
    runs["trains"].interrupt()
    runs["anew"].end()
    slurm.sbatch("#!/bin/sh\n", "--partition=high", "--nodelist=n[1-3]", "--exclusive")
    for run in runs.values():
        run.end()


def test_a_preempted_training_saves_on_sigterm_and_continues_from_there(runs: dict[str, Run]) -> None:
    ended, logs = runs["trains"].end(), runs["trains"].text()

    saved = re.search(r"SIGTERM: stopped at step (\d+) after [\d,]+ samples; saved (kept/checkpoint-\d+\.pt)", logs)
    assert saved is not None, logs[-2000:]
    assert f"resumed from {saved[2]}: " in logs
    assert "no checkpoint in kept: from the start" in logs.partition("SIGTERM: stopped")[0]
    assert "started again by the scheduler after preemption, attempt 1" in ended.stderr
    assert ended.exit_code == 130
    assert runs["trains"].status()["state"] == "cancelled"  # preempted once more meanwhile, and not started again


def test_a_preempted_script_without_checkpoints_starts_anew_and_is_told_why(runs: dict[str, Run]) -> None:
    ended, status = runs["anew"].end(), runs["anew"].status()

    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout.splitlines() == ["ready 0 after nothing", "ready 1 after preempted"]
    assert "started again by the scheduler after preemption, attempt 1" in ended.stderr
    assert re.search(r"success after .*, attempt 1: ", ended.stderr)
    assert (status["state"], status["attempt"], status["exit_code"]) == ("success", 1, 0)
    assert "attempt 1" in runs["anew"].login("status", runs["anew"].id).stdout


def test_without_requeues_a_preempted_run_has_ended(runs: dict[str, Run]) -> None:
    ended, status = runs["never"].end(), runs["never"].status()

    assert ended.exit_code == 1, ended.stderr
    assert (status["state"], status["exit_code"], status["cause"]["class"]) == ("preempted", 1, "preempted")
    assert "state PREEMPTED" in status["cause"]["message"]
    assert "preempted: Slurm ended job" in ended.stderr
    assert ended.stdout == "ready 0 after nothing\n"


def test_a_run_is_requeued_no_more_often_than_it_may(runs: dict[str, Run]) -> None:
    ended, status = runs["once"].end(), runs["once"].status()

    assert ended.exit_code == 1, ended.stderr
    assert ended.stdout.splitlines() == ["ready 0 after nothing", "ready 1 after preempted"]
    assert (status["state"], status["attempt"]) == ("preempted", 1)


def test_at_its_time_limit_a_run_starts_again_if_it_may_whatever_sruns_exit_code_is(runs: dict[str, Run]) -> None:
    ended, status = runs["limit"].end(), runs["limit"].status()

    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout.splitlines() == ["ready 0 after nothing", "ready 1 after timeout"]
    assert "started again by the scheduler after its time limit, attempt 1" in ended.stderr
    assert (status["state"], status["attempt"]) == ("success", 1)


def test_at_its_time_limit_a_run_ends_by_default_and_its_workers_are_warned_ahead(
    runs: dict[str, Run],
) -> None:
    ended, status = runs["ends"].end(), runs["ends"].status()

    assert ended.exit_code == 124, ended.stderr
    assert (status["state"], status["attempt"], status["cause"]["class"]) == ("timeout", 0, "timeout")
    assert "time limit reached: " in ended.stderr
    (left,) = seconds_left(ended.stdout)
    assert 0 < left < 3600


def test_requeue_starts_a_run_again_whatever_its_state(login: Login) -> None:
    login.write("again.py", AGAIN)
    ended, forgotten = login.follow("ended", "again.py", "0"), login.follow("forgotten", "again.py", "0")
    running = login.follow("running", "--nodelist", "n4", "again.py", "1")
    assert (ended.end().exit_code, forgotten.end().exit_code) == (0, 0)
    running.wait_for("ready 0 after nothing")
    first = forgotten.job
    host = login.slurm.hosts[3]
    login.slurm.drain(host)  # so that it does not start again before it is held

    try:
        requeued = login("requeue", running.id)
        login.slurm.run(("scontrol", "hold", running.job))
        running.wait_state("PENDING")
        waiting = running.status()
        refused = login("requeue", running.id)
    finally:
        login.slurm.resume(host)
    login.slurm.run(("scontrol", "release", running.job))
    again = login("requeue", ended.id, "--output", "json")
    login.slurm.forget(first)
    from_nothing = login("requeue", forgotten.id)

    assert requeued.exit_code == 0, requeued.stderr
    assert waiting["state"] == "pending"
    assert refused.exit_code == 2
    assert re.search(r"job \d+ waits already: JobHeld", refused.stderr), refused.stderr
    assert again.json["result"] == {"run": ended.id, "attempt": 1}
    assert from_nothing.exit_code == 0, from_nothing.stderr
    assert running.end().exit_code == 0, running.end().stderr
    assert running.end().stdout.splitlines() == ["ready 0 after nothing", "ready 1 after preempted"]
    for run in (ended, forgotten):
        status = run.wait_end()
        assert (status["state"], status["attempt"]) == ("success", 1)
        assert login("logs", run.id).stdout.splitlines() == [
            "[0:0] ready 0 after nothing",
            "[0:0] ready 1 after success",
        ]


SLOW_END = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), sys.exit(3)))
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_requeue_waits_for_a_run_that_is_being_cancelled_and_one_that_slurm_does_not_requeue_has_a_way_out(
    login: Login,
) -> None:
    login.write("slow.py", SLOW_END)
    run = login.detach("slow", "--max-requeues", "0", "slow.py")
    run.wait_for("ready")
    first = run.job

    refused = login("requeue", run.id)
    login("cancel", "--no-wait", run.id)
    again = login("requeue", run.id)
    run.wait_for("ready", 2)

    assert refused.exit_code == 2
    assert f"Slurm does not requeue job {first} while it runs" in refused.stderr
    assert f"hint: distlaunch cancel {run.id}, then distlaunch requeue {run.id}\n" in refused.stderr
    assert again.stdout == f"{run.id}: attempt 1\n", again.stderr
    assert run.status()["attempt"] == 1
    assert login.slurm.job(run.job)["JobId"] != first
