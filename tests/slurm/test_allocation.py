"""Inside an allocation, the same command starts a step of the job that is there."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.command import Cli
from tests.slurm.conftest import Login, Run, end, idle_afterwards
from tests.slurm.scripts import SHOW, WAITS, seconds_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.slurm import Slurm
    from tests.command import Result

pytestmark = pytest.mark.slurm

SHELLS = {
    "some": (
        3,
        "distlaunch slurm --nodes 2 --partition main --name some --log-ranks all reduce.py",
        "squeue --noheader --states=all --me --name=some --format=%i",
    ),
    "all": (3, "distlaunch slurm --log-ranks all show.py", "distlaunch local --no-python true"),
    "several groups": (
        "2 : --nodes=1",
        "echo second group: $SLURM_JOB_NODELIST_HET_GROUP_1",
        "distlaunch slurm --name all --log-ranks all show.py",
        "distlaunch slurm --name second --het-group 1 show.py",
        "distlaunch slurm --nodes 2 show.py; distlaunch slurm --het-group 0,2 show.py",
        "run=$(distlaunch slurm --detach waits.py)",
        "grep -m3 ready < <(distlaunch logs --follow $run)",
        "distlaunch cancel $run",
        "left() { squeue --steps --noheader --jobs=$SLURM_JOB_ID; }",
        'for _ in {1..100}; do test -z "$(left)" && break; sleep 0.1; done',  # Slurm knows of its end a bit later
        "echo left: $(left)",
    ),
    "by hand": (
        2,
        "distlaunch slurm --nodes 2 --render-to rendered show.py 'a b'",
        "mkdir elsewhere && mv rendered 'elsewhere/by hand' && bash 'elsewhere/by hand/step.sh'; echo ended $?",
    ),
    "cancelled": (
        2,
        "run=$(distlaunch slurm --nodes 2 --detach waits.py)",
        "grep -m2 ready < <(distlaunch logs --follow $run)",
        "distlaunch status $run",
        "distlaunch cancel $run",
        "distlaunch logs $run",
        "echo the job continues, $(squeue --noheader --job $SLURM_JOB_ID --format=%T)",
    ),
    "refused": (
        1,
        "distlaunch slurm --nodes 2 show.py; echo $?",
        "distlaunch slurm --array 0-3 show.py; echo $?",
        "distlaunch slurm show.py >/dev/null 2>&1; distlaunch requeue last; echo $?",
        "distlaunch slurm --new-job --name own show.py",
    ),
    "busy": (
        1,
        "still_there() { kill -0 $! || exit; sleep 0.1; }",
        "srun --cpus-per-task=$SLURM_JOB_CPUS_PER_NODE sleep 600 &",
        "until squeue --steps --noheader --jobs=$SLURM_JOB_ID --format=%j | grep -q sleep; do still_there; done",
        "run=$(distlaunch slurm --detach show.py)",
        'until grep -q "step creation temporarily disabled" $DISTLAUNCH_RUNS_DIR/$run/job.out; do still_there; done',
        "distlaunch cancel $run",
        'while ps axww -o args= | grep -q "[s]run.*$run"; do still_there; done',
        "echo its srun has ended while the nodes were busy",
        "kill $!; wait",
        "distlaunch status $run",
        "ls -d $DISTLAUNCH_RUNS_DIR/$run/nodes",
    ),
    "limited": (2, "distlaunch slurm --nodes 2 --time 3s waits.py"),
}
"""How many nodes each allocation has, and what is typed in it."""


@pytest.fixture(scope="module")
def shells(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Login, Result]]]:
    """All of them at the same time, ended."""
    logins = {name: Login(Cli(tmp_path_factory.mktemp("shell")), slurm) for name in SHELLS}
    with idle_afterwards(logins["some"]):
        started = {name: salloc(logins[name], str(nodes), *map(str, lines)) for name, (nodes, *lines) in SHELLS.items()}
        yield {name: (logins[name], end(process)) for name, process in started.items()}


def salloc(login: Login, nodes: str, *commands: str) -> subprocess.Popen[bytes]:
    """Shell lines in an allocation, with `distlaunch` as a function."""
    login.write("show.py", SHOW)
    login.write("waits.py", WAITS)
    lines = [f'distlaunch() {{ {shlex.quote(sys.executable)} -m launcher "$@"; }}', *commands]
    script = login.write("allocation.sh", "\n".join(lines) + "\n")
    argv = ["salloc", "--quiet", *f"--nodes={nodes}".split(), "bash", str(script)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(
        argv, env=login.cli.env(login.env()), cwd=login.cli.directory, stdin=null, stdout=pipe, stderr=pipe
    )


def test_in_salloc_the_run_is_a_step_on_as_many_nodes_as_asked_for(shells: dict[str, tuple[Login, Result]]) -> None:
    _, done = shells["some"]

    assert done.exit_code == 0, done.stderr
    assert sorted(line.split(":", 1)[0] for line in done.stdout.splitlines()) == ["[0", "[1"], "no job of that name"
    assert done.stdout.count("after 3") == 2
    assert "whose own these are: partition" in done.stderr


def test_without_a_number_it_takes_all_nodes_and_a_run_on_this_host_alone_is_not_silent(
    shells: dict[str, tuple[Login, Result]],
) -> None:
    _, done = shells["all"]

    assert done.exit_code == 0, done.stderr
    assert sorted(re.findall(r"found (\d) 0 3 (n\d)", done.stdout)) == [("0", "n1"), ("1", "n2"), ("2", "n3")]
    assert re.search(
        r"warning: local uses only this host of Slurm job \d+ with 3 nodes; all of them: dist", done.stderr
    )


def test_in_a_heterogeneous_job_one_step_spans_all_groups_or_those_that_are_named(
    shells: dict[str, tuple[Login, Result]],
) -> None:
    _, done = shells["several groups"]

    ranks = dict(re.findall(r"found (\d) 0 3 (n\d)", done.stdout))
    assert sorted(ranks) == ["0", "1", "2"], (done.stdout, done.stderr)
    assert len(set(ranks.values())) == 3
    (second,) = re.findall(r"(?m)^second group: (n\d)$", done.stdout)
    assert second in ranks.values(), "it has one node, of any rank: ranks follow the hosts' names"
    assert re.findall(r"found (\d) 0 1 (n\d)", done.stdout) == [("0", second)]
    assert "error[bad_spec]: 2 nodes of the 3 in 2 groups of job " in done.stderr
    assert "error[bad_spec]: het-group 2: the job has 2 groups" in done.stderr
    assert re.search(r"(?m)^waits-\S+: cancelled\nleft:$", done.stdout), done.stdout


def test_a_rendered_step_runs_by_hand_wherever_its_directory_is(shells: dict[str, tuple[Login, Result]]) -> None:
    login, done = shells["by hand"]

    written = [f"rendered/{name}" for name in ("step.sh", "spec.json", "agent.pyz", "key")]
    assert done.stdout.splitlines() == [*written, "ended 0"], done.stderr
    streams = [login.cli.directory / f"elsewhere/by hand/nodes/{rank}/stream" for rank in (0, 1)]
    for rank, stream in enumerate(streams):
        (line,) = re.findall(rf"(?m)^\[{rank}:{rank}\] found (.*)$", stream.read_text())
        assert line.startswith(f"{rank} 0 2 n")
        assert line.endswith(" a b")
    assert not login.cli.runs.exists()


def test_in_a_job_file_of_ones_own_it_is_a_step_and_its_exit_code_is_the_jobs(login: Login) -> None:
    login.write("show.py", SHOW)
    login.write("fails.py", "raise SystemExit(3)\n")
    words = [sys.executable, "-m", "launcher", "slurm", "--nodes", "2"]
    env = {
        key: value for key, value in login.cli.env().items() if key.startswith(("DISTLAUNCH_", "PYTHONPATH", "HOME"))
    }
    lines = ["#!/bin/bash", *(f"export {key}={shlex.quote(value)}" for key, value in env.items())]
    lines += [shlex.join([*words, "show.py"]), shlex.join([*words, "fails.py"]), ""]
    out = login.cli.directory / "own.out"

    job = login.slurm.sbatch("\n".join(lines), "--nodes=2", f"--output={out}", cwd=str(login.cli.directory))

    login.slurm.wait_job(job, "FAILED")
    assert login.slurm.job(job)["ExitCode"] == "1:0"
    said = out.read_text()
    assert len(re.findall(r"(?m)^found 0 0 2 n", said)) == 1, said
    assert re.search(r"first failure: rank \d, host n\d, node \d, exit code 3\n", said), said
    assert len(list(login.cli.runs.glob("*/step.sh"))) == 2


def test_a_step_is_cancelled_without_its_job(shells: dict[str, tuple[Login, Result]]) -> None:
    _, done = shells["cancelled"]

    assert done.exit_code == 0, done.stderr
    assert "running (a step of job" in done.stdout
    assert re.search(r"(?m)^waits-\S+: cancelled$", done.stdout), done.stdout
    assert len([seconds for seconds in seconds_left(done.stdout) if seconds > 0]) == 2, done.stdout
    assert "the job continues, RUNNING\n" in done.stdout


def test_a_step_that_waits_for_busy_nodes_is_cancelled_with_its_srun(shells: dict[str, tuple[Login, Result]]) -> None:
    _, done = shells["busy"]

    assert re.search(r"(?m)^show-\S+: cancelled$", done.stdout), (done.stdout, done.stderr)
    assert "its srun has ended while the nodes were busy\n" in done.stdout
    assert "nodes': No such file" in done.stderr


def test_more_nodes_than_the_allocation_has_and_an_array_are_refused_and_a_new_job_can_be_submitted(
    shells: dict[str, tuple[Login, Result]],
) -> None:
    login, done = shells["refused"]

    assert done.stdout.split("\n")[:3] == ["2", "2", "2"], done.stderr
    assert "has 1" in done.stderr
    assert "a step cannot be an array" in done.stderr
    assert "cannot be requeued" in done.stderr
    assert "found 0 0 1 " in done.stdout
    assert [path.parent.name.partition("-")[0] for path in login.cli.runs.glob("*/job.sbatch")] == ["own"]


def test_the_time_limit_of_a_step_is_its_own(shells: dict[str, tuple[Login, Result]]) -> None:
    _, done = shells["limited"]

    assert done.exit_code == 124, done.stderr
    assert "the time limit of 3 s was reached" in done.stderr


def test_a_step_that_has_not_begun_has_not_ended_for_another_host(login: Login) -> None:
    setup = "until [ -e begin ]; do sleep 0.1; done"
    line = f"distlaunch slurm --name later --setup {shlex.quote(setup)} --detach show.py"
    shell = salloc(login, "1", line, "touch started", "until [ -e over ]; do sleep 0.1; done")
    run, host = Run(login, "later", shell), login.slurm.hosts[0]

    def there(*args: str) -> subprocess.CompletedProcess[str]:
        return host.run(
            (sys.executable, "-m", "launcher", *args), env=login.cli.env(login.env()), cwd=str(run.directory)
        )

    run.wait_file("started")
    status, cancelled = there("status", run.id), there("cancel", run.id)
    listed = there("ls")
    login.write("begin", "")
    waited = login("wait", run.id)
    login.write("over", "")
    end(shell)

    assert "its step in job" in status.stdout, status.stdout
    assert f"has not begun, and its srun is on {socket.gethostname()}" in status.stdout
    assert cancelled.returncode == 4, cancelled.stderr
    assert re.search(r"hint: cancel it there, or end its allocation: scancel \d+\n", cancelled.stderr)
    assert re.search(rf"{run.id} .*unknown", listed.stdout), listed.stdout
    assert waited.stdout == f"{run.id}: success\n", waited.stderr


def test_a_step_whose_setup_has_failed_has_ended_for_another_host(login: Login) -> None:
    shell = salloc(
        login,
        "1",
        "distlaunch slurm --name never --setup false --detach show.py",
        'until grep -q "setup failed" "$DISTLAUNCH_RUNS_DIR"/never-*/job.out; do sleep 0.1; done; touch failed',
        "until [ -e over ]; do sleep 0.1; done",
    )
    run, host = Run(login, "never", shell), login.slurm.hosts[0]
    run.wait_file("failed")

    command = (sys.executable, "-m", "launcher", "wait", "--timeout", "30s", run.id)
    waited = host.run(command, env=login.cli.env(login.env()), cwd=str(run.directory))
    login.write("over", "")
    end(shell)

    assert (waited.returncode, waited.stdout) == (1, f"{run.id}: failed\n"), waited.stderr
