"""Lost nodes, a lost network, a lost controller."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.command import Result
from tests.testbed import wait_until

if TYPE_CHECKING:
    import subprocess

    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm

SCRIPT = """
import os, sys, time
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print(f"ready {attempt} after {os.environ.get('DISTLAUNCH_ATTEMPT_REASON', 'nothing')}", flush=True)
while attempt < sys.argv[1] and not os.path.exists("go"):
    time.sleep(0.1)
"""
"""Ends in the attempt of that number, or when told to."""


def run_named(login: Login, name: str) -> str:
    return next((folder.name for folder in login.cli.runs.glob(f"{name}-*")), "")


def wait_ready(login: Login, name: str) -> None:
    """Until rank 0 of a run has begun."""
    wait_until(
        f"{name} to run", lambda: "ready" in login("logs", run_named(login, name) or "none").stdout, limit_s=90, every_s=0.5
    )


def end(terminal: subprocess.Popen[bytes]) -> Result:
    stdout, stderr = terminal.communicate(timeout=120)
    return Result(terminal.returncode, stdout.decode(), stderr.decode())


def test_lost_hosts_end_runs_or_start_them_again_and_are_named(mishaps: Login) -> None:
    slurm = mishaps.slurm
    hosts = slurm.hosts
    mishaps.write("again.py", SCRIPT)

    def start(name: str, nodes: str, *args: str) -> subprocess.Popen[bytes]:
        return mishaps.start("slurm", "--name", name, "--nodes", "2", "--nodelist", nodes, *args)

    terminals = {
        "over": start("over", "n[1-2]", "--max-requeues", "0", "again.py", "9"),
        "cut": start("cut", "n[3-4]", "--max-requeues", "0", "again.py", "9"),
        "again": start("again", "n[5-6]", "again.py", "1"),
    }
    for name in terminals:
        wait_ready(mishaps, name)

    hosts[1].kill()
    hosts[3].cut_off()
    hosts[4].kill()  # where srun is, too
    try:
        ended = {name: end(terminals[name]) for name in ("over", "cut")}
        for index in (0, 2, 5):
            slurm.wait_state(hosts[index], "IDLE", limit_s=60)
        slurm.wait_state(hosts[4], "DOWN")
    finally:
        hosts[3].reconnect()
        for index in (1, 4):
            slurm.start_slurmd(hosts[index])
    again = end(terminals["again"])

    for name, lost in (("over", "n2"), ("cut", "n4")):
        status = mishaps("status", run_named(mishaps, name), "--output", "json").json["result"]
        assert ended[name].exit_code == 1, ended[name].stderr
        assert (status["state"], status["cause"]["class"], status["cause"]["host"]) == ("failed", "node", lost)
        assert re.search(rf"a node failed: .*\n  first failure: .*host {lost}, node 1", ended[name].stderr), ended[name].stderr
    assert again.exit_code == 0, again.stderr
    assert again.stdout.splitlines() == ["ready 0 after nothing", "ready 1 after node"]
    assert "started again by the scheduler after a lost node, attempt 1" in again.stderr


def test_a_run_survives_its_controller_and_without_one_all_is_said_clearly(mishaps: Login) -> None:
    slurm = mishaps.slurm
    mishaps.write("again.py", SCRIPT)
    followed = mishaps.start("slurm", "--name", "followed", "--nodes", "2", "again.py", "9")
    other = mishaps("slurm", "--detach", "--name", "other", "again.py", "9").stdout.strip()
    wait_ready(mishaps, "followed")
    wait_ready(mishaps, "other")
    slurm.wait_saved()

    slurm.stop_controller(signal.SIGKILL)
    commands = {
        "submit": mishaps.start("slurm", "--detach", "again.py", "9"),
        "status": mishaps.start("status", other),
        "ls": mishaps.start("ls"),
        "cancel": mishaps.start("cancel", other),
        "requeue": mishaps.start("requeue", other),
    }
    said = {name: end(command) for name, command in commands.items()}
    slurm.start_controller()
    slurm.restart_controller(signal.SIGTERM)
    mishaps.write("go", "")
    ended = end(followed)

    for name in ("submit", "cancel", "requeue"):
        assert said[name].exit_code == 3, said[name].stderr
        assert said[name].stderr.startswith("error[backend_unavailable]: "), said[name].stderr
        assert "Unable to contact slurm controller" in said[name].stderr
    assert "nothing was submitted" in said["submit"].stderr
    for name in ("status", "ls"):
        assert said[name].exit_code == 0, said[name].stderr
    assert "squeue does not answer" in said["status"].stdout
    assert not any("Traceback" in each.stderr for each in said.values())
    assert ended.exit_code == 0, ended.stderr
    assert "success after" in ended.stderr
