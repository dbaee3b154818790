"""Slurm's host lists and the order of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.agent.schedulers import slurm as nodes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("broken", ["n[1-3", "n1-3]", "n[a-b]", "n[1-]", "n[]", "n[[1]]"])
def test_a_broken_hostlist_is_named(broken: str) -> None:
    with pytest.raises(nodes.SlurmError, match="hostlist"):
        nodes.expand(broken)


def test_ranks_follow_the_numbers_in_names_and_the_leaf_switches() -> None:
    hosts = ["n10", "n2", "n1", "m3"]
    topology = (
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1,10]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n2,m3\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-2,10],m3 Switches=s[0-1]\n"
    )
    assert nodes.order(hosts) == ["m3", "n1", "n2", "n10"]
    assert nodes.order(hosts, topology) == ["n1", "n10", "m3", "n2"]


BLOCKS = (
    "BlockName=b0 BlockIndex=0 Nodes=10.140.71.103,10.140.88.115 BlockSize=2\n"
    "BlockName=b1 BlockIndex=1 Nodes=10.140.79.152,10.140.93.120 BlockSize=2\n"
    "AggregatedBlock=b[0-1] BlockIndex=2 Nodes=10.140.71.103,10.140.79.152,10.140.88.115,10.140.93.120 BlockSize=4\n"
)
"""What a cluster of GB300 with topology/block has reported."""


def test_ranks_of_a_block_follow_one_another() -> None:
    hosts = ["10.140.71.103", "10.140.79.152", "10.140.88.115", "10.140.93.120"]

    assert nodes.order(hosts, BLOCKS) == ["10.140.71.103", "10.140.88.115", "10.140.79.152", "10.140.93.120"]


def test_the_place_of_a_node_comes_from_slurms_variables() -> None:
    env = {"SLURM_JOB_NODELIST": "n[9-11]", "SLURMD_NODENAME": "n10"}
    assert nodes.place(env) == (1, ["n9", "n10", "n11"])
    assert nodes.place({**env, "SLURM_STEP_NODELIST": "n[10-11]"}) == (0, ["n10", "n11"])
    with pytest.raises(nodes.SlurmError, match="not among"):
        nodes.place({**env, "SLURMD_NODENAME": "x"})
    with pytest.raises(nodes.SlurmError, match="srun"):
        nodes.place({})


def test_the_topology_may_be_larger_than_a_variable_can_be(tmp_path: Path) -> None:
    wired = "".join(f"SwitchName=s{leaf:05} Level=0 LinkSpeed=1 Nodes=n{leaf}\n" for leaf in range(8000, 0, -1))
    file = tmp_path / "topology"
    file.write_text(wired)
    env = {"SLURM_JOB_NODELIST": "n[9-11]", "SLURMD_NODENAME": "n9", "DISTLAUNCH_SLURM_TOPOLOGY_FILE": str(file)}

    assert len(wired) > 128 * 1024
    assert nodes.place(env) == (2, ["n11", "n10", "n9"])
    file.unlink()
    with pytest.raises(nodes.SlurmError, match="topology: No such file"):  # its ranks would not be those of the others
        nodes.place(env)
