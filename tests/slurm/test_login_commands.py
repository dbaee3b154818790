"""A login node that takes single commands of Slurm only: runs are submitted, looked at and cancelled there."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.slurm.laptop import LIMIT_S
from tests.slurm.test_through_login import SHOWS, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.slurm.laptop import Laptop

pytestmark = pytest.mark.slurm


@pytest.fixture
def commands(laptop: Laptop) -> Iterator[Laptop]:
    """The laptop, with settings for such a login node."""
    laptop.node.take_commands_only()
    laptop.settings(login_shell="none")
    laptop.top.mkdir()
    try:
        yield laptop
    finally:
        laptop.node.configure(ForceCommand="")


def streams(laptop: Laptop, run: str) -> str:
    """What the nodes have written on the cluster."""
    return "".join(path.read_text() for path in sorted(laptop.top.glob(f"runs/{run}/**/stream")))


def test_the_login_node_refuses_all_but_single_commands(commands: Laptop) -> None:
    for words in ("ls", "squeue; ls", "squeue | cat", "sh -c true", "scontrol show config"):
        argv = (str(commands.node.client / "ssh"), commands.node.name, words)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 77, words
        assert done.stderr == f"refused: {words}\n"


def test_a_run_is_submitted_with_its_files_and_followed_by_its_states(commands: Laptop) -> None:
    commands.cli.write("shows.py", SHOWS)
    commands.cli.write("helper.py", "WORD = 'sent'\n")

    done = commands("run", "--on", "juno", "--gres", "none", "--nodes", "2", "shows.py", "--lr", "a b")
    state = commands.status()
    run = state["run"]
    logs, fetched, again = commands("logs", run), commands("fetch", run, "x"), commands("requeue", run)
    listed = commands("ls", "--on", "juno", "--output", "json").json["result"]["runs"]

    assert done.exit_code == 0, done.stderr
    assert "juno takes single commands only: states are shown, output stays in" in done.stderr
    for rank in range(2):
        assert f" rank {rank} of 2 sent --lr a b\n" in streams(commands, run)
    assert (state["state"], state["exit_code"], state["cluster"]) == ("success", 0, "juno")
    assert [row["state"] for row in listed if row["run"] == run] == ["success"]
    for refused in (logs, fetched):
        assert refused.exit_code == 2
        assert f"its nodes write to juno:{commands.top}/runs/{run}" in refused.stderr
        assert "login-shell: none" in refused.stderr
    assert again.exit_code == 2
    assert "launch it again" in again.stderr
    assert commands("rm", run).exit_code == 0
    assert (commands.top / f"{run}.out").exists()


def test_states_and_exit_codes_are_those_of_slurm(commands: Laptop) -> None:
    commands.cli.write("waits.py", WAITS)
    commands.cli.write("fails.py", "raise SystemExit(3)\n")
    commands.cli.write("task.py", "import os\nprint('task', os.environ['SLURM_ARRAY_TASK_ID'])\n")

    failed = commands("run", "--on", "juno", "--gres", "none", "fails.py")
    array = commands("run", "--on", "juno", "--gres", "none", "--array", "1-3", "task.py")
    tasks = commands.status()["run"]
    run = commands.detached("--gres", "none", "waits.py", "600", "0.1")
    wait_until("the run to run", lambda: commands.status(run)["state"] == "running", limit_s=LIMIT_S, every_s=1)
    cancelled = commands("cancel", run)
    waited = commands("wait", run)

    assert failed.exit_code == 1, failed.stderr
    assert "Slurm ended job" in failed.stderr
    assert array.exit_code == 0, array.stderr
    assert all(f" task {number}\n" in streams(commands, tasks) for number in (1, 2, 3))
    assert cancelled.stdout == f"{run}: cancelled\n", cancelled.stderr
    assert waited.exit_code == 130


def test_another_host_adopts_the_run_and_cancels_it(commands: Laptop) -> None:
    commands.cli.write("waits.py", WAITS)
    run = commands.detached("--gres", "none", "waits.py", "600", "0.1")
    other: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(commands.home / "other")}

    adopted = commands("adopt", run[:-2], "--on", "juno", env=other)
    logs = commands("logs", run, env=other)
    cancelled = commands("cancel", run, env=other)

    assert adopted.exit_code == 0, adopted.stderr
    assert f"its nodes write to juno:{commands.top}/runs/{run}" in logs.stderr
    assert cancelled.exit_code == 0, cancelled.stderr
    assert commands.status(run)["state"] == "cancelled"


def test_what_does_not_fit_into_a_job_file_is_refused_before_it_is_sent(commands: Laptop) -> None:
    commands.cli.write("waits.py", WAITS)
    commands.cli.directory.joinpath("large.bin").write_bytes(os.urandom(4_000_000))

    done = commands("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")

    assert done.exit_code == 2
    assert "MB, and Slurm takes 4 MB" in done.stderr
    assert "nothing was submitted" in done.stderr
    assert not commands.node.slurm.run(("squeue", "--noheader")).stdout


def test_what_needs_more_than_single_commands_is_refused_before_it_is_sent(commands: Laptop) -> None:
    commands.cli.write("waits.py", WAITS)
    settings = (commands.cli.directory / "system.toml").read_text()
    commands.cli.write("system.toml", f"{settings}[clusters.here]\nbackend = 'local'\n")
    examined = commands("doctor", "--on", "juno")
    raced = commands("run", "--on", "here,juno", "--start", "first", "waits.py", "1", "0")
    run = commands("run", "--on", "here", "--detach", "waits.py", "600", "0.3").stdout.strip()
    moved = commands("move", run, "--to", "juno")

    for done in (examined, raced, moved):
        assert (done.exit_code, done.stderr.count("error[")) == (2, 1), done.stderr
        assert "login_shell = 'none' allows single commands" in done.stderr
    assert commands.status(run)["exit_code"] is None
    assert commands("cancel", "--force", run).exit_code == 0


def test_a_job_whose_id_was_lost_is_found_by_its_comment(commands: Laptop) -> None:
    """The login node is cut off right after sbatch has submitted."""
    commands.cli.write("waits.py", WAITS)
    commands.node.new_sbatch('"$sbatch" "$@" >/dev/null; sleep 600')
    try:
        launcher = commands.follow("--gres", "none", "--detach", "waits.py", "600", "0.1")
        wait_until("the job", lambda: commands.node.slurm.run(("squeue", "--noheader")).stdout, limit_s=LIMIT_S)
        commands.node.cut()
        code, said = launcher.end()
    finally:
        commands.node.new_sbatch('exec "$sbatch" "$@"')

    assert code == 0, said
    (run,) = launcher.lines
    comments = commands.node.slurm.run(("squeue", "--states=all", "--noheader", "--format=%k")).stdout.split()
    assert comments.count(f"distlaunch:{run}") == 1
    assert commands("cancel", run).exit_code == 0


def test_a_job_file_that_was_cut_off_runs_nothing(commands: Laptop) -> None:
    """As sbatch takes what has arrived when the connection breaks."""
    commands.cli.write("waits.py", WAITS)
    commands.node.new_sbatch('head -c 300000 | "$sbatch" "$@"')
    try:
        done = commands("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
    finally:
        commands.node.new_sbatch('exec "$sbatch" "$@"')

    assert done.exit_code == 1, done.stderr
    assert commands.status()["state"] == "failed"
    assert not (commands.top / "runs").exists()


def test_a_shell_that_refuses_programs_is_named_with_the_setting(commands: Laptop) -> None:
    commands.settings()
    commands.cli.write("waits.py", WAITS)

    done = commands("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")

    assert done.exit_code == 3
    assert "the login shell of juno runs no program: refused: exec /bin/sh" in done.stderr
    assert "login_shell = 'none'" in done.stderr
