"""`distlaunch requeue`: the same run once more, in its directory."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from launcher.agent.system.processes import start_ticks

if TYPE_CHECKING:
    from tests.command import Cli

FAILS_FIRST = """
import os, sys
print("attempt", os.environ.get("DISTLAUNCH_ATTEMPT", "0"))
if "DISTLAUNCH_ATTEMPT" not in os.environ:
    raise ValueError("not the first time")
"""


def test_a_run_that_failed_is_started_again_in_its_directory(distlaunch: Cli) -> None:
    distlaunch.write("script.py", FAILS_FIRST)
    assert distlaunch("local", "--nodes", "2", "script.py").exit_code == 1

    started = distlaunch("requeue", "last", "--output", "json").json["result"]

    assert started["attempt"] == 1
    assert distlaunch("logs", "-f", "last", "--rank", "0").stdout == "attempt 0\nattempt 1\n"
    state = distlaunch("status", "last", "--output", "json").json["result"]
    assert (state["state"], state["exit_code"], state["attempt"], state["cause"]) == ("success", 0, 1, None)
    assert len(list(distlaunch.runs.iterdir())) == 1


def test_requeue_waits_for_an_agent_that_is_about_to_exit(distlaunch: Cli) -> None:
    distlaunch.write("script.py", "")
    assert distlaunch("local", "script.py").exit_code == 0
    (path,) = distlaunch.runs.glob("*/run.json")
    recorded = json.loads(path.read_text())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as lingers:
        recorded["handle"]["agents"] = [{"pid": lingers.pid, "start_ticks": start_ticks(lingers.pid)}]
        path.write_text(json.dumps(recorded))
        with distlaunch.start("requeue", "last") as requeue:
            with pytest.raises(subprocess.TimeoutExpired):
                requeue.wait(0.5)
            lingers.communicate()
            stdout, stderr = requeue.communicate(timeout=60)

    assert requeue.returncode == 0, stderr
    assert stdout.endswith(b": attempt 1\n")
    assert distlaunch("logs", "-f", "last").exit_code == 0


def test_a_run_that_still_runs_is_not_requeued(distlaunch: Cli) -> None:
    distlaunch.write("script.py", "import signal\nsignal.pause()\n")
    run = distlaunch("local", "--detach", "script.py").stdout.strip()

    done = distlaunch("requeue", run)

    assert done.exit_code == 2
    assert f"its agents still run\n  hint: distlaunch cancel {run}\n" in done.stderr
    ended = distlaunch("cancel", "--force", run)
    assert (ended.exit_code, ended.stdout) == (0, f"{run}: cancelled\n")


def test_a_run_on_this_machine_is_started_again_with_its_secrets_or_not_at_all(distlaunch: Cli) -> None:
    script = ("--no-python", "sh", "-c", "echo key $KEY_OF_MINE")
    assert distlaunch("local", "--secret", "KEY_OF_MINE", *script, env={"KEY_OF_MINE": "first"}).exit_code == 0

    refused = distlaunch("requeue", "last", env={"KEY_OF_MINE": None})
    assert refused.exit_code == 2
    assert "secret KEY_OF_MINE: not set in the current environment" in refused.stderr
    assert distlaunch("requeue", "last", env={"KEY_OF_MINE": "second"}).exit_code == 0
    assert distlaunch("logs", "-f", "last", "--rank", "0").stdout == "key first\nkey second\n"
