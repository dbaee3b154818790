"""Runs that are ended while they wait, while they run and after they have ended, gently and by force."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from testbed import SlurmOptions, fixtures, wait_until
from tests.slurm.conftest import Login
from tests.slurm.scripts import SHOW, WAITS, seconds_left
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.command import Cli
    from tests.slurm.conftest import Run

pytestmark = pytest.mark.slurm

DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""
"""Only SIGKILL ends it."""


SAVES = """
import os, signal, sys, time
def end(*_):
    if os.environ["RANK"] == "1":
        time.sleep(8)
        print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    signal.pause()
"""
"""Rank 1 saves for a while, and the other one ends at once."""


def assert_cancelled(run: Run) -> None:
    """Its terminal shows that it was cancelled, and nothing untrue."""
    ended = run.end()
    assert ended.exit_code == 130, ended.stderr
    assert ended.stderr.count(f"cancelling {run.id}; once more to kill it\n") == 1
    assert re.search(rf"(?m)^cancelled after .*: {run.id}, job \d+$", ended.stderr), ended.stderr
    assert "warning" not in besides(ended.stderr)
    assert "error" not in ended.stderr
    assert run.status()["state"] == "cancelled"


def test_a_job_that_waits_shows_why_and_is_cancelled_by_command_by_ctrl_c_and_after_scancel(login: Login) -> None:
    login.write("show.py", SHOW)
    blocker = login.slurm.sbatch("#!/bin/sh\nexec sleep 600\n", "--nodes=4", "--exclusive")
    login.slurm.wait_job(blocker, "RUNNING")
    argv = ("--nodes", "4", "--exclusive", "show.py")
    runs = {name: login.detach(name, *argv) for name in ("command", "force", "gone")}
    runs["ctrl-c"] = login.follow("ctrl-c", *argv)
    for run in runs.values():
        run.wait_reason("Resources", "Priority")
    waiting = runs["command"].status()
    login.slurm.run(("scancel", runs["gone"].job))

    runs["ctrl-c"].interrupt()
    cancelled = login.each(
        {
            name: ("cancel", runs[name].id, *(["--force"] if name == "force" else []))
            for name in ("command", "force", "gone")
        }
    )

    assert waiting["state"] == "pending"
    assert re.fullmatch(
        r"job \d+ waits: (Resources|Priority)( \(.*\))?(, expected start \d{4}-\d\d-\d\dT[\d:]{8})?", waiting["detail"]
    ), waiting
    for name, said in cancelled.items():
        assert (said.exit_code, said.stdout, said.stderr) == (0, f"{runs[name].id}: cancelled\n", ""), name
    assert_cancelled(runs["ctrl-c"])
    assert runs["ctrl-c"].shown("stdout") == ""
    states = dict(line.split() for line in login.queue("%A %T"))
    assert [states[run.job] for run in runs.values()] == ["CANCELLED"] * 4
    for run in runs.values():
        cause = run.status()["cause"]
        assert (cause["class"], cause["message"]) == ("cancelled", "cancelled before it started")
        again = login("cancel", run.id)
        assert (again.exit_code, again.stdout, again.stderr) == (0, f"{run.id}: cancelled\n", "")


def test_cancel_and_ctrl_c_give_running_workers_their_grace_time(login: Login) -> None:
    login.write("waits.py", WAITS)
    login.write("show.py", SHOW)
    argv = ("--nodes", "2", "--grace", "300s", "waits.py")
    command, ctrl_c, ended = (
        login.detach("command", *argv),
        login.follow("ctrl-c", *argv),
        login.follow("ended", "show.py"),
    )
    for run in (command, ctrl_c):
        run.wait_for("ready", times=2)
    ended.end()

    ctrl_c.interrupt()
    said = {run.name: login("cancel", run.id) for run in (command, ended)}

    assert (said["command"].exit_code, said["command"].stdout, said["command"].stderr) == (
        0,
        f"{command.id}: cancelled\n",
        "",
    )
    assert (said["ended"].exit_code, said["ended"].stdout, said["ended"].stderr) == (0, f"{ended.id}: success\n", "")
    assert_cancelled(ctrl_c)
    for run in (command, ctrl_c):
        left = seconds_left(run.text())
        assert len(left) == 2, run.text()
        assert all(0 < seconds <= 300 for seconds in left)
        assert run.status()["state"] == "cancelled"
        login.slurm.wait_job(run.job, "CANCELLED")
    login.slurm.wait_idle()


def test_a_node_has_its_grace_time_however_long_another_one_is_gone(login: Login) -> None:
    """`SLURM_WAIT` stands for a cluster's `WaitTime`, after which srun kills the others."""
    login.write("saves.py", SAVES)
    run = login.detach("saves", "--nodes", "2", "--grace", "300s", "saves.py", env={"SLURM_WAIT": "1"})
    run.wait_for("ready", times=2)

    login("cancel", run.id)

    assert " saved\n" in run.text()
    assert run.status()["state"] == "cancelled"


def test_a_job_that_slurm_has_suspended_is_cancelled(login: Login) -> None:
    """Its processes are stopped, so none of them can obey."""
    login.write("waits.py", WAITS)
    run = login.detach("asleep", "waits.py")
    run.wait_for("ready")
    login.slurm.run(("scontrol", "suspend", run.job))
    login.slurm.wait_job(run.job, "SUSPENDED")

    done = login("cancel", run.id)

    assert (done.exit_code, done.stdout) == (0, f"{run.id}: cancelled\n"), done.stderr
    login.slurm.wait_job(run.job, "CANCELLED")
    login.slurm.wait_idle()


def test_a_job_whose_nodes_are_booting_is_cancelled(distlaunch: Cli) -> None:
    """Slurm has a job in the same state while the controller's prolog runs."""
    prolog = distlaunch.write("prolog", "#!/bin/sh\nexec sleep 600\n")
    prolog.chmod(0o755)
    with fixtures.make(1, slurm=SlurmOptions(conf={"PrologSlurmctld": str(prolog)})) as testbed:
        login = Login(distlaunch, testbed.slurm)
        login.write("waits.py", WAITS)
        run = login.detach("boots", "waits.py")
        run.wait_state("CONFIGURING")

        done = login("cancel", "--no-wait", run.id)

        assert done.exit_code == 0, done.stderr
        login.slurm.wait_job(run.job, "CANCELLED")


@pytest.fixture
def patient(login: Login) -> Iterator[Login]:
    """Slurm's own kill gives ten minutes between SIGTERM and SIGKILL."""
    before = str(login.slurm.options.kill_wait_s)
    login.slurm.configure(KillWait="600")
    yield login
    login.slurm.configure(KillWait=before)


def test_force_kills_at_once_however_long_the_cluster_gives_killed_jobs(patient: Login) -> None:
    """The workers ignore SIGTERM, their grace time and Slurm's KillWait are ten minutes: only SIGKILL ends them."""
    login = patient
    login.write("deaf.py", DEAF)
    argv = ("--nodes", "2", "--grace", "600s", "deaf.py")
    twice, forced = login.follow("twice", *argv), login.detach("forced", *argv)
    array = login.detach("array", "--array", "0-1", *argv)
    for run in (twice, forced):
        run.wait_for("ready", times=2)
    array.wait_for("ready", times=4)

    twice.interrupt()
    twice.wait_shown("stderr", f"cancelling {twice.id}; once more to kill it")
    twice.wait_for_event("stopping", times=2)
    twice.interrupt()
    killed = login.each({run.name: ("cancel", "--force", run.id) for run in (forced, array)})

    ended = twice.end()
    assert ended.exit_code == 130, ended.stderr
    assert f"killing {twice.id}\n" in ended.stderr
    assert "has not ended" not in ended.stderr
    assert "warning" not in besides(ended.stderr)
    for run in (forced, array):
        said = killed[run.name]
        assert (said.exit_code, said.stdout, said.stderr) == (0, f"{run.id}: cancelled\n", ""), run.name
    login.slurm.wait_idle()  # no process is left


def test_scancel_from_outside_is_a_cancelled_run(login: Login) -> None:
    login.write("waits.py", WAITS)
    run = login.follow("outside", "--nodes", "2", "waits.py")
    run.wait_for("ready", times=2)

    login.slurm.run(("scancel", run.job))

    ended = run.end()
    assert ended.exit_code == 130, ended.stderr
    status = run.status()
    assert (status["state"], status["cause"]["class"]) == ("cancelled", "cancelled")


def test_a_worker_that_alone_was_sent_sigterm_has_failed(login: Login) -> None:
    """Slurm's own SIGTERM reaches workers and agents at about the same time, and is not a failure."""
    login.write(
        "kills.py",
        "import os, signal\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()\n",
    )

    done = login("slurm", "--nodes", "2", "kills.py")

    assert done.exit_code == 1, done.stderr
    assert re.search(
        r"a process was killed: killed by SIGTERM, .*\n  first failure: rank 1, host n\d, node 1, signal SIGTERM\n",
        done.stderr,
    )


def _listens(agent: int) -> bool:
    """Whether the process of its worker group listens."""
    with suppress(psutil.Error):  # one of them has just ended
        return any(each.num_threads() > 2 for each in psutil.Process(agent).children(recursive=True))
    return False


def test_an_agent_that_is_killed_before_the_rendezvous_ends_its_job_and_is_named(login: Login) -> None:
    login.write("slow.py", "import time\ntime.sleep(600)\n")
    login.write("never.py", "print('never')\n")
    run = login.detach("killed", "--nodes", "2", "--max-requeues", "0", "--preload", "slow", "never.py")
    run.wait_for_event("agent_started", times=2)
    agent = json.loads((run.directory / "nodes/1/agent.json").read_text())["pid"]
    wait_until("the worker group to listen", lambda: _listens(agent), limit_s=60)

    os.kill(agent, signal.SIGKILL)
    login.slurm.wait_idle()

    status = run.status()
    assert status["state"] == "failed"
    cause = status["cause"]
    assert (cause["class"], cause["node"], cause["signal"]) == ("killed", 1, "SIGKILL")
    assert cause["message"] == f"the agent (pid {agent}) was killed by SIGKILL"
