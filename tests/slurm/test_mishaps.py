"""Lost nodes, a lost network, a lost controller."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.slurm.scripts import AGAIN, HOLDS
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

TRAINS = """
import signal, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_lost_hosts_end_runs_or_start_them_again_and_are_named(mishaps: Login) -> None:
    slurm = mishaps.slurm
    hosts = slurm.hosts
    mishaps.write("again.py", AGAIN)
    mishaps.write("trains.py", TRAINS)
    never = ("--nodes", "2", "--max-requeues", "0", "--nodelist")
    over = mishaps.follow("over", *never, "n[1-2]", "trains.py")
    cut = mishaps.follow("cut", *never, "n[3-4]", "again.py", "9")
    again = mishaps.follow("again", "--nodes", "2", "--nodelist", "n[5-6]", "again.py", "1")
    for run in (over, cut, again):
        run.wait_for("ready", times=2)

    hosts[1].kill()
    hosts[3].cut_off()
    hosts[4].kill()  # where srun is, too
    try:
        ended = {run: run.end() for run in (over, cut)}
        for index in (0, 2, 5):
            slurm.wait_state(hosts[index], "IDLE")
        slurm.wait_state(hosts[4], "DOWN")
    finally:
        hosts[3].reconnect()
        for index in (1, 4):
            slurm.start_slurmd(hosts[index])
    once_more = again.end()

    for run, lost in ((over, "n2"), (cut, "n4")):
        said, status = ended[run], run.status()
        assert said.exit_code == 1, said.stderr
        assert (status["state"], status["cause"]["class"], status["cause"]["host"]) == ("failed", "node", lost)
        assert re.search(rf"a node failed: .*\n  first failure: .*host {lost}, node 1", said.stderr), said.stderr
    assert once_more.exit_code == 0, once_more.stderr
    assert once_more.stdout.splitlines() == ["ready 0 after nothing", "ready 1 after node"]
    assert "started again by the scheduler after a lost node, attempt 1" in once_more.stderr


def test_a_run_survives_its_controller_and_without_one_all_errors_are_clear(mishaps: Login) -> None:
    slurm = mishaps.slurm
    mishaps.write("holds.py", HOLDS)
    followed = mishaps.follow("followed", "--nodes", "2", "holds.py")
    other = mishaps.detach("other", "holds.py")
    followed.wait_for("ready", times=2)
    other.wait_for("ready")
    job = followed.job
    slurm.wait_saved()

    slurm.stop_controller(signal.SIGKILL)
    commands = {
        "submit": ("slurm", "--detach", "holds.py"),
        "status": ("status", other.id),
        "ls": ("ls",),
        "cancel": ("cancel", other.id),
    }
    said = mishaps.each(commands)
    said["requeue"] = mishaps("requeue", other.id)  # not while it is being cancelled
    slurm.start_controller()
    slurm.restart_controller(signal.SIGTERM)
    slurm.run(("scancel", "--signal=USR1", job))
    ended = followed.end()

    for name in ("submit", "cancel", "requeue"):
        assert said[name].exit_code == 3, said[name].stderr
        lines = [line for line in said[name].stderr.splitlines() if not re.search(r"\(\d+ s\)$", line)]  # waits
        assert lines[0].startswith("error[backend_unavailable]: "), said[name].stderr
        assert "Unable to contact slurm controller" in said[name].stderr
        assert "\\n" not in said[name].stderr
    assert "nothing was submitted" in said["submit"].stderr
    assert "stopping" not in other.text()
    assert not (other.directory / "cancel.json").exists(), "no agent was told"
    for name in ("status", "ls"):
        assert said[name].exit_code == 0, said[name].stderr
        assert besides(said[name].stderr) == "", said[name].stderr
    assert "squeue does not answer" in said["status"].stdout
    assert {line.split()[0] for line in said["ls"].stdout.splitlines()} > {followed.id, other.id}
    assert not any("Traceback" in each.stderr for each in said.values())
    assert ended.exit_code == 0, ended.stderr
    assert "success after" in ended.stderr
    assert slurm.job(other.job)["JobState"] == "RUNNING", "cancelling it was refused"
    again = mishaps("cancel", other.id)
    assert (again.exit_code, again.stdout, again.stderr) == (0, f"{other.id}: cancelled\n", "")
