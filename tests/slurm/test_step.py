"""A step whose nodes are busy, without a cluster: srun waits for them."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from testbed.waiting import wait_until
from tests.slurm.commands import pretend

if TYPE_CHECKING:
    from tests.command import Cli

SRUN = "echo $$ >srun.pid\nexec sleep 600\n"
DEAF_SRUN = 'trap \'\' TERM\nread go <free\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'


def environment(cli: Cli, srun: str) -> dict[str, str | None]:
    """The environment of a shell in an allocation that another step uses up; no step of ours is listed."""
    cli.write("show.py", "print('ran')\n")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_STEP_ID": None, "SLURM_JOB_CPUS_PER_NODE": "1"}
    return {**pretend(cli, {"srun": srun}), **job, "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize("how", ["cancel", "cancel --force", "Ctrl-C"])
def test_a_step_that_waits_for_nodes_does_not_start_once_it_was_cancelled(distlaunch: Cli, how: str) -> None:
    env = environment(distlaunch, SRUN)
    pid = distlaunch.directory / "srun.pid"
    with distlaunch.start("slurm", *([] if how == "Ctrl-C" else ["--detach"]), "show.py", env=env) as launcher:
        wait_until("srun to wait for nodes", lambda: pid.exists() and pid.read_text().strip(), limit_s=90)
        srun = psutil.Process(int(pid.read_text()))
        try:
            if how == "Ctrl-C":
                launcher.send_signal(signal.SIGINT)
            else:
                cancelled = distlaunch(*how.split(), "last", env=env)
                assert cancelled.exit_code == 0, cancelled.stderr
                assert cancelled.stdout.endswith(": cancelled\n")
            _, stderr = launcher.communicate(timeout=90)
            psutil.wait_procs([srun], timeout=60)
            left = srun.is_running() and srun.status() != psutil.STATUS_ZOMBIE
        finally:
            if srun.is_running():
                srun.kill()

    assert not left, "srun would start the agents when nodes become free"
    if how == "Ctrl-C":
        assert launcher.returncode == 130, stderr.decode()


def test_agents_that_are_started_nevertheless_end_at_once(distlaunch: Cli) -> None:
    """The nodes became free at the moment of the cancel."""
    env = environment(distlaunch, DEAF_SRUN)
    os.mkfifo(distlaunch.directory / "free")
    run = distlaunch("slurm", "--detach", "show.py", env=env).stdout.strip()
    with open(distlaunch.directory / "free", "w") as free:  # opened once srun waits
        asked = distlaunch("cancel", "--no-wait", run, env=env)
        free.write("go\n")
    stream = distlaunch.runs / run / "nodes/0/stream"
    wait_until("the agent to end", lambda: stream.exists() and b'"event":"done"' in stream.read_bytes(), limit_s=90)

    assert asked.exit_code == 0, asked.stderr
    assert b"worker_started" not in stream.read_bytes()
    assert distlaunch("logs", run, env=env).stdout == ""
    state = distlaunch("status", run, "--output", "json", env=env).json["result"]
    assert (state["state"], state["exit_code"]) == ("cancelled", 130), state
