"""An elastic run whose inventory has a host that cannot take part: it starts without that host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import WAITS

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


def test_the_host_that_was_left_out_is_that_of_the_node_that_has_not_started(rack: Rack) -> None:
    rack.write("waits.py", WAITS)
    n1, n2, n3 = (f"{host.name} ansible_host={host.address}" for host in rack.ssh.hosts[:3])
    inventory = rack.inventory(f"{n1} ansible_port=1\n{n2}\n{n3}")
    started = rack("--detach", "--nodes", "2:3", "waits.py", inventory=inventory)
    assert started.exit_code == 0, started.stderr
    assert "left out: n1: " in started.stderr
    run = started.stdout.strip()

    hosts = [node["host"] for node in rack.state(run)["nodes"]]

    assert rack.shell("cancel", run).exit_code == 0
    assert hosts == ["n2", "n3", "n1"]
