"""All hosts are asked from one task: what Ansible knows of its first host is not about the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.backends.ansible import inventory
from launcher.errors import SpecError

if TYPE_CHECKING:
    from tests.command import Cli

SSH = """#!/bin/sh
echo "$*" >>{}
exit 255
"""
HOSTS = """
h1 ansible_user=alice ansible_ssh_timeout=7
h2
[all:vars]
ansible_ssh_executable={}
ansible_python_interpreter=auto_silent
"""


def test_each_host_is_reached_as_it_is_described_itself(distlaunch: Cli) -> None:
    """Also if Ansible is verbose, and if its own tasks are to look for a Python."""
    calls = distlaunch.directory / "calls"
    ssh = distlaunch.write("ssh", SSH.format(calls))
    ssh.chmod(0o755)
    distlaunch.write("hosts.ini", HOSTS.format(ssh))
    distlaunch.write("ansible.cfg", "[defaults]\nverbosity = 1\n")
    distlaunch.write("x.py", "print(1)\n")

    done = distlaunch("ansible", "--inventory", "hosts.ini", "x.py", env={"ANSIBLE_CONFIG": None})

    assert done.exit_code == 3, done.stderr
    first, second = (
        next(line for line in calls.read_text().splitlines() if f" {host} " in line) for host in ("h1", "h2")
    )
    assert "alice" in first
    assert "ConnectTimeout=7" in first
    assert "alice" not in second
    assert "ConnectTimeout=7" not in second
    assert "auto_silent" not in second
    assert "python3" in second


def test_what_is_no_list_of_hosts_is_one_clear_error() -> None:
    assert inventory._answer('Using /etc/ansible.cfg\n{"all": {}}\n', "h1,") == {"all": {}}
    with pytest.raises(SpecError, match="prints no list of hosts, but 'Using a stand-in'"):
        inventory._answer("Using a stand-in\n", "h1,")
