"""Heterogeneous jobs, in Slurm's variables and in what its commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.agent.contracts._contract import fitting
from launcher.agent.job import Job
from launcher.agent.ranks import Group, Ranks
from launcher.agent.schedulers import slurm as nodes
from launcher.backends.slurm import adoption, states
from tests.slurm.commands import pretend

if TYPE_CHECKING:
    from tests.command import Cli

RUN = "pair-20250101-120000-abcd"
ENV = {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n[10-11]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    "SLURM_STEP_NODELIST": "n[2-3,10-11]",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_CPUS_PER_TASK_HET_GROUP_0": "8",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_GPUS_ON_NODE": "4",
}


def at(host: str, task: int) -> dict[str, str]:
    """The variables of an agent."""
    return {**ENV, "SLURMD_NODENAME": host, "SLURM_PROCID": str(task)}


def a_job(*sizes: int) -> Job:
    """A job with roles of these sizes."""
    roles = [{"name": f"role{number}", "nodes": size, "workers": "auto"} for number, size in enumerate(sizes)]
    return Job(
        run=RUN, command=["x.py"], kind="script", cwd="/", env={}, directory="/nowhere", rendezvous={"file": "x"},
        max_nodes=sum(sizes), roles=roles,
    )  # fmt: skip


def test_the_nodes_of_each_group_follow_those_of_the_group_before() -> None:
    hosts = ["n10", "n11", "n2", "n3"]
    assert nodes.place_in_groups(at("n10", 0)) == (0, hosts)
    assert nodes.place_in_groups(at("n3", 3)) == (3, hosts)
    assert nodes.names(at("n3", 3))["group"] == "1"
    alone = {**at("n3", 1), "SLURM_STEP_NODELIST": "n[2-3]"}
    assert nodes.place_in_groups(alone) == (1, ["n2", "n3"])
    assert nodes.names(alone)["group"] == "1"
    plain = {"SLURM_JOB_NODELIST": "n[9-11]", "SLURMD_NODENAME": "n10", "SLURM_PROCID": "1"}
    assert nodes.place_in_groups(plain) == (1, ["n9", "n10", "n11"])
    assert nodes.names(plain)["group"] == ""


def test_an_agent_takes_the_gpus_of_its_node_and_refuses_another_number_of_nodes() -> None:
    job, rank = nodes.here(a_job(2, 2), at("n2", 2))
    assert (rank, job.max_nodes, [role["workers"] for role in job.roles or ()]) == (2, 4, [4, 4])
    with pytest.raises(nodes.SlurmError, match="the roles have 3 nodes, and the step has 4"):
        nodes.here(a_job(2, 1), at("n2", 2))


def test_workers_find_the_nodes_of_their_role() -> None:
    job = a_job(2, 2)._replace(role="role1")
    group = Group(1, 2, 1, "role1", "n2", 1, 0, [1, 1])
    told = {each.name: each.value for each in nodes.of_worker(job, group, Ranks(1, 0, 1, 2, 2), at("n3", 3))}
    assert told["SLURM_JOB_NODELIST"] == told["SLURM_STEP_NODELIST"] == "n[2-3]"
    assert (told["SLURM_NNODES"], told["SLURM_NTASKS"], told["SLURM_NODEID"]) == ("2", "2", "1")
    assert told["SLURM_CPUS_PER_TASK"] == "2", "not that of the first group"
    assert "SLURM_JOB_ID" not in told


def test_workers_are_distributed_in_blocks_though_their_agents_are_not() -> None:
    """Intel MPI takes ranks for those of one node by this variable."""
    job, group = a_job(4)._replace(roles=None), Group(1, 4, 2, "default", "n10", 1, 0, [2] * 4)
    env = {**at("n11", 1), "SLURM_DISTRIBUTION": "cyclic"}
    told = {each.name: each.value for each in nodes.of_worker(job, group, Ranks(2, 0, 2, 8, 2), env)}
    assert (told["SLURM_DISTRIBUTION"], told["SLURM_GTIDS"]) == ("block", "2,3")


def test_the_nodes_of_a_large_role_fit_into_a_variable() -> None:
    """No program starts with one of more than 128 KiB."""
    count, host = 10_000, "gpu-node-00001"
    hosts = f"gpu-node-[00001-{count}]"
    env = {"SLURM_JOB_NODELIST": hosts, "SLURM_STEP_NODELIST": hosts, "SLURMD_NODENAME": host, "SLURM_PROCID": "0"}
    job, group = a_job(count)._replace(role="role0"), Group(0, count, 8, "role0", host, 1, 0, [8] * count)

    kept, left = fitting(nodes.of_worker(job, group, Ranks(0, 0, 0, 8 * count, 8), env))

    assert left == []
    assert {each.value for each in kept if each.name.endswith("NODELIST")} == {hosts}


@pytest.mark.parametrize(
    ("components", "state"),
    [
        ("COMPLETED RUNNING", "RUNNING"),
        ("PENDING PENDING", "PENDING"),
        ("RUNNING NODE_FAIL", "RUNNING"),
        ("CANCELLED NODE_FAIL FAILED", "NODE_FAIL"),
        ("COMPLETED FAILED", "FAILED"),
        ("COMPLETED COMPLETED", "COMPLETED"),
        ("CANCELLED+ COMPLETED", "CANCELLED+"),
    ],
)
def test_one_state_stands_for_all_components(components: str, state: str) -> None:
    assert states.of_all(components.split()) == state


def test_components_are_listed_as_one_run_with_hosts_in_their_order(distlaunch: Cli) -> None:
    rest = f"distlaunch:{RUN}|pair|/nowhere/{RUN}/job.sbatch"
    first = f"4711+0|N/A|RUNNING|2025-01-01T00:00:00|alice|2|n[10-11]|{rest}"
    second = f"4711+1|N/A|RUNNING|2025-01-01T00:00:00|alice|1|n2|{rest}"
    both = f"case $1 in --states=all) echo '{first}'; echo '{second}';; esac\n"
    sent = f"2025-01-01T00:00:00|alice|{{}}|pair|sbatch /nowhere/{RUN}/job.sbatch"
    rows = [f"4711+0|COMPLETED|{sent.format('2|n[10-11]')}", f"4711+1|FAILED|{sent.format('1|n2')}"]
    past = "".join(f"echo '{row}'\n" for row in rows)

    for commands, state in (({"squeue": both}, "running"), ({"sacct": past}, "failed")):
        env = pretend(distlaunch, commands)
        (row,) = distlaunch("ls", "--on", "slurm", "--output", "json", env=env).json["result"]["runs"]
        assert (row["run"], row["job_id"], row["nodes"], row["state"]) == (RUN, "4711", "3", state)
        assert row["hosts"] == ["n10", "n11", "n2"]


@pytest.mark.parametrize(
    ("roles", "names"),
    [
        ([{"name": "a", "nodes": 2}, {"name": "b", "nodes": 1}], ["a", "a", "b"]),
        (None, []),
        (7, []),
        ([None, {"nodes": -1}], ["None"]),
    ],
)
def test_the_roles_in_a_request_of_another_user_may_be_anything(roles: object, names: list[str]) -> None:
    assert adoption.roles_of({"roles": roles}) == names
