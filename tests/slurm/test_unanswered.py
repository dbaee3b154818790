"""sbatch that does not answer, without a cluster: it is unknown whether the controller has the job."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest

from launcher.backends.slurm import control, submitit
from launcher.backends.slurm.site import Site
from launcher.errors import BackendUnavailableError
from testbed import wait_until
from tests.slurm.commands import pretend

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

ENDS = 'echo "$@" >>cancelled\nsed -i "s/PENDING/CANCELLED/" queue\n'
SILENT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2\nexit 1\n"
SQUEUE_S = 30
"""How long squeue may take, for commands without a timeout of their own."""

REFUSES = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
TAKES = "echo Submitted batch job 11\n"


def queue(cli: Cli, run: str, job: str, state: str) -> None:
    """What squeue prints from now on."""
    cli.write("queue", f"{job}|{state}|None|N/A|distlaunch:{run}\n")


def recorded_result(cli: Cli, run: str) -> bool:
    return (cli.runs / run / "result.json").exists()


def test_a_job_that_the_controller_takes_after_sbatch_gave_up_is_ended_by_cancel(distlaunch: Cli) -> None:
    env = pretend(distlaunch, {"sbatch": SILENT, "squeue": "cat queue 2>/dev/null; :\n", "scancel": ENDS})
    distlaunch.write("show.py", "")

    done = distlaunch("slurm", "show.py", env=env)
    (run,) = (path.name for path in distlaunch.runs.iterdir())
    ended_by_then = recorded_result(distlaunch, run)
    before = distlaunch("status", run, "--output", "json", env=env).json["result"]
    refused = distlaunch("requeue", run, env=env)
    queue(distlaunch, run, "12", "PENDING")
    then = distlaunch("status", run, "--output", "json", env=env).json["result"]
    cancelled = distlaunch("cancel", run, env=env)

    assert done.exit_code == 3, done.stderr
    assert f"to end it: distlaunch cancel --force {run}" in done.stderr
    assert not ended_by_then
    assert (before["state"], before["exit_code"]) == ("unknown", None)
    assert before["detail"].startswith("nothing of it exists now, but something may still start: sbatch: ")
    assert refused.exit_code == 2, refused.stderr
    assert then["state"] == "pending"
    assert then["detail"].startswith("its submission failed, and what exists may lack nodes: sbatch: ")
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: cancelled\n"), cancelled.stderr
    assert " 12\n" in (distlaunch.directory / "cancelled").read_text()
    assert recorded_result(distlaunch, run)


def test_cancel_gives_up_a_job_that_never_comes_and_it_ends_at_once_if_it_does(distlaunch: Cli) -> None:
    env = pretend(distlaunch, {"sbatch": SILENT})
    distlaunch.write("show.py", "")
    distlaunch("slurm", "show.py", env=env)
    (run,) = (path.name for path in distlaunch.runs.iterdir())

    cancelled = distlaunch("cancel", run, env=env)

    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: cancelled\n"), cancelled.stderr
    assert (distlaunch.runs / run / "cancel.json").exists(), "agents look for it"


def test_a_run_that_sbatch_refuses_has_ended(distlaunch: Cli) -> None:
    said = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    env = pretend(distlaunch, {"sbatch": f"echo '{said}' >&2\nexit 1\n"})
    distlaunch.write("show.py", "")

    done = distlaunch("slurm", "show.py", env=env)

    (run,) = (path.name for path in distlaunch.runs.iterdir())
    assert done.exit_code == 2, done.stderr
    assert recorded_result(distlaunch, run)


def test_an_sbatch_that_does_not_end_is_a_controller_that_does_not_answer(
    distlaunch: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    env = pretend(distlaunch, {"sbatch": "exec sleep 600\n"})
    monkeypatch.setenv("PATH", str(env["PATH"]))
    monkeypatch.setattr(submitit, "_SBATCH_S", 0.5)

    with pytest.raises(BackendUnavailableError, match=r"sbatch did not end within") as raised:
        control.send(submitit.Queue(Site()), tmp_path, partial(submitit.send, str(tmp_path / "job.sbatch")))

    assert raised.value.exit_code == 3
    assert raised.value.in_part


def test_a_requeue_that_is_killed_before_sbatch_has_submitted_leaves_the_run_as_it_had_ended(distlaunch: Cli) -> None:
    env = pretend(distlaunch, {"sbatch": TAKES, "squeue": "cat queue 2>/dev/null; :\n"})
    distlaunch.write("show.py", "")
    run = distlaunch("slurm", "--detach", "show.py", env=env).stdout.strip()
    queue(distlaunch, run, "11", "NODE_FAIL")
    ended = distlaunch("status", run, "--output", "json", env=env).json["result"]
    assert (ended["state"], ended["cause"]["class"]) == ("failed", "node")
    pretend(distlaunch, {"sbatch": "kill -KILL $PPID\n", "squeue": "cat queue\n"})

    killed = distlaunch("requeue", run, env=env)
    between = distlaunch("status", run, "--output", "json", env=env).json["result"]
    listed = distlaunch("ls", env=env).stdout
    pretend(distlaunch, {"sbatch": "kill -KILL $PPID\n", "squeue": "cat queue\n"})
    again = distlaunch("requeue", run, env=env)  # killed once more
    cancelled = distlaunch("cancel", run, env=env)
    pretend(distlaunch, {"sbatch": "echo Submitted batch job 12\n", "squeue": "cat queue\n"})
    last = distlaunch("requeue", run, env=env)

    assert killed.exit_code == again.exit_code == -9
    assert between == ended
    assert "failed" in listed
    assert cancelled.stdout == f"{run}: failed\n", cancelled.stderr
    assert (last.exit_code, last.stdout) == (0, f"{run}: attempt 1\n"), last.stderr


def test_a_requeue_that_sbatch_refuses_is_no_attempt_however_many_there_were(distlaunch: Cli) -> None:
    env = pretend(distlaunch, {"sbatch": TAKES, "squeue": "cat queue 2>/dev/null; :\n"})
    distlaunch.write("show.py", "")
    run = distlaunch("slurm", "--detach", "show.py", env=env).stdout.strip()
    queue(distlaunch, run, "11", "NODE_FAIL")
    pretend(distlaunch, {"sbatch": "echo Submitted batch job 12\n", "squeue": "cat queue\n"})
    assert distlaunch("requeue", run, env=env).exit_code == 0
    distlaunch.write("queue", "".join(f"{job}|NODE_FAIL|None|N/A|distlaunch:{run}\n" for job in (11, 12)))
    pretend(distlaunch, {"sbatch": f"echo '{REFUSES}' >&2\nexit 1\n", "squeue": "cat queue\n"})

    done = distlaunch("requeue", run, env=env)

    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert "Job violates accounting/QOS policy" in done.stderr
    assert distlaunch("status", run, "--output", "json", env=env).json["result"]["attempt"] == 1


HANGS = "echo $$ >>asked\nexec sleep 300\n"


def no_program_is_left(cli: Cli) -> None:
    """Of those that hang."""
    pids = [int(pid) for pid in (cli.directory / "asked").read_text().split()]
    assert pids
    wait_until("no program to be left", lambda: not any(map(psutil.pid_exists, pids)) or ended(pids), limit_s=20)


def ended(pids: list[int]) -> bool:
    """Whether they have ended, though nobody has waited for them yet."""
    with suppress(psutil.NoSuchProcess):
        return all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids if psutil.pid_exists(pid))
    return False


def test_a_queue_that_hangs_does_not_keep_wait_beyond_its_timeout_nor_outlast_it(distlaunch: Cli) -> None:
    env = pretend(distlaunch, {"sbatch": TAKES})
    distlaunch.write("show.py", "")
    run = distlaunch("slurm", "--detach", "show.py", env=env).stdout.strip()
    hanging = pretend(distlaunch, {"squeue": HANGS})

    done = distlaunch("wait", run, "--timeout", "1s", env=hanging, timeout_s=SQUEUE_S)

    assert done.exit_code == 5, done.stderr
    assert f"{run} has not ended within 1s, as far as is known: the last question was not answered" in done.stderr
    no_program_is_left(distlaunch)


def test_clusters_leaves_no_program_that_hangs(distlaunch: Cli) -> None:
    env = pretend(distlaunch, {"squeue": HANGS, "sinfo": HANGS, "scontrol": HANGS})
    distlaunch.write("distlaunch.toml", '[clusters.dead]\nbackend = "slurm"\n')

    done = distlaunch("clusters", env=env)

    assert "no answer within 10 s" in done.stdout, done.stderr
    no_program_is_left(distlaunch)
