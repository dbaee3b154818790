"""The job file counts, whatever the user's shell and the job in which it may be have as variables."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from launcher.backends.slurm import inherited
from tests.slurm.commands import pretend
from tests.slurm.scripts import WAITS

if TYPE_CHECKING:
    from tests.command import Cli
    from tests.slurm.conftest import Login
    from tests.slurm.laptop import Laptop

THEIRS = {"SBATCH_JOB_NAME": "theirs", "SBATCH_TIMELIMIT": "1", "SBATCH_NO_REQUEUE": "1", "SBATCH_OUTPUT": "/dev/null"}
TELLS = """
import os, subprocess
job = subprocess.run(["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]], capture_output=True, text=True).stdout
told = dict(word.partition("=")[::2] for word in job.split())
print(told["JobName"], told["TimeLimit"], told["Requeue"], os.environ.get("FROM_SETUP"), flush=True)
"""
OUTER = {
    "SLURM_JOB_ID": "4000",
    "SLURM_ARRAY_JOB_ID": "4000",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_GPUS_PER_TASK": "1",
    "SLURM_EXPORT_ENV": "NONE",
}


def test_variables_of_sbatch_count_where_the_job_file_says_nothing() -> None:
    job_file = "#!/bin/bash\n#SBATCH --time=1\n#SBATCH --mem=4G\n#SBATCH --gpus-per-node=2\n#SBATCH --exclusive\n"
    env = {"SBATCH_ACCOUNT": "a", "SBATCH_TIMELIMIT": "9", "SBATCH_MEM_PER_CPU": "1G", "SBATCH_EXCLUSIVE": "user"}

    assert inherited.without_them({**env, "SLURM_CONF": "x"}, inherited.stated(job_file)) == {
        "SBATCH_ACCOUNT": "a",
        "SLURM_CONF": "x",
    }
    assert "SBATCH_GPUS_PER_NODE" in inherited.stated(job_file)
    assert inherited.stated("#SBATCH --clusters=b\n") == ["SBATCH_CLUSTERS", "SLURM_CLUSTERS"]


@pytest.mark.slurm
def test_a_job_has_what_was_asked_for_and_workers_have_what_the_setup_says(login: Login) -> None:
    login.write("tells.py", TELLS)
    login.write("strict.sh", "set -euo pipefail\nexport FROM_SETUP=yes\n")
    options = ("--time", "5m", "--max-requeues", "1", "--sbatch", "export=NONE", "--setup", "@strict.sh")

    done = login("slurm", "--name", "ours", *options, "tells.py", env=dict(THEIRS))

    assert (done.exit_code, done.stdout) == (0, "ours 00:05:00 1 yes\n"), done.stderr


@pytest.mark.slurm
def test_behind_a_login_node_too(laptop: Laptop) -> None:
    laptop.cli.write("tells.py", TELLS)
    before = laptop.node.settings()["SetEnv"]
    laptop.node.change(SetEnv=" ".join([before, *(f"{name}={value}" for name, value in THEIRS.items())]))
    try:
        done = laptop("run", "--on", "juno", "--name", "ours", "--time", "5m", "--max-requeues", "1", "tells.py")
    finally:
        laptop.node.change(SetEnv=before)

    assert (done.exit_code, done.stdout) == (0, "ours 00:05:00 1 None\n"), done.stderr


@pytest.mark.slurm
@pytest.mark.parametrize("with_shell", [True, False])
def test_workers_behind_a_login_node_have_the_umask_of_the_user_there(laptop: Laptop, *, with_shell: bool) -> None:
    laptop.cli.write("shows.py", "import os\nprint(f'umask {os.umask(0):o}', flush=True)\n")
    laptop.settings(**({} if with_shell else {"login_shell": "none"}))
    laptop.top.mkdir()
    laptop.node.change(ForceCommand='umask 027; exec sh -c "$SSH_ORIGINAL_COMMAND"')
    try:
        done = laptop("run", "--on", "juno", "--gres", "none", "shows.py")
        again = laptop("requeue", "last") if with_shell else None
        laptop.wait_end()
    finally:
        laptop.node.configure(ForceCommand="")

    assert done.exit_code == 0, done.stderr
    shown = "".join(path.read_text() for path in laptop.top.glob("runs/*/**/stream"))
    assert shown.count(" umask 27\n") == (1 if again is None else 2), shown


@pytest.mark.slurm
def test_what_hides_jobs_and_partitions_from_slurms_commands_hides_none_of_ours(login: Login) -> None:
    login.write("waits.py", WAITS)
    hiding: dict[str, str | None] = {
        "SQUEUE_NAMES": "others",
        "SQUEUE_STATES": "PENDING",
        "SQUEUE_USERS": "nobody",
        "SINFO_PARTITION": "none",
        "SCANCEL_NAME": "others",
        "SCANCEL_INTERACTIVE": "1",
    }
    run = login.detach("seen", "waits.py", env=hiding)
    run.wait_for("ready")

    state = login("status", run.id, "--output", "json", env=hiding).json["result"]["state"]
    listed = login("ls", "--on", "slurm", "--output", "json", env=hiding).json["result"]["runs"]
    done = login("cancel", run.id, env=hiding)

    assert (state, done.exit_code, done.stdout) == ("running", 0, f"{run.id}: cancelled\n"), done.stderr
    assert run.id in [row["run"] for row in listed]


def test_sbatch_sees_no_variables_of_the_job_that_it_is_called_in(distlaunch: Cli) -> None:
    distlaunch.write("show.py", "print(1)\n")
    env = pretend(distlaunch, {"sbatch": "env >seen\necho Submitted batch job 7\n"})

    done = distlaunch("slurm", "--new-job", "--detach", "show.py", env={**env, **OUTER, "SLURM_CONF": "/x"})

    assert done.exit_code == 0, done.stderr
    seen = (distlaunch.directory / "seen").read_text().splitlines()
    assert [line for line in seen if line.startswith("SLURM_")] == ["SLURM_CONF=/x"]


def test_a_job_file_is_about_its_own_job_and_step(distlaunch: Cli) -> None:
    """It is run with the variables of an outer job, and programs in place of Slurm's that record how they are called.

    Strict options of a setup line do not keep it from looking at srun's exit code.
    """
    record = 'echo "${0##*/} $*" >>called\nenv | grep ^SLURM_ >>seen\n'
    env = pretend(distlaunch, {"srun": f"{record}exit 3\n", "scancel": f"{record}exit 1\n", "sleep": ""})
    distlaunch.write("show.py", "print(1)\n")
    options = ("--setup", "set -euo pipefail; export SLURM_MEM_BIND=local", "--render-to", "job")
    assert distlaunch("slurm", *options, "show.py", env=env).exit_code == 0
    job = distlaunch.directory / "job"
    (job / "cancel.json").touch()

    ran = subprocess.run(
        ["bash", "job.sbatch"], cwd=job, check=False, timeout=60, capture_output=True,
        env={**os.environ, "PATH": str(env["PATH"]), **OUTER, "SLURM_JOB_ID": "77", "SLURM_SUBMIT_DIR": str(job)},
    )  # fmt: skip

    called = (distlaunch.directory / "called").read_text().splitlines()
    seen = {line.partition("=")[0] for line in (distlaunch.directory / "seen").read_text().splitlines()}
    assert ran.returncode == 3, ran
    assert called[-1] == "scancel 77"
    assert not seen & {"SLURM_CPU_BIND", "SLURM_GPUS_PER_TASK", "SLURM_EXPORT_ENV"}
    assert "SLURM_MEM_BIND" in seen, "the setup's own choice"
