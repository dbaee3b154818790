"""`distlaunch slurm` where slurmdbd writes down what has become of jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.slurm.conftest import Login
from tests.testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.command import Cli
    from tests.testbed.slurm import Slurm

pytestmark = pytest.mark.slurm


@pytest.fixture
def accounted(slurm_accounting: Slurm, distlaunch: Cli) -> Iterator[Login]:
    """Leaves the cluster idle."""
    yield Login(distlaunch, slurm_accounting)
    slurm_accounting.cancel_all()
    slurm_accounting.wait_idle()


def test_a_run_and_what_its_cluster_does_not_know(accounted: Login) -> None:
    done = accounted("slurm", "--nodes", "2", "--log-ranks", "all", "reduce.py")
    account = accounted("slurm", "--account", "nobodys", "reduce.py")
    qos = accounted("slurm", "--qos", "nothing", "reduce.py")

    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("after 3") == 2
    assert (account.exit_code, qos.exit_code) == (2, 2)
    assert "Invalid account" in account.stderr
    assert "hint: your accounts: sacctmgr show assoc" in account.stderr
    assert "Invalid qos" in qos.stderr
    assert "hint: your QOS: sacctmgr show assoc" in qos.stderr


def held(login: Login, name: str, *options: str) -> str:
    """A run that waits to be released."""
    argv = ("slurm", "--detach", "--name", name, "--max-requeues", "0", "--sbatch", "hold", *options, "waits.py")
    return login(*argv).stdout.strip()


def job_of(login: Login, run: str, new: str | None = None) -> str:
    """The id of a run's job; `new`: from now on it is that one, as when Slurm's numbers come round again."""
    path = login.cli.runs / run / "run.json"
    values = json.loads(path.read_text())
    values["handle"]["job_id"] = new or values["handle"]["job_id"]
    path.write_text(json.dumps(values))
    return str(values["handle"]["job_id"])


def status(login: Login, run: str) -> dict[str, Any]:
    found: dict[str, Any] = login("status", run, "--output", "json").json["result"]
    return found


def test_what_the_queue_has_forgotten_accounting_tells(accounted: Login) -> None:
    slurm = accounted.slurm
    accounted.write("waits.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    lost, cancelled = held(accounted, "lost", "--nodelist", "n4"), held(accounted, "cancelled")
    stranger = slurm.sbatch("#!/bin/sh\nsleep 600\n", "--job-name=stranger")
    jobs = {run: job_of(accounted, run) for run in (lost, cancelled)}
    slurm.run(("scontrol", "release", jobs[lost]))
    slurm.wait_job(jobs[lost], "RUNNING")
    slurm.run(("scontrol", "update", "NodeName=n4", "State=DOWN", "Reason=test"))
    slurm.run(("scancel", jobs[cancelled]))
    for run, state in ((lost, "NODE_FAIL"), (cancelled, "CANCELLED")):
        slurm.wait_job(jobs[run], state)
    slurm.run(("scontrol", "update", "NodeName=n4", "State=RESUME"), check=False)  # unless its slurmd has done so by itself
    slurm.configure(MinJobAge="2")
    try:
        wait_until("Slurm to forget", lambda: not any(slurm.job(job) for job in jobs.values()), limit_s=120, every_s=1)
    finally:
        slurm.configure(MinJobAge="300")

    found = {run: status(accounted, run) for run in (lost, cancelled)}

    assert (found[lost]["state"], found[lost]["cause"]["class"]) == ("failed", "node")
    assert "state NODE_FAIL" in found[lost]["cause"]["message"]
    assert (found[cancelled]["state"], found[cancelled]["cause"]["class"]) == ("cancelled", "cancelled")
    assert "state CANCELLED" in found[cancelled]["cause"]["message"]
    for run in (lost, cancelled):
        (accounted.cli.runs / run / "result.json").unlink(missing_ok=True)
        job_of(accounted, run, stranger)  # which runs, in the queue and in accounting
        assert slurm.job(stranger)["JobState"] == "RUNNING"
        assert status(accounted, run)["state"] not in ("running", "starting", "pending")
