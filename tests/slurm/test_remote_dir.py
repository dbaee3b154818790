"""`remote_dir` of a cluster behind its login node: what is told if its nodes do not see it, or if it is full."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from launcher.payload import agent_archive
from testbed import NotAvailableError, disk, wait_until
from tests.slurm.laptop import LIMIT_S
from tests.slurm.test_login_faults import jobs
from tests.slurm.test_through_login import WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from testbed.hosts import Host
    from tests.slurm.laptop import Laptop

    Disk = Callable[[Path, list[Host], int], AbstractContextManager[None]]

pytestmark = pytest.mark.slurm

FILLS = """
import os, sys, time
print("line", flush=True)
try:
    with open("large", "wb", buffering=0) as file:
        while True:
            file.write(os.urandom(100_000))
except OSError:
    pass
try:
    with open("small", "wb", buffering=0) as file:
        while True:
            file.write(os.urandom(100))
except OSError:
    pass
open(sys.argv[1] + ".full", "w").close()
while not os.path.exists(sys.argv[1]):
    print("x" * 200, flush=True)
    time.sleep(0.1)
sys.exit(7)
"""


def test_a_directory_that_nodes_do_not_see_is_warned_of_before_the_job_and_named_after_it(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    laptop.top.mkdir()
    nodes = laptop.node.slurm.hosts
    for host in nodes:
        host.private_directory(laptop.top)
    try:
        unseen = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
    finally:
        for host in nodes:
            host.shared_directory(laptop.top)
    first = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
    second = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")

    warning = f"warning: juno: remote_dir {laptop.top} is on a local disk of {laptop.node.host.name} ("
    assert unseen.exit_code == 1
    assert unseen.stderr.index(warning) < unseen.stderr.index(" on slurm, cluster juno, job ")
    assert f"do all nodes see {laptop.top}/runs/" in unseen.stderr
    assert "name another remote_dir" in unseen.stderr
    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr
    assert warning in first.stderr
    assert "local disk" not in second.stderr, "a node has written there"


def test_a_login_node_that_is_the_only_node_of_the_partition_has_a_disk_that_its_node_sees(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    name = laptop.node.host.name
    laptop.node.stand_in("sinfo", f"echo 'main*|1|{name}|(null)'")
    try:
        done = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
    finally:
        laptop.node.stand_in("sinfo")

    assert done.exit_code == 0, done.stderr
    assert "local disk" not in done.stderr


def room_bytes() -> int:
    """Room for an agent twice, as sent and as it is run, for a file system's own, and for little else."""
    return 2 * len(agent_archive.packed()) + 2_000_000


@contextmanager
def remote_disk(laptop: Laptop, kind: Disk) -> Iterator[None]:
    """`remote_dir` has room for the agent and little else."""
    laptop.top.mkdir()
    hosts = dict.fromkeys((laptop.node.host, *laptop.node.slurm.hosts))
    try:
        with kind(laptop.top, list(hosts), room_bytes()):
            yield
            laptop.node.slurm.cancel_all()
    except NotAvailableError as error:
        pytest.skip(str(error))


def test_a_quota_that_is_used_up_is_named_and_nothing_is_submitted(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    with remote_disk(laptop, disk.with_quota):
        small = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
        laptop.cli.directory.joinpath("large.bin").write_bytes(os.urandom(room_bytes()))
        before = jobs(laptop)
        done = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
        after = jobs(laptop)

    assert small.exit_code == 0, small.stderr
    assert done.exit_code == 4, done.stderr
    assert "Disk quota exceeded" in done.stderr
    assert "nothing was submitted" in done.stderr
    assert after == before


@pytest.mark.parametrize(
    ("kind", "told"), [(disk.small, "the disk of the run directory is full"), (disk.with_quota, "")]
)
def test_a_disk_that_a_run_fills_is_told_while_it_runs_and_the_run_comes_to_its_end(
    laptop: Laptop, kind: Disk, told: str
) -> None:
    """On btrfs, which writes nothing in place, the agent cannot even use the room that it has reserved."""
    laptop.cli.write("fills.py", FILLS)
    end, screen = laptop.home / "end", laptop.home / "screen"
    words = ("run", "--on", "juno", "--gres", "none", "fills.py", str(end))
    with remote_disk(laptop, kind):
        with screen.open("wb") as file:
            follower = laptop.cli.start(*words, env=laptop.env(), stdout=file, stderr=file)
        wait_until("the disk to be full", end.with_suffix(".full").exists, limit_s=LIMIT_S)
        wait_until("the warning", lambda: told in screen.read_text(), limit_s=LIMIT_S)
        seen = laptop.status()
        end.touch()
        follower.wait(timeout=2 * LIMIT_S)
        ended = laptop.status()

    assert seen["state"] == "running"
    assert (follower.returncode, ended["state"]) == (1, "failed"), screen.read_text()
    if told:
        assert seen["nodes"][0]["lines_lost"] > 0
        assert "exited with code 7" in screen.read_text()
