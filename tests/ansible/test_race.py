"""A run on two racks, over SSH: the first whose node 0 has the claim runs it, and the other's hosts are free again."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import SUM

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


def settings(rack: Rack, **inventories: str) -> None:
    """One cluster per inventory."""
    text = ""
    for name, hosts in inventories.items():
        path = rack.cli.write(f"{name}.ini", f"{hosts}\n[all:vars]\nansible_user=root\n"
                             f"ansible_ssh_common_args=-F {rack.ssh.config}\n")  # fmt: skip
        values = {
            "backend": "ansible", "inventory": [str(path)], "remote_dir": str(rack.remote), "python": sys.executable,
        }  # fmt: skip
        text += f"[clusters.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    rack.cli.write("system.toml", text)


def test_one_rack_runs_it_and_the_other_is_released(rack: Rack) -> None:
    names = [host.name for host in rack.ssh.hosts]
    settings(rack, left="\n".join(names[:2]), right="\n".join(names[2:4]))
    rack.write("sum.py", SUM)

    done = rack.shell("run", "--on", "left,right", "--start", "first", "--log-ranks", "all", "sum.py")

    assert done.exit_code == 0, done.stderr
    assert sorted(line.partition(" on ")[0] for line in done.stdout.splitlines()) == [
        "[0:0] rank 0/2",
        "[1:1] rank 1/2",
    ]
    state = rack.state("last")
    tries = state["race"]["tries"]
    assert len([each for each in tries if each["granted_at"]]) == 1
    assert all(each["granted_at"] or each["ended_at"] for each in tries)
    for name in ("left", "right"):
        hosts = rack.shell("hosts", "--on", name, "--output", "json").json["result"]["hosts"]
        assert [host["leases"] for host in hosts] == [[], []]
    rack.wait_nothing_left()


def test_a_rack_that_cannot_be_reached_leaves_the_run_to_the_other(rack: Rack) -> None:
    names = [host.name for host in rack.ssh.hosts]
    settings(rack, gone="gone ansible_host=127.0.0.1 ansible_port=1", right=names[2])
    rack.write("hello.py", "print('hello')\n")

    done = rack.shell("run", "--on", "gone,right", "--start", "first", "hello.py")

    assert (done.exit_code, done.stdout) == (0, "hello\n"), done.stderr
    assert "right starts first and gets the run" in done.stderr
