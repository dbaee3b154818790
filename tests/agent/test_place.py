"""What a worker is given of its node: role, GPU, CPUs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import psutil
import pytest

from launcher.agent.fabric import numa

if TYPE_CHECKING:
    from tests.agent.harness import Runner

NAMES = ("ROLE_NAME", "LOCAL_RANK", "RANK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
SHOW = f"import os\nprint(*map(os.environ.get, {NAMES}))\n"


def test_a_role_is_passed_to_the_workers(agents: Runner) -> None:
    assert agents(SHOW, role="trainer").stdout[0].split()[0] == b"trainer"


@pytest.mark.parametrize(
    ("env", "seen"),
    [
        (("CUDA_VISIBLE_DEVICES=3, 5,7",), [b"default 0 0 3 None\n", b"default 0 1 5 None\n"]),
        (("HIP_VISIBLE_DEVICES=6,4",), [b"default 0 0 6 6\n", b"default 0 1 4 4\n"]),
        ((), [b"default 0 0 0 None\n", b"default 0 1 1 None\n"]),
    ],
    ids=["CUDA", "HIP", "nothing set"],
)
def test_with_a_virtual_local_rank_each_worker_sees_its_own_gpu_alone(
    agents: Runner, env: tuple[str, ...], seen: list[bytes]
) -> None:
    run = agents(SHOW, nproc_per_node="2", env=env, virtual_local_rank=True)

    assert [run.stdout[0], run.stdout[1]] == seen


def test_a_worker_without_a_gpu_of_its_own_is_an_error_that_all_nodes_name(agents: Runner) -> None:
    run = agents(SHOW, nodes="2", nproc_per_node="2", env=("CUDA_VISIBLE_DEVICES=3",), virtual_local_rank=True)

    assert run.result() == "failed"
    why = {(fields["cause"]["class"], fields["cause"]["message"]) for fields in run.of("done")}
    assert why == {("node", "--virtual-local-rank: local rank 1 has no GPU in CUDA_VISIBLE_DEVICES=3")}


CORES = min(len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or 1)
BOUND = "import os\nprint(sorted(os.sched_getaffinity(0)))\n"


@pytest.mark.skipif(CORES < 2, reason="needs two cores, to give each worker one of its own")
def test_workers_are_bound_to_cpus_which_are_reported(agents: Runner) -> None:
    run = agents(BOUND, nproc_per_node="2", numa_binding="exclusive")

    bound = {rank: json.loads(line) for rank, line in run.stdout.items()}
    assert {fields["rank"]: numa.numbers(fields["cpus"]) for fields in run.of("worker_started")} == bound
    assert all(bound.values())
    assert not {*bound[0]} & {*bound[1]}


def test_more_workers_than_cpus_cannot_have_their_own(agents: Runner) -> None:
    run = agents(BOUND, nproc_per_node="64", numa_binding="exclusive")

    assert run.result() == "failed"
    assert "has no CPU on NUMA node 0: 64 workers are there" in run.cause()["message"]


@pytest.mark.torch
def test_a_bound_worker_counts_its_own_cpus_where_no_number_of_threads_is_given(agents: Runner) -> None:
    run = agents("import torch\nprint(torch.get_num_threads())\n", numa_binding="node")

    assert run.result() == "success", run.stderr
    assert "torch counts the CPUs that a worker is bound to when it is imported" in run.of("warning")[0]["message"]


def test_if_no_rdma_port_is_nearer_to_a_gpu_a_warning_says_so(agents: Runner) -> None:
    run = agents("print('ran')\n", near_nics=True, env=("CUDA_VISIBLE_DEVICES=-1",))

    assert (run.result(), bytes(run.stdout[0])) == ("success", b"ran\n")
    assert "no RDMA ports are nearer to one GPU" in run.of("warning")[0]["message"]
