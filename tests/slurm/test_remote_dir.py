"""`remote_dir`, which the nodes of a cluster behind its login node have to see: what is told if they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm.test_through_login import WAITS

if TYPE_CHECKING:
    from tests.slurm.laptop import Laptop

pytestmark = pytest.mark.slurm


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
