"""Hosts that are restarted, and have the remote directory in memory: what was there is gone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import WAITS

if TYPE_CHECKING:
    from testbed import Host
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

SHORTER = """
import os, signal
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print("attempt", attempt, "begins", flush=True)
if attempt == "0":
    print("x" * 50_000, "full", flush=True)
    signal.pause()
print("attempt", attempt, "ends", flush=True)
"""
"""Its second attempt writes less than its first."""

AUTOMOUNTER = """
import os, subprocess, sys
for_requests = os.pipe()[1]
options = f"fd={for_requests},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
sys.exit(subprocess.call(["mount", "-i", "-t", "autofs", "-o", options, "auto", sys.argv[1]], pass_fds=[for_requests]))
"""
"""Leaves a directory to an automounter, which ends at once: it mounts nothing."""


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


@pytest.mark.parametrize("automounter", [False, True])
def test_a_disk_that_is_not_mounted_yet_after_a_reboot_has_lost_nothing(rack: Rack, *, automounter: bool) -> None:
    (host,) = rack.ssh.hosts[:1]
    place, disk = rack.remote / "a disk", rack.cli.directory / "disk of n1"
    place.mkdir()
    disk.mkdir()
    if automounter:
        host.run((sys.executable, "-c", AUTOMOUNTER, str(place)), check=True, cwd="/")
    host.private_directory(place)
    host.run(("mount", "--bind", str(place), str(disk)), check=True, cwd="/")
    rack.write("ends.py", "print('ended')\n")
    run = rack.detached("--limit", "n1", "--remote-dir", str(place), "ends.py")
    rack.wait_nothing_left()

    def reboot_without_its_disk() -> None:
        host.kill()
        host.shared_directory(place)
        rack.ssh.start_sshd(host)

    def mount() -> None:
        host.run(("mount", "--bind", str(disk), str(place)), check=True, cwd="/")

    reboot_without_its_disk()
    early = rack.state(run)
    mount()
    later = rack.state(run)
    reboot_without_its_disk()
    too_early = rack.shell("rm", run)
    mount()
    removed = rack.shell("rm", run)
    left = list(host.path(place / "runs").iterdir())
    for directory in (disk, place, *([place] if automounter else [])):
        host.shared_directory(directory)

    why = f"n1: {place}/runs/{run} is on {place}, which is not mounted"
    assert (early["state"], early["detail"]) == ("unknown", f"no connection to {why}")
    assert later["state"] == "success"
    assert too_early.exit_code != 0
    assert why in too_early.stderr
    assert removed.exit_code == 0, removed.stderr
    assert left == []


@pytest.mark.parametrize("asked", [False, True])
def test_a_restarted_host_that_has_lost_the_run_starts_it_again_with_all_output(rack: Rack, *, asked: bool) -> None:
    (host,) = rack.ssh.hosts[:1]
    rack.private_disks(host)
    rack.write("shorter.py", SHORTER)
    options = () if asked else ("--nodes", "1", "--spares", "1", "--max-restarts", "2")
    launcher = rack.start("--in-place", "--limit", "n1" if asked else "n1,n2", *options, "shorter.py")
    launcher.until(" full")
    run = rack.id_of("shorter")

    reboot(rack, host)

    ended = launcher.end()
    if asked:
        assert ended == 1, launcher
        again = rack.shell("requeue", run)
        assert again.exit_code == 0, again.stderr
        launcher = rack.logs(run)
        ended = launcher.end()
    assert ended == 0, launcher
    said = [line for line in rack.shell("logs", run).stdout.splitlines() if "attempt" in line]
    assert said == ["[0:0] attempt 0 begins", "[0:0] attempt 1 begins", "[0:0] attempt 1 ends"]
    state = rack.state(run)
    assert (state["state"], state["attempt"], state["nodes"][0]["host"]) == ("success", 1, "n1")
