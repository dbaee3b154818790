"""Ansible ends once the hosts have answered: nothing waits for its own end, unless someone else hears of that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

HEARS = """
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "notification", "hears"

    def v2_playbook_on_stats(self, stats):
        with open(FILE, "a") as file:
            file.write(f"{sorted(stats.processed)}\\n")
"""
"""A site's callback plugin, such as one that records each play."""


def left_of_ansible() -> set[str]:
    """Directories that Ansible removes at its end."""
    return {path.name for path in (Path.home() / ".ansible/tmp").glob("*")}


def test_ansible_is_ended_with_the_last_answer_and_leaves_nothing(rack: Rack) -> None:
    rack.write("train.py", "print('trained', flush=True)\n")
    before = left_of_ansible()

    run = rack("--nodes", "2", "--name", "early", "train.py")

    assert run.exit_code == 0, run.stderr
    assert run.stdout == "trained\n"
    kept = rack.cli.runs / rack.id_of("early") / "ansible"
    log = (kept / "ansible.log").read_text()
    assert "TASK [distlaunch : Ask the hosts]" in log
    assert "PLAY RECAP" not in log, "Ansible's own end was waited for"
    assert not [path.name for path in kept.iterdir() if path.name.startswith("artifacts")]
    assert left_of_ansible() <= before


def test_hosts_that_cannot_take_part_are_named_though_ansible_is_ended(rack: Rack) -> None:
    rack.write("train.py", "")

    refused = rack("--nodes", "2", "--python", "/nowhere/python", "train.py")

    assert refused.exit_code == 3
    assert "2 of 2 hosts cannot take part; n1, n2: there is no /nowhere/python" in refused.stderr
    assert "ansible-playbook" not in refused.stderr


@pytest.mark.parametrize("how", ["callback", "log"])
def test_a_site_whose_callback_or_log_records_plays_has_the_whole_play(rack: Rack, how: str) -> None:
    rack.write("train.py", "")
    heard = rack.directory / "heard"
    plugin = rack.write("plugins/hears.py", HEARS.replace("FILE", repr(str(heard))))
    settings = {"callback": ("ANSIBLE_CALLBACK_PLUGINS", plugin.parent), "log": ("ANSIBLE_LOG_PATH", heard)}
    name, value = settings[how]

    run = rack("--nodes", "2", "--name", "heard", "train.py", env={name: str(value)})

    assert run.exit_code == 0, run.stderr
    assert {"callback": "['n1']", "log": "PLAY RECAP"}[how] in heard.read_text()
    assert "PLAY RECAP" in (rack.cli.runs / rack.id_of("heard") / "ansible/ansible.log").read_text()
