"""`distlaunch slurm` on a real slurmctld with four real slurmds: runs, what is sent for them, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest

import distlaunch
from tests.slurm.conftest import end
from tests.slurm.scripts import SHOW, found, printed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm
RUN = re.compile(r"x-\d{8}-\d{6}-\w{4}")


def test_reduce_gives_36_on_four_hosts_while_the_trainer_learns_on_two_and_they_do_not_meet(login: Login) -> None:
    reduce = login.follow("reduce", "--nodes", "4", "--nproc-per-node", "2", "--log-ranks", "all", "reduce.py")
    train = login.follow("train", "--nodes", "2", "train.py", "--epochs", "6")

    done, learnt = reduce.end(), train.end()

    assert done.exit_code == 0, done.stderr
    rows = re.findall(r"\[(\d):(\d)\] rank (\d)/8 on (\S+): before (\d), after 36", done.stdout)
    assert sorted(rows) == [(str(r // 2), str(r), str(r), f"n{r // 2 + 1}", str(r + 1)) for r in range(8)]
    table = r"HOST +NODE +RANKS\nn1 +0 +0-1\nn2 +1 +2-3\nn3 +2 +4-5\nn4 +3 +6-7\n"
    assert len(re.findall(table, done.stderr)) == 1, done.stderr
    assert re.search(rf"(?m)^{reduce.id} on slurm, job {reduce.job}$", done.stderr)
    assert re.search(rf"(?m)^success after .* s.*: {reduce.id}, job {reduce.job}$", done.stderr)
    state = reduce.status()
    waited = min(node["started"] for node in state["nodes"]) - state["created"]
    assert state["queued_s"] == pytest.approx(waited, abs=0.01)
    result = distlaunch.get(reduce.id, runs_dir=login.cli.runs).result
    assert result is not None
    assert result.queued_s == state["queued_s"]
    assert learnt.exit_code == 0, learnt.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", learnt.stdout)
    assert accuracy is not None, learnt.stdout
    assert float(accuracy[1]) > 95


def test_a_failure_on_rank_5_is_reported_once_with_host_and_traceback_and_all_nodes_are_free(login: Login) -> None:
    login.write(
        "fail.py",
        "import signal, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 5: raise ValueError('only on five')\n"
        "dist.all_reduce(torch.ones(1)); signal.pause()\n",
    )

    done = login("slurm", "--nodes", "4", "--nproc-per-node", "2", "fail.py")

    assert done.exit_code == 1, done.stderr
    assert "first failure: rank 5, host n3, node 2, exit code 1\n" in done.stderr
    assert done.stderr.count("the script failed: ValueError: only on five\n") == 1
    assert len(re.findall(r"(?m)^ *Traceback \(most recent call last\):$", done.stderr)) == 1
    assert len(re.findall(r"(?m)^ *ValueError: only on five$", done.stderr)) == 1
    login.slurm.wait_idle()


PROJECT = """
import os, sys
import lib
print("ran", lib.VALUE, os.environ["RANK"], os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
sys.exit(int(sys.argv[1]))
"""


def comparable(text: str, directory: Path | None = None) -> list[str]:
    """The lines of a job file without its directory, which a file to be run by hand finds out itself."""
    text = re.sub(r"# This directory may be.*?\|\| exit\n", "", text, flags=re.DOTALL)
    for said in ('"$DISTLAUNCH_RUN_DIR"', "$DISTLAUNCH_RUN_DIR", *([str(directory)] if directory else [])):
        text = text.replace(said, "DIRECTORY")
    lines = (line for line in text.splitlines() if not line.startswith(("#SBATCH --output=", "#SBATCH --chdir=")))
    return [RUN.sub("RUN", line) for line in lines]


def test_what_dry_run_prints_is_what_slurm_gets_and_a_rendered_directory_does_the_same_by_hand_wherever_it_is(
    login: Login,
) -> None:
    """By hand: with plain sbatch, a moved directory, and none of the launcher's run directories or the user's files."""
    base = login.cli.directory
    project = login.write("project/main.py", PROJECT).parent
    login.write("project/lib.py", "VALUE = 'with lib'\n")
    options = (
        "slurm",
        "--nodes",
        "2",
        "--time",
        "5m",
        "--name",
        "x",
        "--setup",
        "export BY=hand; echo $BY",
        "--snapshot",
    )

    done = login.each(
        {
            "good": (*options, "--render-to", "../good", "main.py", "0", "a 'b"),
            "bad": (*options, "--render-to", "../bad", "main.py", "3"),
            "many": (*options, "--array", "0-1", "--render-to", "../many", "main.py", "0"),
            "bundled": ("slurm", "--nodes", "2", "--render-to", "../bundled", "reduce.py"),
            "shown": (*options, "--dry-run", "main.py", "3"),
            "sent": (*options, "main.py", "3"),
        },
        cwd=project,
    )

    assert [result.exit_code for result in done.values()] == [0, 0, 0, 0, 0, 1], done
    (run,) = login.cli.runs.iterdir()
    sent = (run / "job.sbatch").read_text()
    assert RUN.sub("RUN", sent) in RUN.sub("RUN", done["shown"].stdout)
    assert comparable(sent, run) == comparable((base / "bad/job.sbatch").read_text())
    (job,) = [line.partition("|")[0] for line in login.queue("%A|%k") if line.endswith(f"distlaunch:{run.name}")]
    login.slurm.wait_job(job, "FAILED")
    exit_code = login.slurm.job(job)["ExitCode"]

    project.rename(base / "gone")
    project.mkdir()  # where the bundled script is to run
    shutil.rmtree(login.cli.runs)
    (base / "moved there").mkdir()
    jobs = {}
    for name in ("good", "bad", "many", "bundled"):
        directory = (base / name).rename(base / "moved there" / name)
        jobs[name] = login.slurm.run(("sbatch", "--parsable", "job.sbatch"), cwd=str(directory)).stdout.strip()
    jobs["many"] += "_1"
    astray = login.slurm.run(("sbatch", "--parsable", str(directory / "job.sbatch")), cwd=str(base)).stdout.strip()

    ended = {name: login.slurm.wait_job(number, "COMPLETED", "FAILED") for name, number in jobs.items()}
    moved = base / "moved there"
    assert ended == {"good": "COMPLETED", "bad": "FAILED", "many": "COMPLETED", "bundled": "COMPLETED"}, moved
    assert login.slurm.job(jobs["bad"])["ExitCode"] == exit_code == "1:0"
    assert printed(moved / "good") == [f"[{r}:{r}] ran with lib {r} 2 ['0', \"a 'b\"]" for r in (0, 1)]
    assert (moved / "good/job.out").read_text() == "hand\n"
    failed = printed(moved / "bad")  # one of them may have ended the run before the other began
    assert failed
    assert set(failed) <= {f"[{r}:{r}] ran with lib {r} 2 ['3']" for r in (0, 1)}
    assert printed(moved / "many/tasks/1") == [f"[{r}:{r}] ran with lib {r} 2 ['0']" for r in (0, 1)]
    assert (moved / "many/tasks/1/job.out").read_text() == "hand\n"
    assert ["after 3" in line for line in printed(moved / "bundled")] == [True, True]
    assert not login.cli.runs.exists()
    login.slurm.wait_job(astray, "FAILED")
    assert (base / "job.out").read_text() == "submit this file from its directory: cd DIRECTORY && sbatch job.sbatch\n"


def test_a_late_answer_of_sbatch_makes_no_second_job_and_logs_can_be_followed_before_it_comes(
    login: Login,
) -> None:
    login.write("show.py", SHOW)
    hold = login.cli.directory / "hold"
    os.mkfifo(hold)
    wrapper = login.write(
        "bin/sbatch",
        f'#!/bin/sh\nread go < {hold}\n/usr/bin/sbatch "$@" >/dev/null\n'
        'echo "sbatch: error: Socket timed out" >&2\nexit 1\n',
    )
    wrapper.chmod(0o755)
    env: dict[str, str | None] = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}

    run = login.follow("late", "--nodes", "2", "--log-ranks", "all", "show.py", env=env)
    logs = login.start("logs", "--follow", run.id)
    state = run.status()
    hold.write_text("go\n")
    done, seen = run.end(), end(logs)

    assert state["state"] == "pending"
    assert state["detail"].startswith("being submitted by `distlaunch slurm`, process ")
    assert len(found(done)) == 2
    assert found(seen) == found(done)
    assert [path.name for path in login.cli.runs.iterdir()] == [run.id]
    assert login.queue("%k").count(f"distlaunch:{run.id}") == 1


def test_the_job_of_a_launcher_that_ends_before_sbatch_has_answered_is_found_and_ended(login: Login) -> None:
    login.write("show.py", SHOW)
    hold = login.cli.directory / "hold"
    os.mkfifo(hold)
    wrapper = login.write("bin/sbatch", f'#!/bin/sh\n/usr/bin/sbatch "$@" >/dev/null\nread go < {hold}\n')
    wrapper.chmod(0o755)
    env: dict[str, str | None] = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}
    argv = ("--sbatch", "hold", "show.py")
    killed, stopped = (login.follow(name, *argv, env=env) for name in ("killed", "stopped"))
    jobs = {run: run.job for run in (killed, stopped)}

    killed.kill()
    stopped.interrupt()
    ended = stopped.end()
    state = killed.status()
    cancelled = login("cancel", "--force", killed.id)
    with open(hold, "r+b", buffering=0) as file:
        file.write(b"go\n" * 2)  # no process waits there after the test

    assert ended.exit_code == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert stopped.status()["state"] == "cancelled"
    assert state["state"] == "pending"
    assert state["detail"].startswith("its launcher ended while it submitted the run")
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{killed.id}: cancelled\n"), cancelled.stderr
    for job in jobs.values():
        login.slurm.wait_job(job, "CANCELLED")


def test_a_request_that_slurm_refuses_is_one_clear_error_and_nothing_is_left_in_the_queue(login: Login) -> None:
    refused = {
        ("--partition", "nope"): "invalid partition specified: nope",
        ("--sbatch", "no-such-option=1"): "unrecognized option",
        ("--nodes", "9"): "no partition has more than 4",
        ("--nodes", "9", "--partition", "short"): "partition short has 4",
    }

    login.write("show.py", SHOW)
    done = login.each({" ".join(options): ("slurm", "--gres", "none", *options, "show.py") for options in refused})

    for options, words in refused.items():
        said = done[" ".join(options)]
        assert said.exit_code == 2, f"{options}: {said}"
        assert said.stderr.startswith("error[bad_spec]: "), f"{options}: {said}"
        assert words in said.stderr, f"{options}: {said}"
        assert "Traceback" not in said.stderr, f"{options}: {said}"
    assert login.queue("%i", "--states=PD,R,CG") == []


def test_without_sbatch_or_a_cluster_the_error_says_what_is_missing(login: Login) -> None:
    login.write("show.py", SHOW)
    done = login("slurm", "show.py", env={"PATH": "/nowhere"})
    nowhere = login("slurm", "show.py", env={"SLURM_CONF": str(login.write("slurm.conf", ""))})

    assert (done.exit_code, nowhere.exit_code) == (3, 3)
    assert "sbatch is not on PATH" in done.stderr
    assert nowhere.stderr.startswith("error[backend_unavailable]: "), nowhere.stderr
    assert "nothing was submitted" in nowhere.stderr


def test_files_are_fetched_from_the_shared_file_system(login: Login) -> None:
    login.write(
        "writes.py", "import os\nopen(f'out-{os.environ[\"RANK\"]}', 'w').write(os.environ['DISTLAUNCH_OUTPUT_DIR'])"
    )

    done = login("slurm", "--nodes", "2", "--fetch", "out-*", "--fetch-to", "copy", "--output", "json", "writes.py")
    later = login("fetch", "last", "out-*", "--node", "all", "--to", "copy")

    assert done.exit_code == 0, done.stderr
    result = done.json["result"]
    assert [file["path"] for file in result["fetched"]["files"]] == ["out-0", "out-1"]
    here = login.write("copy/none", "").parent
    assert (here / "out-1").read_text() == result["output_dir"] == str(here.parent)
    assert later.stdout == "0 files fetched to copy (0 B), 2 were here already\n"
