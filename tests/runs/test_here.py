"""Runs on this machine that another shell, with another directory of runs, has started."""

from __future__ import annotations

import getpass
import json
import os
import socket

import pytest

from tests.command import Cli

WAITS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Another shell."""
    return Cli(tmp_path_factory.mktemp("other"))


def test_a_run_of_another_shell_is_listed_adopted_and_ended(distlaunch: Cli, other: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    run = distlaunch("local", "--nodes", "2", "-d", "waits.py").stdout.strip()

    (row,) = (
        row for row in other("ls", "--on", "local", "--output", "json").json["result"]["runs"] if row["run"] == run
    )
    about = {"state": "running", "nodes": "2", "user": getpass.getuser(), "job_id": None}
    assert row == {**row, **about, "hosts": [socket.gethostname()] * 2}
    assert row["command"][0].endswith("waits.py")
    assert other("status", run).exit_code == 2

    assert other("status", "--on", "local", run).exit_code == 0
    with other.start("logs", "-f", "--rank", "0", run) as process:
        assert process.stdout
        assert process.stdout.readline() == b"here\n"
        assert other("cancel", run).stdout == f"{run}: cancelled\n"
        process.communicate(timeout=60)
    assert json.loads(distlaunch("status", run, "--output", "json").stdout)["result"]["state"] == "cancelled"
    assert run not in other("ls", "--on", "local").stdout
    assert other("wait", run).exit_code == 130
    assert other("rm", run).exit_code == 0
    assert (other("status", run).exit_code, distlaunch("status", run).exit_code) == (2, 0)


def test_what_cannot_be_adopted_is_one_error(distlaunch: Cli, other: Cli) -> None:
    distlaunch.write("waits.py", WAITS)
    run = distlaunch("local", "-d", "waits.py").stdout.strip()
    directory = distlaunch.runs / run

    missing = other("attach", "--on", "local", "nope-20250101")
    assert (missing.exit_code, "no run 'nope-20250101' on this machine" in missing.stderr) == (2, True)
    directory.chmod(0o777)
    refused = other("status", "--on", "local", run)
    assert (refused.exit_code, refused.stderr.count("error"), str(directory) in refused.stderr) == (2, 1, True)
    directory.chmod(0o700)
    assert other("adopt", run, "--on", "lab").exit_code == 2
    (other.directory / "distlaunch.toml").write_text('[clusters.lab]\nbackend = "local"\n')
    assert other("adopt", run, "--on", "lab").stdout == f"{run}\n"
    again = other("adopt", run, "--on", "lab")
    assert (again.exit_code, f"{run} is already known here" in again.stderr) == (2, True)
    assert distlaunch("cancel", "--force", run).exit_code == 0


def test_a_link_to_a_run_that_is_gone_is_no_run(distlaunch: Cli) -> None:
    distlaunch.runs.mkdir(mode=0o700)
    os.symlink("/nowhere", distlaunch.runs / "gone-20250101-101010-abcd")
    assert distlaunch("ls", "--output", "json").json["result"] == {"runs": []}
