"""Runs that were started with another runs directory, or by another user, are found by their jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.backends.slurm import steps
from launcher.backends.slurm.site import Site
from testbed import wait_until
from tests.slurm.commands import pretend
from tests.slurm.conftest import Run, end
from tests.slurm.scripts import WAITS, seconds_left
from tests.slurm.test_allocation import salloc

if TYPE_CHECKING:
    from typing import Any

    from tests.command import Cli, Result
    from tests.slurm.conftest import Login
    from tests.slurm.laptop import Laptop

OTHER = 65534
RUN = "train-20250101-000000-aaaa"


class Elsewhere:
    """The same user, with another runs directory."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self.runs = login.cli.directory / "other runs"

    def __call__(self, *args: str) -> Result:
        return self._login(*args, env={"DISTLAUNCH_RUNS_DIR": str(self.runs)})

    def listed(self, *words: str) -> dict[str, dict[str, Any]]:
        """What the cluster knows, by run."""
        done = self("ls", "--on", "slurm", "--output", "json", *words)
        assert done.stderr == "", "a cluster without accounting is nothing to warn about"
        return {row["run"]: row for row in done.json["result"]["runs"]}


@pytest.mark.slurm
def test_a_run_of_another_runs_directory_is_found_by_its_job_and_every_command_works_on_it(login: Login) -> None:
    login.write("waits.py", WAITS)
    run = login.detach("waits", "--nodes", "2", "waits.py")
    array = login.detach("tasks", "--array", "1-2", "--no-python", "sleep", "600")
    run.wait_for("ready", 2)
    here, job = Elsewhere(login), run.job

    rows, before = here.listed(), run.status()
    selected = here.listed("--state", "running,stopping", "--name", "waits", "--since", "1h")
    others = [here("ls", "--on", "slurm", *words) for words in (("--name", "wait"), ("--since", "2999-01-01"))]
    newest = here.listed("--limit", "1", "--name", "tasks")
    unknown = here("status", job)
    logs = here("logs", "--on", "slurm", job)
    task = here("status", "--on", "slurm", f"{array.job}_2", "--output", "json").json["result"]
    cancelled = here("cancel", run.id[:-2])
    again = here("requeue", job)  # Slurm may still be completing it

    told = rows[run.id]
    assert list(selected) == [run.id]
    assert list(newest) == [array.id]
    assert [(done.stdout, "no such run on slurm" in done.stderr) for done in others] == [("", True)] * 2
    assert (told["state"], told["nodes"], told["user"], told["job_id"]) == ("running", "2", "root", job)
    assert told["hosts"] == [node["host"] for node in before["nodes"]]
    assert told["command"][-1].endswith("waits.py")
    assert (rows[array.id]["job_id"], rows[array.id]["hosts"]) == (array.job, [])
    assert unknown.exit_code == 2, unknown.stdout
    assert logs.stdout.count("ready") == 2, logs.stderr
    assert (task["run"], task["job_id"]) == (f"{array.id}/2", f"{array.job}_2")
    assert task["state"] in ("pending", "starting", "running")
    assert cancelled.stdout == f"{run.id}: cancelled\n", cancelled.stderr
    assert len([seconds for seconds in seconds_left(here("logs", run.id).stdout) if seconds > 0]) == 2
    assert again.stdout == f"{run.id}: attempt 1\n", again.stderr
    run.wait_for("ready", 4)
    assert run.status()["job_id"] == run.job != job, "both runs directories have the same run"


@pytest.mark.slurm
def test_all_tasks_of_an_array_are_found_however_long_the_list_of_its_indices_is(laptop: Laptop) -> None:
    laptop.cli.write("show.py", "")
    indices = ",".join(str(number**2) for number in range(1, 30))
    run = laptop.detached("--gres", "none", "--array", indices, "--sbatch", "hold", "show.py")
    other: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(laptop.home / "other")}

    adopted = laptop("adopt", run, "--on", "juno", env=other)
    told = laptop("status", run, env=other)

    assert adopted.exit_code == 0, adopted.stderr
    assert "29 pending" in told.stdout, told


def test_tasks_of_an_array_count_that_have_left_the_queue_before_others(distlaunch: Cli) -> None:
    """One of them was started again later, which gives it another time of submission."""
    run, whole = "array-20250101-120000-abcd", "4711_9|9|COMPLETED|2025-01-01T09:00:00|alice|1|n1"
    sent = f"alice|1|n1|array|sbatch /nowhere/{run}/job.sbatch"
    past = [
        f"4711_{task}|{'FAILED' if task == 3 else 'COMPLETED'}|2025-01-01T0{task}:00:00|{sent}" for task in range(9)
    ]
    queue = f"case $1 in --states=all) echo '{whole}|distlaunch:{run}|array|/nowhere/{run}/job.sbatch';; esac\n"
    env = pretend(distlaunch, {"squeue": queue, "sacct": "".join(f"echo '{row}'\n" for row in past)})

    listed = distlaunch("ls", "--on", "slurm", "--output", "json", env=env).json["result"]["runs"]
    adopted = distlaunch("adopt", "--on", "slurm", "4711", env=env)
    tasks = distlaunch("ls", run, "--output", "json", env=env).json["result"]["runs"]

    assert [(row["run"], row["state"]) for row in listed] == [(run, "failed")]
    assert adopted.exit_code == 0, adopted.stderr
    assert [row["run"] for row in tasks] == [f"{run}/{task}" for task in range(10)]


@pytest.mark.slurm
def test_the_runs_of_an_allocation_are_found_by_their_steps_from_another_terminal(login: Login) -> None:
    """There is no accounting here: only the command lines of their sruns tell where their directories are."""
    lines = [f"distlaunch slurm --nodes {nodes} --name {name} --detach waits.py" for nodes, name in enumerate("ab", 1)]
    shell = salloc(login, "3", *lines, "until [ -e over ]; do sleep 0.1; done", "squeue --noheader --me --format=%T")
    one, two = Run(login, "a", shell), Run(login, "b", shell)
    one.wait_for("ready")
    two.wait_for("ready", 2)
    here = Elsewhere(login)

    rows, state = here.listed(), two.status()
    step, other = rows[two.id]["job_id"], rows[one.id]["job_id"]
    job = step.partition(".")[0]
    both, known_both = here("status", "--on", "slurm", job), login("status", job)
    found = here("status", "--on", "slurm", step, "--output", "json").json["result"]
    cancelled = here("cancel", f"slurm:{step}")
    left = here.listed()
    adopted = here("adopt", "--on", "slurm", other)
    login.write("over", "")
    done = end(shell)

    assert (rows[two.id]["state"], rows[two.id]["nodes"], rows[two.id]["user"]) == ("running", "2", "root")
    assert rows[two.id]["hosts"] == [node["host"] for node in state["nodes"]]
    assert rows[two.id]["command"][-1].endswith("waits.py")
    assert sorted([step, other]) == [f"{job}.0", f"{job}.1"]
    assert (state["job_id"], found["run"], found["job_id"]) == (step, two.id, step)
    for refused in (both, known_both):
        assert f"job {job} is an allocation with 2 runs" in refused.stderr
        assert f"{step} ({two.id})" in refused.stderr
    assert cancelled.stdout == f"{two.id}: cancelled\n", cancelled.stderr
    assert (one.id in left, two.id in left) == (True, False)
    assert adopted.stdout == f"{one.id}\n", adopted.stderr
    assert done.stdout.splitlines()[-1] == "RUNNING", "the allocation outlives its step"
    assert here("wait", other).stdout == f"{one.id}: cancelled\n", "with its allocation"


@pytest.mark.slurm
def test_of_another_users_run_slurm_tells_the_state_and_its_files_what_it_printed(login: Login) -> None:
    """Rendered here and submitted by that user, as the tests' Python need not be readable for others."""
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        theirs = Path(shared, "run")
        says = ("sh", "-c", "echo ready; exec sleep 600")
        options = ("--python", "/usr/bin/python3", "--name", "theirs", "--no-python", "--grace", "1s")
        login("slurm", "--render-to", str(theirs), *options, *says, cwd=shared)
        for path in (theirs, *theirs.iterdir()):
            os.chown(path, OTHER, OTHER)
        user = ("setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups")
        job = login.slurm.run((*user, "sbatch", "--parsable", "job.sbatch"), cwd=str(theirs)).stdout.strip()
        login.slurm.wait_job(job, "RUNNING")
        here = Elsewhere(login)

        (told,) = (row for row in here.listed().values() if row["job_id"] == job)
        followed = here("adopt", "--on", "slurm", "theirs")
        while "ready" not in (logs := here("logs", job)).stdout:
            assert login.slurm.job(job)["JobState"] == "RUNNING"
        gone = shutil.move(theirs, f"{theirs} away")
        unread, private = here("logs", job), here("status", job, "--output", "json").json["result"]
        shutil.move(gone, theirs)
        cancelled = here("cancel", job)
        wait_until("the job to end", lambda: login.slurm.job(job)["JobState"] not in ("RUNNING", "COMPLETING"))
        again = here("requeue", job)

    assert (told["state"], told["user"], told["command"][:1]) == ("running", "nobody", ["sh"])
    assert followed.exit_code == 0, followed.stderr
    assert logs.stdout == "[0:0] ready\n"
    assert unread.exit_code == 2
    assert "which nobody does not let others read" in unread.stderr
    assert (private["state"], private["job_id"]) == ("running", job)
    assert cancelled.stdout == f"{told['run']}: cancelled\n", cancelled.stderr
    assert again.exit_code != 0, "their job file would run as us"
    assert "job.sbatch" in again.stderr
    assert "belongs to nobody" in again.stderr


def test_a_steps_directory_is_found_where_the_hosts_name_has_a_domain(
    distlaunch: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm names the host of an srun without its domain."""
    srun = ("sh", "-c", "read line", "srun", "--spec", "/scratch/run/spec.json", "--slurm")
    with subprocess.Popen(srun, stdin=subprocess.PIPE) as process:
        shows = f"echo 'StepId=7.0 UserId=0 State=RUNNING SrunHost:Pid=login1:{process.pid}'"
        monkeypatch.setenv("PATH", str(pretend(distlaunch, {"scontrol": shows})["PATH"]))
        monkeypatch.setattr("socket.gethostname", lambda: "login1.hpc.example.org")

        found = steps.directories_of(Site(), [steps.Step("7.0", RUN, "root", "N/A", "n1")])
        process.communicate()

    assert found == {"7.0": "/scratch/run"}


def test_slurms_refusal_to_cancel_another_users_job_is_one_error_and_the_run_stays_as_it_was(distlaunch: Cli) -> None:
    queued = f"4711|N/A|RUNNING|2025-01-01T00:00:00|alice|2|n[1-2]|distlaunch:{RUN}|train|/nowhere/{RUN}/job.sbatch"
    lines = f"case $1 in --states=all) echo '{queued}';; *) echo '4711|RUNNING|None|N/A|distlaunch:{RUN}';; esac\n"
    denied = "echo 'scancel: error: Kill job error on job id 4711: Access/permission denied' >&2; exit 1\n"
    broken = "echo 'sacct: error: slurmdbd: Sending PersistInit msg: Connection refused' >&2; exit 1\n"
    env = pretend(distlaunch, {"squeue": lines, "scancel": denied})

    listed = distlaunch("ls", "--on", "slurm", "--output", "json", env=env).json["result"]["runs"]
    partly = distlaunch("ls", "--on", "slurm", env=pretend(distlaunch, {"squeue": lines, "sacct": broken}))
    pretend(distlaunch, {"squeue": lines, "scancel": denied})
    refused = distlaunch("cancel", "--on", "slurm", "slurm:4711", env=env)
    state = distlaunch("status", "4711", "--output", "json", env=env).json["result"]
    logs = distlaunch("logs", RUN, env=env)
    nothing = distlaunch("adopt", "--on", "slurm", "other", env=env)

    assert [(row["user"], row["hosts"], row["command"]) for row in listed] == [("alice", ["n1", "n2"], [])]
    assert RUN in partly.stdout
    assert partly.stderr.startswith("warning: runs that have left Slurm's queue are missing: sacct: error: slurmdbd:")
    assert refused.stderr == "error[command_failed]: scancel: Kill job error on job id 4711: Access/permission denied\n"
    assert (state["state"], state["run"]) == ("running", RUN), "not stopping"
    assert f"its nodes write to /nowhere/{RUN}, which alice does not let others read" in logs.stderr
    assert f"no run 'other' of distlaunch on Slurm\n  hint: there are: {RUN}\n" in nothing.stderr
