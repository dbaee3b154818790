"""Hosts that are restarted, and have the remote directory in memory: what was there is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import WAITS

if TYPE_CHECKING:
    from testbed import Host
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


def reboot(rack: Rack, host: Host) -> None:
    """Restart a host that has a disk of its own where runs are, which is empty then."""
    host.kill()
    host.shared_directory(rack.remote)
    host.private_directory(rack.remote)
    rack.ssh.start_sshd(host)


def test_a_run_whose_directory_is_gone_with_its_agent_has_ended(rack: Rack) -> None:
    hosts = rack.ssh.hosts[:2]
    rack.private_disks(*hosts)
    rack.write("waits.py", WAITS)
    followed = rack.start("--limit", "n1", "--name", "followed", "waits.py")
    followed.until("ready")
    run = rack.detached("--limit", "n2", "waits.py")
    logs = rack.logs(run)
    logs.until("ready")

    for host in hosts:
        reboot(rack, host)

    assert followed.end() == 1, followed
    assert f"host n1: {rack.remote}/runs/{rack.id_of('followed')} is gone\n" in followed.stderr
    cancelled = rack.shell("cancel", run)
    assert cancelled.exit_code == 0, cancelled.stderr
    assert rack.state(run)["state"] in ("failed", "cancelled")
    removed = rack.shell("rm", run)
    assert removed.exit_code == 0, removed.stderr
