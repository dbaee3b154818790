"""What stands, as commands and functions list and end it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import distlaunch
from launcher.agent.warm import records
from tests.command import Cli
from tests.warm.conftest import TORCH, left_by

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Result
    from tests.warm.conftest import Warm

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("command", ["ls", "cancel"])
def test_the_setting_of_the_output_counts(tmp_path: Path, command: str) -> None:
    distlaunch = Cli(tmp_path)
    env: dict[str, str | None] = {records.DIRECTORY: str(tmp_path)}
    distlaunch.write(".config/distlaunch/config.toml", 'output = "json"\n')

    assert distlaunch(command, "--warm", env=env).json["command"] == command
    refused = distlaunch(command, "--warm", "--output", "nope", env=env)
    assert (refused.exit_code, "'nope' is not known" in refused.stderr + refused.stdout) == (2, True)


def test_commands_and_functions_list_and_end_the_same(warm: Warm, tmp_path: Path) -> None:
    def command(*words: str) -> Result:
        return Cli(tmp_path)(*words, env={records.DIRECTORY: os.environ[records.DIRECTORY]})

    def listed() -> Any:
        return command("ls", "--warm", "--output", "json").json["result"]["warm"]

    def without_memory(servers: Any) -> list[dict[str, Any]]:
        return [{**each, "memory_bytes": None} for each in servers]

    pids = [left_by(warm(TORCH)), left_by(warm(TORCH, preload=["json"]))]

    ours, theirs = distlaunch.warm_servers(), listed()
    assert [each["pid"] for each in ours] == pids[::-1]
    assert without_memory(ours) == without_memory(theirs)
    ended = distlaunch.end_warm_servers()

    assert without_memory(ended) == without_memory(ours)
    assert distlaunch.warm_servers() == listed() == []
    assert "nothing was left standing here" in command("cancel", "--warm").stdout
