"""`distlaunch slurm` on a real slurmctld with four real slurmds: runs, what is sent for them, and what is refused."""

from __future__ import annotations

import os
import random
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from launcher.agent.schedulers.slurm import expand
from tests import large
from tests.slurm.conftest import SHOW, end, found

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.slurm import Slurm
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
    assert learnt.exit_code == 0, learnt.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", learnt.stdout)
    assert accuracy is not None, learnt.stdout
    assert float(accuracy[1]) > 95


def test_a_failure_on_rank_5_is_told_once_with_host_and_traceback_and_all_nodes_are_free(login: Login) -> None:
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


def test_arguments_and_variables_of_hundreds_of_kilobytes_arrive(login: Login) -> None:
    login.write("large.py", large.SCRIPT.read_text())
    done = login("slurm", "--nodes", "2", "--log-ranks", "all", *large.OPTIONS, "large.py", *large.ARGUMENTS)

    assert done.exit_code == 0, done.stderr[-3000:]
    assert done.stdout.count(large.SAID) == 2


PROJECT = """
import os, sys
import lib
print("ran", lib.VALUE, os.environ["RANK"], os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
sys.exit(int(sys.argv[1]))
"""


def comparable(text: str, directory: Path | None = None) -> list[str]:
    """The lines of a job file, but for where its directory is, which one to be run by hand finds out."""
    text = re.sub(r"# This directory may be.*?\|\| exit\n", "", text, flags=re.DOTALL)
    for said in ('"$DISTLAUNCH_RUN_DIR"', "$DISTLAUNCH_RUN_DIR", *([str(directory)] if directory else [])):
        text = text.replace(said, "DIRECTORY")
    lines = (line for line in text.splitlines() if not line.startswith(("#SBATCH --output=", "#SBATCH --chdir=")))
    return [RUN.sub("RUN", line) for line in lines]


def printed(directory: Path) -> list[str]:
    """What the workers of a run's nodes have written, in node order."""
    paths = sorted(directory.glob("nodes/*/stream"))
    return [line for path in paths for line in path.read_text().splitlines() if "| " in line]


def test_what_dry_run_prints_is_what_slurm_gets_and_a_rendered_directory_does_the_same_by_hand_wherever_it_is(
    login: Login,
) -> None:
    """By hand: with plain sbatch, the directory moved, and the launcher's run directories and the user's files gone."""
    base = login.cli.directory
    project = login.write("project/main.py", PROJECT).parent
    login.write("project/lib.py", "VALUE = 'with lib'\n")
    options = ("slurm", "--nodes", "2", "--time", "5m", "--name", "x", "--setup", "export BY=hand; echo $BY", "--snapshot")

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
    assert printed(moved / "good") == [f"{r}.{r}| ran with lib {r} 2 ['0', \"a 'b\"]" for r in (0, 1)]
    assert (moved / "good/job.out").read_text() == "hand\n"
    assert printed(moved / "bad") == [f"{r}.{r}| ran with lib {r} 2 ['3']" for r in (0, 1)]
    assert printed(moved / "many/tasks/1") == [f"{r}.{r}| ran with lib {r} 2 ['0']" for r in (0, 1)]
    assert (moved / "many/tasks/1/job.out").read_text() == "hand\n"
    assert ["after 3" in line for line in printed(moved / "bundled")] == [True, True]
    assert not login.cli.runs.exists()
    login.slurm.wait_job(astray, "FAILED")
    assert (base / "job.out").read_text() == "submit this file from its directory: cd DIRECTORY && sbatch job.sbatch\n"


def test_an_answer_of_sbatch_that_comes_late_makes_no_second_job_and_logs_can_be_followed_before_it_comes(login: Login) -> None:
    login.write("show.py", SHOW)
    hold = login.cli.directory / "hold"
    os.mkfifo(hold)
    wrapper = login.write(
        "bin/sbatch",
        f'#!/bin/sh\nread go < {hold}\n/usr/bin/sbatch "$@" >/dev/null\necho "sbatch: error: Socket timed out" >&2\nexit 1\n',
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


def test_of_a_launcher_that_ends_before_sbatch_has_answered_the_job_is_found_and_ended(login: Login) -> None:
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
        file.write(b"go\n" * 2)  # nobody waits there after the test

    assert ended.exit_code == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert stopped.status()["state"] == "cancelled"
    assert state["state"] == "pending"
    assert state["detail"].startswith("its launcher ended while it submitted the run")
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{killed.id}: cancelled\n"), cancelled.stderr
    for job in jobs.values():
        login.slurm.wait_job(job, "CANCELLED")


def test_what_slurm_does_not_take_is_one_clear_error_and_nothing_is_left_in_the_queue(login: Login) -> None:
    refused = {
        ("--partition", "nope"): "invalid partition specified: nope",
        ("--sbatch", "no-such-option=1"): "unrecognized option",
        ("--nodes", "9"): "no partition has more than 4",
        ("--nodes", "9", "--partition", "short"): "partition short has 4",
    }

    login.write("show.py", SHOW)
    done = login.each({" ".join(options): ("slurm", *options, "show.py") for options in refused})

    for options, words in refused.items():
        said = done[" ".join(options)]
        assert said.exit_code == 2, f"{options}: {said}"
        assert said.stderr.startswith("error[bad_spec]: "), f"{options}: {said}"
        assert words in said.stderr, f"{options}: {said}"
        assert "Traceback" not in said.stderr, f"{options}: {said}"
    assert login.queue("%i", "--states=PD,R,CG") == []


def test_without_sbatch_or_a_cluster_it_says_where_to_run_it(login: Login) -> None:
    login.write("show.py", SHOW)
    done = login("slurm", "show.py", env={"PATH": "/nowhere"})
    nowhere = login("slurm", "show.py", env={"SLURM_CONF": str(login.write("slurm.conf", ""))})

    assert (done.exit_code, nowhere.exit_code) == (3, 3)
    assert "sbatch is not on PATH" in done.stderr
    assert nowhere.stderr.startswith("error[backend_unavailable]: "), nowhere.stderr
    assert "nothing was submitted" in nowhere.stderr


def test_values_of_sbatch_options_arrive_whole(login: Login) -> None:
    values = ("a b", "quote\"d and 'quoted'", "back\\slash", "$HOME `id` $(id)", "comma,comma", "# hash", "ü=é")

    done = login.each(
        {value: ("slurm", "--detach", "--sbatch", f"network={value}", "--sbatch", "hold", "reduce.py") for value in values}
    )

    jobs = {line.partition("|")[2]: line.partition("|")[0] for line in login.queue("%A|%k")}
    for value, said in done.items():
        assert said.exit_code == 0, f"{value}: {said.stderr}"
        shown = login.slurm.run(("scontrol", "show", "job", jobs[f"distlaunch:{said.stdout.strip()}"])).stdout
        assert f"Network={value}\n" in shown, value


def test_arguments_and_variables_arrive_byte_for_byte(login: Login) -> None:
    login.write("show.py", "import os, sys\nprint(repr(sys.argv[1:]), repr(os.environ['V']))\n")
    args = ["a b", "'\"$HOME`x`\\", "line\nbreak", "ü", "--", "-x"]

    done = login("slurm", "--env", "V=a,b 'c' $D", "show.py", *args)

    assert done.stdout == f"{args!r} \"a,b 'c' $D\"\n", done.stderr


TEXTS = (
    "account", "qos", "partition", "constraint", "reservation", "gres", "gpus-per-node", "mem", "nodelist", "exclude",
    "dependency", "licenses", "switches", "nice", "mail-type", "mail-user", "wckey",
)  # fmt: skip
"""Options of the backend that take a text; some Slurm takes as they are, without accounting."""


def test_no_text_in_an_option_is_a_command(login: Login) -> None:
    evil = "x\"; touch $(pwd)/owned; `touch owned`; 'y' # & | > owned"

    shown = login("slurm", "--dry-run", *(word for option in TEXTS for word in (f"--{option}", evil)), "reduce.py")
    done = login.each({option: ("slurm", "--detach", f"--{option}", evil, "--sbatch", "hold", "reduce.py") for option in TEXTS})

    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count('="x\\"; touch $(pwd)/owned; ') == len(TEXTS)
    for option, said in done.items():
        assert "Traceback" not in said.stderr, option
        assert said.exit_code in (0, 2), f"{option}: {said.stderr}"
        assert said.exit_code == 0 or said.stderr.count("error[bad_spec]: sbatch: ") == 1, f"{option}: {said.stderr}"
    assert {said.exit_code for said in done.values()} == {0, 2}
    assert not list(login.cli.directory.rglob("owned"))


def test_no_text_for_the_job_file_itself_is_a_command(login: Login) -> None:
    evil = "$(touch owned) `touch owned`; \"'"
    directory = login.cli.directory / f"a directory {evil.replace('/', '')}"
    directory.mkdir()
    (directory / "it's.py").write_text(SHOW)

    done = login("slurm", "--name", evil, "--env", f"V={evil}", "it's.py", evil, cwd=directory)
    by_hand = login("slurm", "--name", evil, "--render-to", "by hand", "it's.py", evil, cwd=directory)
    job = login.slurm.run(("sbatch", "--parsable", "job.sbatch"), cwd=str(directory / "by hand")).stdout.strip()

    assert found(done)[0] == ["0", "0", "1", *found(done)[0][3:7], *evil.split()]
    assert by_hand.exit_code == 0, by_hand.stderr
    login.slurm.wait_job(job, "COMPLETED")
    assert printed(directory / "by hand")[0].endswith(f" {evil}")
    assert not list(login.cli.directory.rglob("owned"))


def random_hostlist(chance: random.Random) -> str:
    """One with ranges, widths, several brackets and suffixes."""

    def bracket() -> str:
        width = chance.choice([1, 1, 2, 3])
        pieces, low = [], chance.randint(0, 10 ** (width - 1))
        for _ in range(chance.randint(1, 3)):  # ascending and disjoint, as Slurm writes them
            high = low + chance.choice([0, 1, chance.randint(2, 12)])
            pieces.append(f"{low:0{width}}-{high:0{width}}" if high > low else f"{low:0{width}}")
            low = high + chance.randint(1, 5)
        return f"[{','.join(pieces)}]"

    def one() -> str:
        name = chance.choice(["n", "node-", "gpu.rack", "a1b"])
        return name + chance.choice(["", bracket(), bracket() + "-ib" + bracket(), "7"])

    return ",".join(one() for _ in range(chance.randint(1, 4)))


def test_hostlists_are_expanded_as_scontrol_does(slurm: Slurm) -> None:
    chance = random.Random(20261120)
    hostlists = [random_hostlist(chance) for _ in range(60)]

    theirs = slurm.run(("bash", "-c", 'for list; do echo $(scontrol show hostnames "$list"); done', "bash", *hostlists)).stdout

    for hostlist, line in zip(hostlists, theirs.splitlines(), strict=True):
        assert expand(hostlist) == line.split(), hostlist
