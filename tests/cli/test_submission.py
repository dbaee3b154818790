"""Launchers that end while they start agents, and commands that change the same run at the same time."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest

from testbed.waiting import wait_until
from tests import envelope
from tests.cli import steps
from tests.cli.following import WAITS, end, nothing_is_left, processes  # noqa: F401 - a fixture
from tests.command import Cli

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

BEFALLEN = """
import os, signal, sys
def main(what, kind, moment, *args):
    seen = 0
    def befall():
        nonlocal seen
        seen += 1
        if seen == int(moment):
            open(f"reached {seen}", "w").close()
            if what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            open("go").read()
    def look(event, args):
        if event in ("subprocess.Popen", "os.rename", "os.mkdir", "os.link", "os.remove"):
            befall()
    def with_starts(usual):
        def call(self, *args):
            *others, record = args
            return usual(self, *others, lambda handle: (befall(), record(handle))[1])
        return call
    from launcher.backends.local import ahead
    from launcher.backends.local.backend import LocalBackend
    from launcher.cli import main
    ahead.MANY = 1
    if kind == "starts":
        LocalBackend.submit = with_starts(LocalBackend.submit)
        LocalBackend.requeue = with_starts(LocalBackend.requeue)
    else:
        sys.addaudithook(look)
    return main(args)
sys.exit(main(*sys.argv[1:]))
"""
"""The launcher, killed or waiting for `go` at its MOMENT-th step with files and processes, or start of an agent.

It is there then, and about to be recorded, upon which it begins. Agents are started one by one.
"""

BEFALL = ("befallen.py",)


@pytest.fixture
def launches(distlaunch: Cli) -> Cli:
    """A command line with the scripts in its directory."""
    distlaunch.write("befallen.py", BEFALLEN)
    distlaunch.write("waits.py", WAITS)
    os.mkfifo(distlaunch.directory / "go")
    return distlaunch


def until_reached(launches: Cli, moment: int, launcher: subprocess.Popen[bytes]) -> None:
    """Wait until the launcher waits there; if it does not get there, it is killed, and the test fails."""
    try:
        wait_until(
            f"the launcher to reach moment {moment}",
            lambda: launcher.poll() is not None or (launches.directory / f"reached {moment}").exists(),
            every_s=0.01,
        )
        assert launcher.poll() is None
    except BaseException:
        launcher.kill()  # or the end of its block would wait for it
        raise


def killed_at(outer: Cli, moment: int) -> bool:
    """Check that `cancel` ends what a launcher killed at that step has left; whether there is such a step."""
    cli = Cli(outer.directory / str(moment))
    cli.write("befallen.py", BEFALLEN)
    cli.write("waits.py", WAITS)
    argv = ("killed", "steps", str(moment), "local", "--detach", "--nodes", "2", "--grace", "1s", "waits.py")
    done = cli(*argv, python=BEFALL)
    if moved := [path for path in cli.runs.glob("[!.]*") if (path / "run.json").exists()]:
        state = cli("status", "last", "--output", "json").json["result"]
        cancelled = cli("cancel", "--force", "last")
        assert cancelled.exit_code == 0, f"at step {moment}: {state} {cancelled.stderr}"
        assert cancelled.stdout == f"{moved[0].name}: cancelled\n", f"at step {moment}"
        assert cli("status", "last", "--output", "json").json["result"]["exit_code"] == 130, f"at step {moment}"
    assert done.exit_code == (-signal.SIGKILL if (cli.directory / f"reached {moment}").exists() else 0)
    return done.exit_code != 0


@pytest.mark.slow
def test_cancel_ends_what_a_launcher_killed_at_any_step_has_left(distlaunch: Cli) -> None:
    assert steps.count(partial(killed_at, distlaunch)) > 15


def requeue_killed_at(outer: Cli, pair: int) -> bool:
    """Check that a run whose requeue is killed at a step has started or is unchanged; whether there is such a step.

    Every second step is tried.
    """
    moment = 2 * pair
    cli = Cli(outer.directory / str(moment))
    cli.write("befallen.py", BEFALLEN)
    cli.write("fails.py", "raise SystemExit(3)\n")
    assert cli("local", "fails.py").exit_code == 1
    (directory,) = cli.runs.iterdir()
    ended = json.loads((directory / "result.json").read_text())
    done = cli("killed", "steps", str(moment), "requeue", "last", python=BEFALL)
    psutil.wait_procs(processes(cli), timeout=60)
    began = (directory / "nodes/0/stream").read_bytes().count(b'{"event":"agent_started"')

    state = cli("status", "last", "--output", "json").json["result"]
    as_before = all(state.get(key) == value for key, value in ended.items())
    assert as_before if began == 1 else state["attempt"] == 1, f"at step {moment}: {state}"
    again = cli("requeue", "last")
    assert again.exit_code == 0, f"at step {moment}: {again.stderr}"
    return done.exit_code != 0


def test_a_requeue_that_is_killed_at_any_step_has_started_the_run_or_left_it_as_it_had_ended(distlaunch: Cli) -> None:
    assert steps.count(partial(requeue_killed_at, distlaunch)) > 5


def test_status_reports_a_launcher_killed_between_two_agents_and_cancel_ends_the_first_agent(launches: Cli) -> None:
    launches("killed", "starts", "2", "local", "--nodes", "2", "waits.py", python=BEFALL)
    assert processes(launches), "the first agent"

    state = launches("status", "last", "--output", "json").json["result"]
    cancelled = launches("cancel", "last")

    assert state["exit_code"] is None
    assert state["detail"] == "its launcher ended while it submitted the run, which may lack nodes"
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{state['run']}: cancelled\n"), cancelled.stderr


def test_an_agent_that_cannot_be_recorded_does_not_start(launches: Cli, small_disk: Path) -> None:
    """A launcher that cannot record it leaves no process; the fixture checks that."""
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}
    launcher = launches.start("waits", "starts", "2", "local", "--nodes", "2", "waits.py", python=BEFALL, env=env)
    with launcher:
        until_reached(launches, 2, launcher)
        with (small_disk / "fill").open("wb", buffering=0) as file, suppress(OSError):  # no space left
            while True:
                file.write(b"\0" * 4096)
        (launches.directory / "go").write_text("")
        code, stderr = end(launcher)

    assert code == 4, stderr
    assert "error[storage]" in stderr


@pytest.mark.slow
def test_cancel_reaches_a_launcher_that_is_still_submitting_the_run(launches: Cli) -> None:
    words = ("local", "--output", "json", "--nodes", "2", "waits.py")
    with launches.start("waits", "starts", "2", *words, python=BEFALL) as launcher:
        until_reached(launches, 2, launcher)
        state = launches("status", "last", "--output", "json").json["result"]

        cancelled = launches("cancel", "last")

        stdout, told = launcher.communicate(timeout=60)
    code, stderr, printed = launcher.returncode, told.decode(), json.loads(stdout)
    envelope.check(printed)
    assert (printed["error"]["code"], printed["result"]["run"]) == ("run_cancelled", state["run"])
    assert (state["state"], state["detail"]) == (
        "pending",
        f"being submitted by `distlaunch local`, process {launcher.pid} on {os.uname().nodename}",
    )
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{state['run']}: cancelled\n"), cancelled.stderr
    assert code == 130, stderr
    assert "Traceback" not in stderr


def test_only_one_of_two_simultaneous_requeues_starts_the_run(launches: Cli) -> None:
    launches.write("once.py", "print('ran')\n")
    run = launches("local", "--nodes", "2", "once.py").stderr.split()[0]
    with launches.start("waits", "starts", "1", "requeue", "last", python=BEFALL) as first:
        until_reached(launches, 1, first)

        second = launches("requeue", "last")

        (launches.directory / "go").write_text("")
        code, stderr = end(first)
    assert code == 0, stderr
    assert second.exit_code == 2, second.stderr
    assert f"{run} is being changed by `distlaunch requeue`, process {first.pid} on " in second.stderr
    assert launches("logs", "-f", "last", "--rank", "0").stdout == "ran\nran\n"


def test_a_requeue_that_could_not_start_leaves_the_run_as_it_had_ended(launches: Cli) -> None:
    launches.write("fails.py", "raise SystemExit(3)\n")
    launches("local", "--nodes", "2", "fails.py")
    (directory,) = launches.runs.iterdir()
    before = json.loads((directory / "result.json").read_text())
    (directory / "agent.pyz").unlink()
    recorded = json.loads((directory / "run.json").read_text())
    recorded["handle"]["python"] = "/nowhere/python"
    (directory / "run.json").write_text(json.dumps(recorded))

    done = launches("requeue", "last")

    assert done.exit_code == 4, done.stderr
    assert "/nowhere/python cannot be started" in done.stderr
    assert json.loads((directory / "result.json").read_text()) == before
    assert launches("status", "last", "--output", "json").json["result"]["state"] == "failed"
