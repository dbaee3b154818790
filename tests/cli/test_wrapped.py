"""Agents below an interpreter that is a script (`module load ...; python "$@"`), and agents that do not respond."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from launcher.runs import directories
from launcher.service import observe
from testbed import wait_until
from tests.cli.following import WAITS, end, nothing_is_left, processes, recorded, until  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.command import Cli

WRAPPERS = {
    "that waits": '"{python}" "$@"\n',
    "that makes a session": 'setsid -w "{python}" "$@"\n',
    "that traps": 'trap "" TERM\n"{python}" "$@"\necho over >&2\n',
}


def wrapper(distlaunch: Cli, kind: str) -> str:
    path = distlaunch.write("wrapper", "#!/bin/sh\n" + WRAPPERS[kind].format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def noted(run: Path, node: int = 0) -> psutil.Process:
    """The agent, as it has recorded itself."""
    return psutil.Process(json.loads((run / "nodes" / str(node) / "agent.json").read_text())["pid"])


def waiting(distlaunch: Cli, *args: str) -> Path:
    """A detached run whose workers are up."""
    distlaunch.write("waits.py", WAITS)
    run = distlaunch("local", "--detach", *args, "waits.py").stdout.strip()
    with distlaunch.start("logs", "-f", run) as process:
        until(process, b"ready")
        process.kill()
    return distlaunch.runs / run


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRAPPERS)
def test_cancel_ends_the_agent_below_a_wrapper_before_it_reports_the_end(distlaunch: Cli, kind: str) -> None:
    run = waiting(distlaunch, "--nodes", "2", "--python", wrapper(distlaunch, kind))
    working = [noted(run, node) for node in (0, 1)]

    done = distlaunch("cancel", run.name)

    assert (done.exit_code, done.stdout) == (0, f"{run.name}: cancelled\n")
    last = [path.read_bytes().splitlines()[-1] for path in run.glob("nodes/*/stream")]
    assert [json.loads(line)["event"] for line in last] == ["done"] * 2
    assert not psutil.wait_procs(working, timeout=60)[1]  # they have sent their last message, and are about to exit


def test_a_run_below_a_wrapper_is_not_started_again_while_it_runs(distlaunch: Cli) -> None:
    run = waiting(distlaunch, "--python", wrapper(distlaunch, "that waits"))
    (parent,) = [noted(run).parent()]
    assert parent is not None
    parent.kill()

    done = distlaunch("requeue", run.name)

    assert done.exit_code == 2, done.stdout
    assert "still run" in done.stderr
    assert distlaunch("status", run.name, "--output", "json").json["result"]["state"] == "running"
    assert distlaunch("cancel", run.name).stdout == f"{run.name}: cancelled\n"
    assert not psutil.wait_procs(processes(distlaunch), timeout=60)[
        1
    ]  # it has sent its last message, and is about to exit


def test_ctrl_c_ends_a_followed_run_below_a_wrapper(distlaunch: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    with distlaunch.start("local", "--python", wrapper(distlaunch, "that waits"), "waits.py") as process:
        until(process, b"ready")
        process.send_signal(signal.SIGINT)
        code, stderr = end(process)

    assert code == 130, stderr
    assert recorded(distlaunch)["nodes"][0]["result"] == "cancelled"


@pytest.fixture
def stopped(distlaunch: Cli) -> Iterator[list[psutil.Process]]:
    """Processes that a test stops; they are resumed after it."""
    found: list[psutil.Process] = []
    yield found
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.parametrize("of", ["agent", "fork server", "whole tree"])
def test_force_kills_processes_that_do_not_respond(distlaunch: Cli, stopped: list[psutil.Process], of: str) -> None:
    run = waiting(distlaunch)
    agent = noted(run)
    stopped += {
        "agent": [agent],
        "fork server": agent.children(),
        "whole tree": [agent, *agent.children(recursive=True)],
    }[of]
    for process in stopped:
        process.suspend()

    done = distlaunch("cancel", "--force", run.name)

    assert (done.exit_code, done.stdout) == (0, f"{run.name}: cancelled\n"), done.stderr
    assert not [process for process in processes(distlaunch) if process.status() != psutil.STATUS_ZOMBIE]


def test_the_second_ctrl_c_kills_an_agent_that_does_not_respond(distlaunch: Cli, stopped: list[psutil.Process]) -> None:
    distlaunch.write("waits.py", WAITS)
    with distlaunch.start("local", "--grace", "300s", "waits.py") as process:
        until(process, b"ready")
        (run,) = distlaunch.runs.iterdir()
        stopped.append(noted(run))
        stopped[0].suspend()
        process.send_signal(signal.SIGINT)
        wait_until("the signal to be handled", (run / "cancel.json").exists, limit_s=60)
        process.send_signal(signal.SIGINT)
        code, stderr = end(process)

    assert code == 130, stderr
    assert recorded(distlaunch)["state"] == "cancelled"


def test_processes_that_are_left_after_force_are_named_by_pid(distlaunch: Cli) -> None:
    run = waiting(distlaunch)
    agent = noted(run).pid

    error = observe.not_ended(directories.find(distlaunch.runs, run.name), forced=True)

    assert error.hint == f"still there: pids {agent}; distlaunch cancel --force {run.name}"
    distlaunch("cancel", run.name)
