"""`distlaunch slurm` on a cluster with slurmdbd, which records the results of jobs, and without a topology."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.slurm.conftest import Login, Run, idle_afterwards
from tests.slurm.scripts import SHOW, WAITS, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.slurm import Slurm
    from tests.command import Cli

pytestmark = pytest.mark.slurm


@pytest.fixture
def accounted(slurm_accounting: Slurm, distlaunch: Cli) -> Iterator[Login]:
    """Leaves the cluster idle."""
    with idle_afterwards(Login(distlaunch, slurm_accounting)) as login:
        yield login


def test_a_run_and_an_account_and_qos_that_its_cluster_does_not_know(accounted: Login) -> None:
    accounted.write("show.py", SHOW)

    said = accounted.each(
        {
            "done": ("slurm", "--nodes", "4", "--log-ranks", "all", "show.py"),
            "account": ("slurm", "--account", "nobodys", "show.py"),
            "qos": ("slurm", "--qos", "nothing", "show.py"),
        }
    )

    assert [row[3] for row in found(said["done"])] == ["n1", "n2", "n3", "n4"]
    for name in ("account", "qos"):
        assert said[name].exit_code == 2, said[name].stderr
        assert said[name].stderr.startswith("error[bad_spec]: sbatch: "), said[name].stderr
        assert f"Invalid {name}" in said[name].stderr
    assert "hint: your accounts: sacctmgr show assoc" in said["account"].stderr
    assert "hint: your QOS: sacctmgr show assoc" in said["qos"].stderr


def test_a_run_that_was_cancelled_is_a_cancelled_job_in_accounting(accounted: Login) -> None:
    accounted.write("waits.py", WAITS)
    run = accounted.detach("told", "--nodes", "2", "waits.py")
    run.wait_for("ready", times=2)
    job = run.job

    done = accounted("cancel", run.id)

    assert (done.exit_code, done.stdout) == (0, f"{run.id}: cancelled\n"), done.stderr
    accounted.slurm.wait_job(job, "CANCELLED")
    accounted.slurm.forget(job)
    told = accounted.slurm.run(
        ("sacct", "--jobs", job, "--allocations", "--noheader", "--parsable2", "--format=State")
    ).stdout
    assert told.startswith("CANCELLED"), told
    assert run.status()["state"] == "cancelled"


def change_job(run: Run, job: str) -> None:
    """Give a run another job, as when Slurm's job ids start over."""
    path = run.directory / "run.json"
    values = json.loads(path.read_text())
    values["handle"]["job_id"] = job
    path.write_text(json.dumps(values))
    (run.directory / "result.json").unlink(missing_ok=True)


def test_a_job_that_only_accounting_takes_for_running_has_ended(login: Login) -> None:
    """Its end was lost, as Slurm's database was down: sacct calls it running until an administrator corrects that."""
    login.write("waits.py", WAITS)
    run = login.detach("runaway", "--gres", "none", "waits.py")
    run.wait_for("ready")
    login.write("bin/sacct", "#!/bin/sh\necho 'RUNNING|runaway'\n").chmod(0o755)
    env: dict[str, str | None] = {"PATH": f"{login.cli.directory}/bin:{os.environ['PATH']}"}
    job, ours = run.job, login("status", run.id, env=env)
    login.slurm.run(("scontrol", "update", f"JobId={job}", "Comment=theirs"))
    noted = login("status", run.id, env=env)
    change_job(run, "999999")
    gone = login("status", run.id, "--output", "json", env=env).json["result"]

    for known in (ours, noted):
        assert "running" in known.stdout
    assert gone["state"] == "failed", gone


def test_accounting_knows_what_the_queue_has_forgotten(accounted: Login) -> None:
    slurm = accounted.slurm
    accounted.write("waits.py", WAITS)
    held = ("--max-requeues", "0", "--sbatch", "hold")
    lost = accounted.detach("lost", *held, "--nodelist", "n4", "waits.py")
    cancelled = accounted.detach("cancelled", *held, "waits.py")
    stranger = slurm.sbatch("#!/bin/sh\nexec sleep 600\n", "--job-name=stranger")
    jobs = [lost.job, cancelled.job]
    slurm.run(("scontrol", "release", lost.job))
    lost.wait_for("ready")
    slurm.run(("scontrol", "update", "NodeName=n4", "State=DOWN", "Reason=test"))
    slurm.run(("scancel", cancelled.job))
    lost.wait_state("NODE_FAIL")
    cancelled.wait_state("CANCELLED")
    slurm.run(
        ("scontrol", "update", "NodeName=n4", "State=RESUME"), check=False
    )  # unless its slurmd has done so by itself
    slurm.forget(*jobs)

    found = {run.name: run.status() for run in (lost, cancelled)}

    assert (found["lost"]["state"], found["lost"]["cause"]["class"]) == ("failed", "node")
    assert "state NODE_FAIL" in found["lost"]["cause"]["message"]
    assert (found["cancelled"]["state"], found["cancelled"]["cause"]["class"]) == ("cancelled", "cancelled")
    assert "state CANCELLED" in found["cancelled"]["cause"]["message"]
    for run in (lost, cancelled):
        change_job(run, stranger)  # which runs, in the queue and in accounting
        assert slurm.job(stranger)["JobState"] == "RUNNING"
        assert run.status()["state"] not in ("running", "starting", "pending")
