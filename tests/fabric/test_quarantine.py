"""The list of hosts that later submissions exclude."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from launcher.errors import StorageError
from launcher.settings import quarantine
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_quarantine_is_kept_per_cluster_until_a_host_is_released(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert quarantine.hosts("lab", env) == {}

    quarantine.add("lab", {"n3": "links: slow"}, env)
    quarantine.add("lab", {"n4": "disk: full"}, env)
    quarantine.add("other", {"n9": "gpu: Xid 79"}, env)
    assert quarantine.hosts("lab", env) == {"n3": "links: slow", "n4": "disk: full"}

    quarantine.release("lab", ("n3",), env)
    assert list(quarantine.hosts("lab", env)) == ["n4"]


@pytest.mark.parametrize("text", ["not json", "[]", '{"lab": {"n3": "slow"}}', ""])
def test_a_damaged_list_of_bad_hosts_is_an_error_and_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    file = tmp_path / "distlaunch/quarantine.json"
    file.parent.mkdir()
    file.write_text(text)

    for use in (partial(quarantine.hosts, "lab"), partial(quarantine.add, "lab", {"n4": "disk: full"})):
        with pytest.raises(StorageError, match=f"{file} is damaged"):
            use(env)

    assert file.read_text() == text


def test_hosts_that_several_commands_put_into_quarantine_at_once_are_all_there(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    add = "import sys; from launcher.settings import quarantine; "
    add += f"[quarantine.add('lab', {{f'{{sys.argv[1]}}-{{each}}': 'slow'}}, {env}) for each in range(5)]"
    commands = [subprocess.Popen([sys.executable, "-c", add, str(number)], cwd=ROOT) for number in range(4)]

    assert [command.wait() for command in commands] == [0] * 4
    assert len(quarantine.hosts("lab", env)) == 20
