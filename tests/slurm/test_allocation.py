"""Inside an allocation, the same command starts a step of the job that is there."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.backends import _slurm_step
from launcher.spec import NodeRange
from tests.command import Result

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm

RESTS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), sys.exit(143)))
print("ready", flush=True)
time.sleep(600)
"""


def within(login: Login, nodes: int, *commands: str) -> Result:
    """Shell lines in an allocation, with `distlaunch` as a function."""
    lines = [f'distlaunch() {{ {shlex.quote(sys.executable)} -m launcher "$@"; }}', *commands]
    script = login.write("allocation.sh", "\n".join(lines) + "\n")
    argv = ["salloc", "--quiet", f"--nodes={nodes}", "bash", str(script)]
    env = login.cli.env(login.env())
    done = subprocess.run(argv, env=env, cwd=login.cli.folder, capture_output=True, text=True, timeout=120, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def test_in_salloc_the_run_is_a_step_on_as_many_nodes_as_asked_for(login: Login) -> None:
    done = within(
        login,
        3,
        "distlaunch slurm --nodes 2 --partition main --log-ranks all reduce.py",
        "squeue --noheader --states=all --me --name=reduce --format=%i",
    )

    assert done.exit_code == 0, done.stderr
    assert sorted(line.split(":", 1)[0] for line in done.stdout.splitlines()) == ["[0", "[1"], "no job of that name"
    assert "after 3" in done.stdout
    assert "whose own these are: partition" in done.stderr


def test_in_an_admins_own_job_file_it_is_a_step_and_its_exit_code_the_jobs(login: Login) -> None:
    login.write("fails.py", "raise SystemExit(3)\n")
    words = [sys.executable, "-m", "launcher", "slurm", "--nodes", "2"]
    env = {key: value for key, value in login.cli.env().items() if key.startswith(("DISTLAUNCH_", "PYTHONPATH", "HOME"))}
    lines = ["#!/bin/bash", *(f"export {key}={shlex.quote(value)}" for key, value in env.items())]
    lines += [shlex.join([*words, "reduce.py"]), shlex.join([*words, "fails.py"]), "echo code $? > code", ""]
    out = login.cli.folder / "own.out"

    job = login.slurm.sbatch("\n".join(lines), "--nodes=2", f"--output={out}", cwd=str(login.cli.folder))

    login.slurm.wait_job(job, "COMPLETED")
    assert "after 3" in out.read_text()
    assert (login.cli.folder / "code").read_text() == "code 1\n"
    assert len(list(login.cli.runs.glob("*/step.sh"))) == 2


def test_a_step_is_cancelled_without_its_job(login: Login) -> None:
    login.write("rests.py", RESTS)
    done = within(
        login,
        2,
        "run=$(distlaunch slurm --nodes 2 --detach rests.py)",
        'for i in $(seq 300); do [ "$(distlaunch logs $run 2>/dev/null | grep -c ready)" = 2 ] && break; sleep 0.1; done',
        "distlaunch status $run",
        "distlaunch cancel $run",
        "distlaunch logs $run",
        "echo the job goes on",
    )

    assert done.exit_code == 0, done.stderr
    assert "running (a step of job" in done.stdout
    assert ": cancelled" in done.stdout
    assert done.stdout.count("told") == 2
    assert "the job goes on" in done.stdout


def test_more_nodes_than_the_allocation_has_and_an_array_are_refused_and_a_job_of_its_own_can_be_had(login: Login) -> None:
    done = within(
        login,
        1,
        "distlaunch slurm --nodes 2 reduce.py; echo $?",
        "distlaunch slurm --array 0-3 reduce.py; echo $?",
        "distlaunch requeue last; echo $?",
        "distlaunch slurm --nodes 1 --new-job reduce.py",
    )

    assert done.stdout.split("\n")[:3] == ["2", "2", "2"]
    assert "has 1" in done.stderr
    assert "a step is no array" in done.stderr
    assert "after 1" in done.stdout
    assert list(login.cli.runs.glob("*/job.sbatch"))


def test_the_time_limit_of_a_step_is_its_own(login: Login) -> None:
    login.write("rests.py", RESTS)

    done = within(login, 2, "distlaunch slurm --nodes 2 --time 3s rests.py")

    assert done.exit_code == 124, done.stderr
    assert "the time limit of 3 s was reached" in done.stderr


@pytest.mark.parametrize(("text", "cpus"), [("8", 8), ("32(x3)", 32), ("32(x3),16", 16), ("2,48(x2)", 2), ("", None)])
def test_the_step_gets_the_processors_of_the_smallest_node(text: str, cpus: int | None) -> None:
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_CPUS_PER_NODE": text}

    found = _slurm_step.allocation(env)

    assert found is not None
    assert (found.cpus, found.within_step) == (cpus, False)
    assert _slurm_step.nodes_of(NodeRange(min=2, max=9), found) == 4


def test_a_login_node_is_no_allocation(tmp_path: Path) -> None:
    assert _slurm_step.allocation({"HOME": str(tmp_path)}) is None
