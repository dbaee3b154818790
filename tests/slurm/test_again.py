"""Runs that Slurm or a person starts again: preemption, the time limit, `distlaunch requeue`."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.command import Cli, Result
from tests.slurm.conftest import Login
from tests.testbed import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.testbed.slurm import Slurm

pytestmark = pytest.mark.slurm

SCRIPT = """
import os, signal, sys, time
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print(f"ready {attempt} after {os.environ.get('DISTLAUNCH_ATTEMPT_REASON', 'nothing')}", flush=True)
while attempt < sys.argv[1]:
    time.sleep(0.1)
"""
"""Ends in the attempt of that number."""


@dataclass
class Followed:
    """A run in a terminal of its own."""

    login: Login
    name: str
    terminal: subprocess.Popen[bytes]
    ended: Result | None = None

    @property
    def run(self) -> str:
        """Its id."""
        return next(folder.name for folder in self.login.cli.runs.glob(f"{self.name}-*"))

    def logs(self) -> str:
        """What its workers have written."""
        return self.login("logs", self.run).stdout if list(self.login.cli.runs.glob(f"{self.name}-*")) else ""

    def wait_for(self, text: str) -> None:
        """Until its workers have written that."""
        wait_until(f"{text!r} from {self.name}", lambda: text in self.logs(), limit_s=90, every_s=0.5)

    def end(self) -> Result:
        """What the terminal shows when all is over."""
        if self.ended is None:
            stdout, stderr = self.terminal.communicate(timeout=180)
            self.ended = Result(self.terminal.returncode, stdout.decode(), stderr.decode())
        return self.ended

    def status(self) -> dict[str, Any]:
        """As `distlaunch status` has it."""
        found: dict[str, Any] = self.login("status", self.run, "--output", "json").json["result"]
        return found


@pytest.fixture(scope="module")
def runs(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Followed]]:
    """Several runs at once, of which one comes to its time limit and all others are preempted, by one job; `never` by two."""
    login = Login(Cli(tmp_path_factory.mktemp("again")), slurm)
    login.write("again.py", SCRIPT)
    options = {
        "trains": ("-p", "low", "-N", "2", "train.py", "--out", "kept", "--checkpoint-every", "1", "--epochs", "20000"),
        "anew": ("-p", "low", "again.py", "1"),
        "never": ("-p", "low", "--max-requeues", "0", "again.py", "9"),
        "once": ("-p", "low", "--max-requeues", "1", "again.py", "9"),
        "limit": ("--nodelist", "n4", "--time", "100s", "--lead", "20s", "--max-requeues", "1", "again.py", "1"),
    }
    found: dict[str, Followed] = {}
    try:
        for name, more in options.items():
            nodes = () if name == "limit" else ("--exclude", "n4")
            argv = ("slurm", "--name", name, *nodes, *(part.replace("-N", "--nodes") for part in more))
            found[name] = Followed(login, name, login.start(*argv))
        for name in ("anew", "never", "once"):
            found[name].wait_for("ready 0 after nothing")
        wait_until("a checkpoint", lambda: list(login.cli.folder.glob("kept/checkpoint-*.pt")), limit_s=90)
        slurm.sbatch("#!/bin/sh\n", "--partition=high", "--nodelist=n[1-3]", "--exclusive")
        found["once"].wait_for("ready 1 after preempted")
        found["trains"].wait_for("resumed from")
        found["trains"].terminal.send_signal(signal.SIGINT)
        found["anew"].end()
        slurm.sbatch("#!/bin/sh\n", "--partition=high", "--nodelist=n[1-3]", "--exclusive")
        for followed in found.values():
            followed.end()
        yield found
    finally:
        for followed in found.values():
            followed.terminal.kill()
        slurm.cancel_all()
        slurm.wait_idle()


def test_a_preempted_training_saves_on_sigterm_and_goes_on_from_there(runs: dict[str, Followed]) -> None:
    ended, logs = runs["trains"].end(), runs["trains"].logs()

    saved = re.search(r"SIGTERM: stopped at step (\d+) after [\d,]+ samples; saved (kept/checkpoint-\d+\.pt)", logs)
    assert saved is not None, logs[-2000:]
    assert f"resumed from {saved[2]}: " in logs
    assert "no checkpoint in kept: from the start" in logs.partition("SIGTERM")[0]
    assert "started again by the scheduler after preemption, attempt 1" in ended.stderr
    assert ended.exit_code == 130
    assert runs["trains"].status()["state"] == "cancelled"  # preempted once more meanwhile, and not started again


def test_a_preempted_script_without_checkpoints_starts_anew_and_is_told_why(runs: dict[str, Followed]) -> None:
    ended, status = runs["anew"].end(), runs["anew"].status()

    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout.splitlines() == ["ready 0 after nothing", "ready 1 after preempted"]
    assert "started again by the scheduler after preemption, attempt 1" in ended.stderr
    assert re.search(r"success after .*, attempt 1: ", ended.stderr)
    assert (status["state"], status["attempt"], status["exit_code"]) == ("success", 1, 0)
    assert "attempt 1" in runs["anew"].login("status", runs["anew"].run).stdout


def test_without_requeues_a_preempted_run_has_ended(runs: dict[str, Followed]) -> None:
    ended, status = runs["never"].end(), runs["never"].status()

    assert ended.exit_code == 1, ended.stderr
    assert (status["state"], status["exit_code"], status["cause"]["class"]) == ("preempted", 1, "preempted")
    assert "state PREEMPTED" in status["cause"]["message"]
    assert "preempted: Slurm ended job" in ended.stderr
    assert ended.stdout == "ready 0 after nothing\n"


def test_a_run_is_requeued_no_more_often_than_it_may(runs: dict[str, Followed]) -> None:
    ended, status = runs["once"].end(), runs["once"].status()

    assert ended.exit_code == 1, ended.stderr
    assert ended.stdout.splitlines() == ["ready 0 after nothing", "ready 1 after preempted"]
    assert (status["state"], status["attempt"]) == ("preempted", 1)


def test_at_its_time_limit_a_run_starts_again_where_it_may(runs: dict[str, Followed]) -> None:
    ended, status = runs["limit"].end(), runs["limit"].status()

    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout.splitlines() == ["ready 0 after nothing", "ready 1 after timeout"]
    assert "started again by the scheduler after its time limit, attempt 1" in ended.stderr
    assert (status["state"], status["attempt"]) == ("success", 1)


def test_requeue_starts_a_run_again_whatever_has_become_of_it(login: Login) -> None:
    login.write("again.py", SCRIPT)
    ended = Followed(login, "ended", login.start("slurm", "--name", "ended", "again.py", "0"))
    forgotten = Followed(login, "forgotten", login.start("slurm", "--name", "forgotten", "again.py", "0"))
    running = Followed(login, "running", login.start("slurm", "--name", "running", "again.py", "1"))
    assert (ended.end().exit_code, forgotten.end().exit_code) == (0, 0)
    running.wait_for("ready 0")

    assert login("requeue", running.run).exit_code == 0
    wait_until("it to wait", lambda: running.status()["state"] == "pending", limit_s=60)
    refused = login("requeue", running.run)
    again = login("requeue", ended.run, "--output", "json")
    login.slurm.configure(MinJobAge="2")
    try:
        wait_until("Slurm to forget", lambda: "forgotten" not in squeue(login), limit_s=90)
        from_nothing = login("requeue", forgotten.run)
    finally:
        login.slurm.configure(MinJobAge="300")

    assert refused.exit_code == 2
    assert re.search(r"job \d+ waits already", refused.stderr)
    assert again.json["result"]["attempt"] == 1
    assert from_nothing.exit_code == 0, from_nothing.stderr
    assert running.end().exit_code == 0
    assert "ready 1" in running.end().stdout
    for run in (ended, forgotten):
        wait_until(f"{run.name} to end again", lambda run=run: run.status()["state"] == "success", limit_s=60)  # type: ignore[misc]
        assert run.logs().splitlines() == ["[0:0] ready 0 after nothing", "[0:0] ready 1 after success"]
        assert run.status()["attempt"] == 1


def squeue(login: Login) -> str:
    """All jobs that Slurm remembers, by name."""
    return login.slurm.run(("squeue", "--states=all", "--noheader", "--format=%j")).stdout
