"""`distlaunch ls`: which runs it lists, and what it shows of their commands."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command import Cli


def listed(cli: Cli, *words: str) -> list[str]:
    """Names of the runs that `ls` lists, sorted."""
    runs = cli("ls", "--output", "json", *words).json["result"]["runs"]
    return sorted(re.sub(r"-\d{8}-\d{6}-....$", "", run["run"]) for run in runs)


def test_runs_are_selected_by_state_time_and_name(distlaunch: Cli) -> None:
    distlaunch.write("bad", "#!/bin/sh\nexit 3\n").chmod(0o755)
    for name in ("One_a", "two"):
        assert distlaunch("local", "--name", name, "--no-python", "/bin/true").exit_code == 0
    assert distlaunch("local", "--no-python", "./bad").exit_code == 1
    old = distlaunch.runs / "two-20250101-120000-abcd"
    old.mkdir()

    assert listed(distlaunch) == ["bad", "one-a", "two", "two"]
    assert listed(distlaunch, "--state", "failed") == ["bad"]
    assert listed(distlaunch, "--state", "running, success") == ["one-a", "two"]
    assert listed(distlaunch, "--since", "2h") == ["bad", "one-a", "two"]
    assert listed(distlaunch, "--since", "2025-01-02") == ["bad", "one-a", "two"]
    assert listed(distlaunch, "--since", time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() + 120))) == []
    assert listed(distlaunch, "--name", "One_a") == ["one-a"], "as a launch takes it"
    assert listed(distlaunch, "--name", "tw") == []
    assert listed(distlaunch, "--name", "two", "--state", "success") == ["two"]
    assert listed(distlaunch, "--state", "success,unknown", "-n", "2") == ["one-a", "two"], "the limit counts last"
    assert "no such run" in distlaunch("ls", "--state", "running").stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--state", "sucess"), "there is no state 'sucess'.*did you mean success"),
        (("--since", "yesterday"), "'yesterday' is neither a duration nor a date.*2026-11-20"),
        (("--since", "99999-01-01"), "neither a duration nor a date"),
    ],
)
def test_a_condition_that_cannot_be_read_is_an_error(distlaunch: Cli, words: tuple[str, str], says: str) -> None:
    done = distlaunch("ls", *words)

    assert done.exit_code == 2
    assert re.search(says, done.stderr, re.DOTALL), done.stderr


@pytest.mark.torch
def test_scripts_are_shown_as_the_user_knows_them(distlaunch: Cli) -> None:
    inside = distlaunch.write("here/x", "#!/bin/sh\n")
    inside.chmod(0o755)
    run = ("local", "--no-python")
    assert distlaunch(*run, str(inside), "--lr", "1").exit_code == 0
    assert distlaunch(*run, "/bin/true", os.path.dirname(inside)).exit_code == 0
    distlaunch("local", "reduce.py", "--help")

    rows = distlaunch("ls").stdout.splitlines()[1:]

    shown = {re.split(r" {2,}", row)[-1] for row in rows}
    assert shown == {"here/x --lr 1", f"/bin/true {inside.parent}", "reduce.py --help"}
    commands = [run["command"] for run in distlaunch("ls", "--output", "json").json["result"]["runs"]]
    assert [os.path.isabs(command[0]) for command in commands] == [True, True, True], "JSON has it as it was"
