"""`distlaunch slurm` on a real slurmctld with four real slurmds."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.testbed import wait_until

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm

WAITS = """
import os, signal, sys, time
def save(*_):
    left = float(open(os.environ["DISTLAUNCH_DEADLINE_FILE"]).read()) - time.time()
    print("saving with", "time" if left > 1 else "no time", "left", flush=True)
    time.sleep(0.5)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.2)
"""


def wait_running(login: Login, run: str) -> None:
    wait_until(f"{run} to run", lambda: login("logs", run).stdout.count("ready") >= 1, limit_s=60)


def test_reduce_gives_36_on_four_hosts_with_two_workers_each(login: Login) -> None:
    done = login("slurm", "--nodes", "4", "--nproc-per-node", "2", "--log-ranks", "all", "reduce.py")

    assert done.exit_code == 0, done.stderr
    found = re.findall(r"\[(\d):(\d)\] rank (\d)/8 on (\S+): before (\d), after 36", done.stdout)
    assert sorted(found) == [(str(r // 2), str(r), str(r), f"n{r // 2 + 1}", str(r + 1)) for r in range(8)]


def test_the_trainer_learns_and_two_runs_at_once_do_not_meet(login: Login) -> None:
    other = login.start("slurm", "--nodes", "4", "--log-ranks", "all", "reduce.py")
    done = login("slurm", "--nodes", "4", "train.py", "--epochs", "6")

    assert done.exit_code == 0, done.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 95
    stdout, stderr = other.communicate(timeout=60)
    assert other.returncode == 0, stderr
    assert stdout.count(b"after 10") == 4


def test_what_dry_run_prints_is_what_slurm_gets_and_an_admin_can_submit_it_by_hand(login: Login) -> None:
    shown = login("slurm", "--dry-run", "--nodes", "2", "--time", "5m", "reduce.py").stdout
    run = login("slurm", "--detach", "--nodes", "2", "--time", "5m", "reduce.py").stdout.strip()
    folder = login.cli.runs / run
    sent = (folder / "job.sbatch").read_text()
    wait_until("the run's end", lambda: login("status", run, "--output", "json").json["result"]["exit_code"] == 0, limit_s=60)

    name = re.compile(r"reduce-\d{8}-\d{6}-\w{4}")
    assert name.sub("RUN", sent) in name.sub("RUN", shown)
    (folder / "nodes/0/stream").rename(folder / "nodes/0/first")
    (folder / "nodes/1/stream").unlink()
    next(folder.glob("rendezvous.json.*")).unlink()
    job = login.slurm.run(("sbatch", "--parsable", str(folder / "job.sbatch"))).stdout.strip()
    login.slurm.wait_job(job, "COMPLETED")
    assert b"after 3" in (folder / "nodes/0/stream").read_bytes()


def test_a_failure_on_rank_5_is_told_once_with_host_and_traceback_and_all_nodes_are_free(login: Login) -> None:
    login.write(
        "fail.py",
        "import torch, torch.distributed as dist, time\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 5: raise ValueError('only on five')\n"
        "dist.all_reduce(torch.ones(1)); time.sleep(600)\n",
    )
    done = login("slurm", "--nodes", "4", "--nproc-per-node", "2", "fail.py")

    assert done.exit_code == 1
    assert "rank 5, host n3, node 2" in done.stderr
    assert done.stderr.count("ValueError: only on five") <= 2  # the summary line and the traceback's
    login.slurm.wait_idle(limit_s=30)


def test_cancel_gives_the_workers_their_grace_time(login: Login) -> None:
    login.write("waits.py", WAITS)
    run = login("slurm", "--detach", "--nodes", "2", "--log-ranks", "all", "waits.py").stdout.strip()
    wait_running(login, run)

    cancelled = login("cancel", run)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert login("status", run, "--output", "json").json["result"]["state"] == "cancelled"
    assert "saving with time left" in login("logs", run).stdout
    login.slurm.wait_idle()


def test_scancel_from_outside_is_a_cancelled_run(login: Login) -> None:
    login.write("waits.py", WAITS)
    follower = login.start("slurm", "--nodes", "2", "waits.py")
    wait_until("the job", lambda: "R" in login.slurm.run(("squeue", "-h", "-o", "%t")).stdout.split(), limit_s=60)
    time.sleep(4)  # until the workers exist; a job cancelled before is cancelled as well

    login.slurm.run(("scancel", "--me"))

    _, stderr = follower.communicate(timeout=60)
    assert follower.returncode == 130, stderr


def test_the_end_of_the_time_limit_is_told_to_the_workers_ahead(login: Login) -> None:
    login.write("waits.py", WAITS)
    # Slurm sends its signal up to half a minute early, and the workers must have begun by then.
    done = login("slurm", "--nodes", "2", "--time", "120s", "--lead", "50s", "waits.py")

    assert done.exit_code == 124, done.stderr
    assert "saving with time left" in done.stdout
    assert "time limit" in done.stderr


def test_ctrl_c_ends_a_job_that_still_waits(login: Login) -> None:
    blocker = login.slurm.sbatch("#!/bin/sh\nsleep 600\n", "--nodes=4", "--exclusive")
    login.slurm.wait_job(blocker, "RUNNING")
    follower = login.start("slurm", "--nodes", "4", "--exclusive", "reduce.py")
    wait_until("the job", lambda: "PD" in login.slurm.run(("squeue", "-h", "-o", "%t")).stdout.split(), limit_s=60)

    os.kill(follower.pid, signal.SIGINT)

    _, stderr = follower.communicate(timeout=60)
    assert follower.returncode == 130, stderr
    assert b"Traceback" not in stderr
    assert "PD" not in login.slurm.run(("squeue", "-h", "-o", "%t")).stdout.split()


def test_an_answer_of_sbatch_that_comes_late_makes_no_second_job(login: Login) -> None:
    wrapper = login.write(
        "bin/sbatch", '#!/bin/sh\n/usr/bin/sbatch "$@" >/dev/null\necho "sbatch: error: Socket timed out" >&2\nexit 1\n'
    )
    wrapper.chmod(0o755)
    env: dict[str, str | None] = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}

    done = login("slurm", "--nodes", "2", "reduce.py", env=env)

    assert done.exit_code == 0, done.stderr
    assert len(list(login.cli.runs.glob("*/run.json"))) == 1
    jobs = login.slurm.run(("squeue", "--states=all", "-h", "-o", "%k")).stdout.split()
    assert len([job for job in jobs if job == f"distlaunch:{next(login.cli.runs.glob('reduce*')).name}"]) == 1


def test_a_job_that_waits_says_why(login: Login) -> None:
    blocker = login.slurm.sbatch("#!/bin/sh\nsleep 600\n", "--nodes=4", "--exclusive")
    login.slurm.wait_job(blocker, "RUNNING")
    run = login("slurm", "--detach", "--nodes", "4", "--exclusive", "reduce.py").stdout.strip()

    state = login("status", run, "--output", "json").json["result"]

    assert state["state"] == "pending"
    assert re.search(r"waits: (Resources|Priority|None)", state["detail"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--partition", "nope"], "invalid partition specified: nope"),
        (["--time", "banana"], "no duration"),
        (["--sbatch", "nodes=3"], "distlaunch sets that itself"),
        (["--sbatch", "no-such-option=1"], "unrecognized option"),
        (["--template", "nothing.j2"], "nothing.j2"),
    ],
)
def test_bad_options_are_one_clear_error(login: Login, options: list[str], words: str) -> None:
    done = login("slurm", *options, "reduce.py")

    assert done.exit_code == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_without_sbatch_it_says_where_to_run_it(login: Login) -> None:
    done = login("slurm", "reduce.py", env={"PATH": "/nowhere"})

    assert done.exit_code == 3
    assert "sbatch is not on PATH" in done.stderr


@pytest.mark.parametrize(
    "value", ["a b", "quote\"d and 'quoted'", "back\\slash", "$HOME `id` $(id)", "comma,comma", "# hash", "ü=é"]
)
def test_values_arrive_whole(login: Login, value: str) -> None:
    done = login("slurm", "--detach", "--sbatch", f"network={value}", "--sbatch", "hold", "reduce.py")

    assert done.exit_code == 0, done.stderr
    job = login.slurm.run(("squeue", "-h", "-o", "%i")).stdout.split()[-1]
    shown = login.slurm.run(("scontrol", "show", "job", job)).stdout
    assert f"Network={value}\n" in shown


def test_a_template_with_an_unknown_name_is_told_with_its_line(login: Login) -> None:
    path = login.write("site.j2", "#!/bin/bash\n#SBATCH -N 1\n{{ no_such_name }}\n")

    done = login("slurm", "--dry-run", "--template", str(path), "reduce.py")

    assert done.exit_code == 2
    assert "site.j2:3" in done.stderr
    assert "no_such_name" in done.stderr
    assert "directives" in done.stderr


def test_arguments_and_variables_arrive_byte_for_byte(login: Login) -> None:
    login.write("show.py", "import os, sys\nprint(repr(sys.argv[1:]), repr(os.environ['V']))\n")
    args = ["a b", "'\"$HOME`x`\\", "line\nbreak", "ü", "--", "-x"]

    done = login("slurm", "--env", "V=a,b 'c' $D", "show.py", *args)

    assert done.stdout == f"{args!r} \"a,b 'c' $D\"\n", done.stderr
