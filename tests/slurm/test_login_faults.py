"""A cluster behind its login node that fails in parts: what is told, that nothing is lost, and nothing done twice."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.slurm.laptop import LIMIT_S
from tests.slurm.test_through_login import WAITS
from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from tests.slurm.laptop import Following, Laptop

pytestmark = pytest.mark.slurm

ASLEEP_S = 70
FOLLOWERS = 12
OTHER = 65534


def jobs(laptop: Laptop) -> list[str]:
    return laptop.node.slurm.run(("squeue", "--states=all", "--noheader", "--format=%k")).stdout.split()


def complete(follower: Following, count: int) -> None:
    """The run ended well, and each line was shown once."""
    code, said = follower.end()
    assert code == 0, said
    assert follower.lines == [f"line {number}" for number in range(count)]


def test_a_connection_that_carries_no_more_commands_is_not_taken_for_a_missing_one(laptop: Laptop) -> None:
    """A site that asks for a second factor lets a command through no other connection."""
    laptop.cli.write("waits.py", WAITS)
    laptop.node.configure(MaxSessions="1")
    try:
        follower = laptop.follow("--gres", "none", "waits.py", "60", "0.3")
        follower.wait_line("line 2")
        laptop.node.refuse_keys()
        done = laptop("ls", "--on", "juno")
        complete(follower, 60)
    finally:
        laptop.node.configure(MaxSessions="")

    assert done.exit_code == 3
    assert "Session open refused by peer" in done.stderr
    assert "MaxSessions" in done.stderr


def test_while_the_controller_is_down_nothing_is_submitted_and_what_runs_goes_on(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    follower = laptop.follow("--gres", "none", "waits.py", "240", "0.3")
    follower.wait_line("line 2")
    laptop.node.slurm.wait_saved()
    laptop.node.slurm.stop_controller()
    try:
        run = laptop.status()["run"]
        refused = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
        state = laptop.status(run)
        logs = laptop("logs", run)
        listed = laptop("ls", "--on", "juno")
    finally:
        laptop.node.slurm.start_controller()

    for done in (refused, listed):
        assert done.exit_code == 3, done.stderr
        assert done.stderr.count("error[") == 1
        assert "slurmctld does not answer" in done.stderr
    assert "nothing was submitted" in refused.stderr
    left = laptop.status()
    assert left["state"] == "failed"
    assert (state["state"], state["detail"]) == ("running", "squeue does not answer")
    assert "[0:0] line 2\n" in logs.stdout
    complete(follower, 240)
    assert [jobs(laptop).count(f"distlaunch:{each}") for each in (run, left["run"])] == [1, 0]


def test_a_cluster_that_takes_a_minute_to_answer_is_waited_for_and_named(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    for program in ("squeue", "sbatch"):
        laptop.node.stand_in(program, 'sleep 60; exec "$real" "$@"')
    try:
        glance = laptop("clusters", "--output", "json")
        done = laptop("run", "--on", "juno", "--gres", "none", "--detach", "waits.py", "600", "0.3")
        seen = laptop("status", "last")
    finally:
        laptop.node.stand_in("squeue")
        laptop.node.new_sbatch('exec "$sbatch" "$@"')

    assert glance.exit_code == 3
    assert glance.json["result"]["clusters"][0]["problem"] == "no answer within 10 s"
    assert done.exit_code == 0, done.stderr
    assert "submitting to slurm (20 s)" in done.stderr
    assert seen.exit_code == 0
    assert "squeue does not answer" in seen.stdout
    assert "asking slurm for" in seen.stderr
    assert jobs(laptop).count(f"distlaunch:{done.stdout.strip()}") == 1


def test_a_login_shell_that_hangs_is_told_and_nothing_is_submitted(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    laptop.node.configure(ForceCommand="sleep 600")
    try:
        refused = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
        listed = laptop("ls", "--on", "juno")
    finally:
        laptop.node.configure(ForceCommand="")
    after = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")

    for done in (refused, listed):
        assert done.exit_code == 3
        assert "juno does not answer within 15 s" in done.stderr
    assert "nothing was submitted" in refused.stderr
    assert (after.exit_code, after.stdout) == (0, "line 0\n"), after.stderr


def test_a_login_shell_that_hangs_for_one_command_ends_the_connection_of_no_other(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    slow = laptop.cli.write("slow", "")
    shell = laptop.cli.write("shell", f'#!/bin/sh\n[ ! -e {slow} ] || sleep 20\neval "$SSH_ORIGINAL_COMMAND"\n')
    shell.chmod(0o755)
    slow.unlink()
    laptop.node.configure(ForceCommand=str(shell))
    try:
        follower = laptop.follow("--gres", "none", "waits.py", "80", "0.3")
        follower.wait_line("line 2")
        ssh = follower.connections()
        slow.touch()
        by_keys = laptop("ls", "--on", "juno")
        kept = follower.connections()
        slow.unlink()
        complete(follower, 80)
        laptop("login", "juno", "--close")
        argv, env = (sys.executable, "-m", "launcher", "login", "juno"), laptop.cli.env(laptop.env())
        with Screen(argv, env=env, cwd=laptop.cli.directory) as screen:
            assert screen.end() == 0
        slow.touch()
        by_user = laptop("ls", "--on", "juno")
        slow.unlink()
        laptop.node.refuse_keys()
        after = laptop("ls", "--on", "juno")
    finally:
        laptop.node.configure(ForceCommand="")

    for done in (by_keys, by_user):
        assert "juno does not answer within 15 s" in done.stderr
    assert ssh == kept != []
    assert after.exit_code == 0, after.stderr


def test_a_laptop_that_sleeps_shows_each_line_once_when_it_wakes(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    follower = laptop.follow("--gres", "none", "waits.py", "200", "0.4")
    follower.wait_line("line 2")
    laptop.signal(signal.SIGSTOP)
    time.sleep(ASLEEP_S)
    laptop.signal(signal.SIGCONT)

    complete(follower, 200)


def test_a_follower_continues_when_its_connection_is_killed_or_carries_nothing(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    follower = laptop.follow("--gres", "none", "waits.py", "250", "0.3")
    follower.wait_line("line 2")
    laptop.signal(signal.SIGKILL, "ControlMaster")
    killed = laptop("ls", "--on", "juno")
    follower.wait_line("line 20")
    laptop.node.freeze()
    frozen = laptop("ls", "--on", "juno")
    later = laptop("ls", "--on", "juno")

    assert killed.exit_code == later.exit_code == 0, later.stderr
    assert frozen.exit_code == 3
    assert "juno does not answer within 15 s" in frozen.stderr or "is not reached" in frozen.stderr
    complete(follower, 250)


def test_a_connection_whose_process_was_killed_is_opened_again_and_shared(laptop: Laptop) -> None:
    first = laptop("ls", "--on", "juno")
    laptop.signal(signal.SIGKILL, "ControlMaster")
    again = laptop("ls", "--on", "juno")
    laptop.node.refuse_keys()
    shared = laptop("ls", "--on", "juno")
    listed = laptop("login", "--output", "json").json["result"]["logins"]

    assert [done.exit_code for done in (first, again, shared)] == [0, 0, 0], shared.stderr
    assert [row["open"] for row in listed] == [True]


def test_more_followers_than_sessions_of_one_connection_all_come_to_their_end(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    laptop.node.configure(MaxSessions="10")
    try:
        run = laptop.detached("--gres", "none", "waits.py", "60", "0.3")
        screens = [laptop.cli.directory / f"screen-{number}" for number in range(FOLLOWERS)]
        followers = []
        for screen in screens:
            with screen.open("wb") as stdout:
                followers.append(laptop.cli.start("logs", "-f", run, env=laptop.env(), stdout=stdout))
        ends = [process.communicate(timeout=2 * LIMIT_S)[1].decode() for process in followers]
        logged = laptop.node.directory.joinpath("sshd.log").read_text()
    finally:
        laptop.node.configure(MaxSessions="")

    assert [process.returncode for process in followers] == [0] * FOLLOWERS, ends
    for screen in screens:
        assert screen.read_text().splitlines() == [f"[0:0] line {number}" for number in range(60)]
    assert "no more sessions" in logged


def test_of_another_users_run_the_state_is_told_and_what_cannot_be_read_is_said(laptop: Laptop) -> None:
    """Rendered here and submitted by that user, as the tests' Python need not be readable for others."""
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        theirs = Path(shared, "run")
        says = ("--no-python", "--grace", "1s", "sh", "-c", "echo ready; exec sleep 600")
        options = ("--python", "/usr/bin/python3", "--name", "theirs")
        laptop("slurm", "--render-to", str(theirs), *options, *says, cwd=shared)
        for path in (theirs, *theirs.iterdir()):
            os.chown(path, OTHER, OTHER)
        user = ("setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups")
        slurm = laptop.node.slurm
        job = slurm.run((*user, "sbatch", "--parsable", "job.sbatch"), cwd=str(theirs)).stdout.strip()
        slurm.wait_job(job, "RUNNING")

        adopted = laptop("adopt", "--on", "juno", job)
        wait_until("its output", lambda: laptop("logs", job).stdout == "[0:0] ready\n", limit_s=LIMIT_S)
        shutil.rmtree(laptop.cli.runs / adopted.stdout.strip())
        away = shutil.move(theirs, f"{theirs} away")
        private = laptop("adopt", "--on", "juno", job)
        state = laptop.status(job)
        logs, fetched, shell = laptop("logs", job), laptop("fetch", job), laptop("shell", job)
        shutil.move(away, theirs)
        cancelled = laptop("cancel", job)
        again = laptop("requeue", job)
        removed = laptop("rm", job)

        assert adopted.exit_code == private.exit_code == 0, private.stderr
        assert (state["state"], state["job_id"]) == ("running", job)
        assert "which nobody does not let others read" in logs.stderr
        assert "which nobody does not let others read" in fetched.stderr
        assert cancelled.stdout.endswith(": cancelled\n"), cancelled.stderr
        assert again.exit_code == 2
        assert "belongs to nobody" in again.stderr
        assert removed.exit_code == 0, removed.stderr
        assert theirs.joinpath("job.sbatch").exists(), "only they remove it"
        for done in (logs, fetched, shell, cancelled, again):
            assert "Traceback" not in done.stderr


def test_a_run_whose_directory_there_cannot_be_written_to_is_cancelled_and_has_met_no_time_limit(
    laptop: Laptop,
) -> None:
    laptop.cli.write("waits.py", WAITS)
    follower = laptop.follow("--gres", "none", "waits.py", "600", "0.1")
    follower.wait_line("line 2")
    host, directory = laptop.node.host, str(laptop.top / "runs" / laptop.status()["run"])
    host.run(("mount", "--bind", directory, directory), check=True, cwd="/")
    host.run(("mount", "-o", "remount,bind,ro", directory), check=True, cwd="/")
    try:
        cancelled = laptop("cancel", "last")
    finally:
        host.run(("umount", "--lazy", directory), check=True, cwd="/")

    assert cancelled.stdout.endswith(": cancelled\n"), cancelled.stderr
    assert "Read-only file system; cancelling without a note for the agents" in cancelled.stderr
    assert follower.end()[0] == 130


def test_a_run_that_another_host_has_adopted_is_started_again_from_there(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    run = laptop.detached("--gres", "none", "waits.py", "3", "0.1")
    laptop.wait_end(run)
    other: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(laptop.home / "other")}
    laptop("adopt", run, "--on", "juno", env=other)

    again = laptop("requeue", run, env=other)
    followed = laptop("logs", "-f", run, env=other)
    twice = laptop("requeue", run, env=other)
    ended = laptop("wait", run, env=other)

    assert (again.exit_code, again.stdout) == (0, f"{run}: attempt 1\n"), again.stderr
    assert followed.stdout.splitlines() == [f"[0:0] line {number}" for number in (0, 1, 2)] * 2
    assert (twice.stdout, ended.stdout) == (f"{run}: attempt 2\n", f"{run}: success\n"), twice.stderr
    assert jobs(laptop).count(f"distlaunch:{run}") == 3
