"""The testbed's Slurm is a real one, and what happens to real ones can happen to it."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from testbed import SlurmOptions, fixtures, wait_until
from tests.plugins import failures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed import Slurm

pytestmark = pytest.mark.slurm
SLEEP = "#!/bin/sh\nexec sleep 1000\n"


@pytest.fixture
def cluster(slurm: Slurm) -> Iterator[Slurm]:
    """The session's Slurm, idle before and after."""
    yield slurm
    slurm.cancel_all()
    slurm.wait_idle()


def test_a_task_runs_on_every_host(cluster: Slurm) -> None:
    names = cluster.run(("srun", "-N4", "-n4", "hostname")).stdout.split()

    assert sorted(names) == ["n1", "n2", "n3", "n4"]


def test_an_ordinary_user_runs_jobs_too(cluster: Slurm) -> None:
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

    names = cluster.run((*as_nobody, "srun", "-N2", "-n2", "id", "-u"), cwd="/").stdout.split()

    assert names == ["65534", "65534"]


def test_a_batch_job_starts_steps_from_within(cluster: Slurm) -> None:
    job = cluster.sbatch("#!/bin/sh\nsrun hostname\n", "-N4", "--output=%j.out")

    assert cluster.wait_job(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert sorted((cluster.directory / f"{job}.out").read_text().split()) == ["n1", "n2", "n3", "n4"]


def test_gpus_are_scheduled(cluster: Slurm) -> None:
    first = cluster.sbatch(SLEEP, "-N4", "--gres=gpu:2")
    cluster.wait_job(first, "RUNNING")
    second = cluster.sbatch("#!/bin/sh\necho $CUDA_VISIBLE_DEVICES\n", "--gres=gpu:2", "--output=%j.out")
    wait_until("the second job to wait for GPUs", lambda: cluster.job(second).get("Reason") == "Resources", limit_s=30)
    cluster.run(("scancel", first))

    assert cluster.wait_job(second, "COMPLETED", "FAILED") == "COMPLETED"
    assert (cluster.directory / f"{second}.out").read_text() == "0,1\n"


def test_without_accounting_sacct_fails(cluster: Slurm) -> None:
    done = cluster.run(("sacct",), check=False)

    assert done.returncode == 1
    assert "accounting storage is disabled" in done.stderr


def test_a_drained_node_gets_no_more_jobs(cluster: Slurm) -> None:
    host = cluster.hosts[2]
    cluster.drain(host, "broken fan")
    try:
        cluster.wait_state(host, "DRAIN")
        refused = cluster.run(("srun", "--immediate=1", "-N4", "true"), check=False)
    finally:
        cluster.resume(host)

    assert refused.returncode != 0
    cluster.wait_state(host, "IDLE")


def test_a_job_outlives_the_controller(cluster: Slurm) -> None:
    job = cluster.sbatch(SLEEP)
    cluster.wait_job(job, "RUNNING")
    cluster.stop_controller(signal.SIGTERM)
    down = cluster.run(("scontrol", "ping"), check=False)
    cluster.start_controller()

    assert down.returncode != 0
    assert cluster.wait_job(job, "RUNNING") == "RUNNING"


def test_a_job_in_high_preempts_one_in_low_which_is_requeued(cluster: Slurm) -> None:
    """Runs that start again after preemption are in tests/slurm/test_again.py."""
    low = cluster.sbatch(SLEEP, "-N4", "--exclusive", "--partition=low")
    cluster.wait_job(low, "RUNNING")
    high = cluster.sbatch("#!/bin/sh\n", "-N4", "--exclusive", "--partition=high")

    assert cluster.wait_job(high, "COMPLETED", "FAILED") == "COMPLETED"
    after = cluster.job(low)
    assert (after["JobState"], after["Restarts"]) == ("PENDING", "1")


def test_a_node_whose_slurmd_was_killed_goes_down_and_recovers() -> None:
    with fixtures.make(2, slurm=SlurmOptions(dead_after_s=3)) as testbed:
        slurm, host = testbed.slurm, testbed.hosts[1]
        slurm.stop_slurmd(host)
        slurm.wait_state(host, "DOWN")
        slurm.start_slurmd(host)
        slurm.wait_idle()

        assert len(slurm.run(("srun", "-N2", "hostname")).stdout.split()) == 2


def test_two_clusters_run_at_once_one_of_them_with_a_topology_and_gpu_types(cluster: Slurm) -> None:
    options = SlurmOptions(switches=(1, 1), gpus_per_host=4, gpu_type="a100", cpus_per_host=64, conf={"MinJobAge": "7"})
    with fixtures.make(2, slurm=options) as other:
        assert "SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n2" in other.slurm.run(("scontrol", "show", "topology")).stdout
        assert other.slurm.run(("sinfo", "-ho", "%G %c", "-p", "main")).stdout.strip() == "gpu:a100:4 64"
        assert other.slurm.run(("srun", "-N2", "--gres=gpu:a100:4", "-c64", "hostname")).stdout.split() != []
        other.slurm.configure(MinJobAge="9")
        assert "MinJobAge               = 9 sec" in other.slurm.run(("scontrol", "show", "config")).stdout
        assert len(cluster.run(("srun", "-N4", "hostname")).stdout.split()) == 4


def test_with_accounting_sacct_answers(slurm_accounting: Slurm) -> None:
    job = slurm_accounting.sbatch("#!/bin/sh\nexit 3\n", "-N2", "--output=/dev/null")

    def states() -> list[str]:
        argv = (
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            "--format=State,ExitCode,NNodes",
            f"--jobs={job}",
        )
        return slurm_accounting.run(argv).stdout.split()

    wait_until(f"sacct to report that job {job} failed", lambda: states() == ["FAILED|3:0|2"], limit_s=60)


CONNECTS = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def test_other_users_of_this_machine_cannot_reach_its_database(slurm_accounting: Slurm) -> None:
    (database,) = slurm_accounting.files.state.glob("**/mariadb.socket")

    for user, reaches in ((0, True), (65534, False)):
        argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "/usr/bin/python3", "-c", CONNECTS]
        done = subprocess.run([*argv, str(database)], capture_output=True, text=True, check=False)
        assert ("PermissionError" not in done.stderr) is reaches, done.stderr


def test_logs_of_its_daemons_are_kept_when_a_test_fails(cluster: Slurm, tmp_path: Path) -> None:
    failures.keep_logs(tmp_path)

    names = {path.name for path in tmp_path.glob("testbed-*/*") if path.stat().st_size}
    assert {"slurmctld.log", "slurmd-n1.log", "slurmd-n4.log"} <= names
