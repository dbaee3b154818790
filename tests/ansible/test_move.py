"""A run moves from one rack to another, over SSH: every node there gets the files of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.ansible.test_race import settings
from tests.moving import STEPS, went_on

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

IN_ALL = 100


def test_the_files_of_all_nodes_come_to_the_nodes_of_the_other_rack(rack: Rack) -> None:
    rack.private_disks(*rack.ssh.hosts[:4])
    names = [host.name for host in rack.ssh.hosts]
    settings(rack, left="\n".join(names[:2]), right="\n".join(names[2:4]))
    rack.write("steps.py", STEPS)
    started = rack.shell("run", "--on", "left", "--detach", "steps.py", str(IN_ALL))
    assert started.exit_code == 0, started.stderr
    run = started.stdout.strip()
    wait_until("steps", lambda: rack.shell("logs", run).stdout.count("step 3\n") == 2, limit_s=60)

    moved = rack.shell("move", run, "--to", "right", "--carry", "out/**", "--node", "all")

    assert moved.exit_code == 0, moved.stderr
    assert rack.shell("wait", run).exit_code == 0
    shown = rack.shell("logs", run).stdout
    went_on(shown, IN_ALL, 2)
    went_on(shown.replace("[0:0]", "[other]").replace("[1:1]", "[0:0]"), IN_ALL, 2)
    assert rack.shell("rm", run).exit_code == 0
    rack.wait_nothing_left()
