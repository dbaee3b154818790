"""Workers are bound to the CPUs that torchrun would bind them to."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from launcher.agent.fabric import numa
from launcher.agent.fabric.sources import Tree
from launcher.agent.system.folding import ranges

if TYPE_CHECKING:
    from pathlib import Path

SOCKETS, NODES, CORES, SHARED = 2, 2, 6, 3
"""Two sockets with two NUMA nodes each, of six cores with two threads; three cores share a cache."""

ALL = range(SOCKETS * NODES * CORES * 2)
"""First the first threads of all cores, then the second ones."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    root = tmp_path_factory.mktemp("host")

    def write(path: str, text: str) -> None:
        file: Path = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    cores = SOCKETS * NODES * CORES
    for node in range(SOCKETS * NODES):
        first = node * CORES
        last = first + CORES - 1
        write(f"sys/devices/system/node/node{node}/cpulist", f"{first}-{last},{first + cores}-{last + cores}")
    for cpu in ALL:
        core = cpu % cores
        at = f"sys/devices/system/cpu/cpu{cpu}"
        write(f"{at}/topology/thread_siblings_list", f"{core},{core + cores}")
        write(f"{at}/topology/physical_package_id", str(core // (NODES * CORES)))
        start = core // SHARED * SHARED
        for index, (level, kind, shared) in enumerate(
            (
                (1, "Data", f"{core},{core + cores}"),
                (1, "Instruction", str(cpu)),
                (3, "Unified", f"{start}-{start + 2},{start + cores}-{start + cores + 2}"),
            )
        ):
            for name, text in (("level", str(level)), ("type", kind), ("shared_cpu_list", shared)):
                write(f"{at}/cache/index{index}/{name}", text)
    return Tree(str(root))


GPUS = [0, 0, 1, 3, 3, 3]


@pytest.mark.torch
@pytest.mark.parametrize("mode", numa.MODES)
@pytest.mark.parametrize("allowed", [None, 7, 8], ids=["all CPUs", "some", "others"])
def test_cpus_are_those_that_torchrun_binds_to(host: Tree, mode: str, allowed: int | None) -> None:
    import builtins

    from torch.numa import binding

    mine = set(ALL) if allowed is None else set(random.Random(allowed).sample(ALL, 40))
    theirs = []
    real_open, options = open, binding.NumaOptions(binding.AffinityMode(mode))

    def opened(path: str, *more: object, **named: object) -> object:
        return real_open(host.path(path) if str(path).startswith("/sys/") else path, *more, **named)  # type: ignore[call-overload]

    listed = os.listdir
    with (
        mock.patch.object(builtins, "open", opened),
        mock.patch.object(os, "listdir", lambda path: listed(host.path(path) if path.startswith("/sys/") else path)),
        mock.patch.object(binding, "_get_numa_node_index_for_device_index", lambda *, device_index: GPUS[device_index]),
        mock.patch.object(binding, "_get_device_count", return_value=len(GPUS)),
        mock.patch.object(binding, "_get_allowed_cpu_indices_for_current_thread", return_value=mine),
        mock.patch.object(
            binding,
            "_get_numa_node_indices_for_socket_index",
            lambda *, socket_index: {2 * socket_index, 2 * socket_index + 1},
        ),
    ):
        theirs = [
            binding._get_logical_cpus_to_bind_to(device_index=rank, numa_options=options) for rank in range(len(GPUS))
        ]

    assert numa.bindings(mode, len(GPUS), GPUS, mine, host) == [frozenset(cpus) for cpus in theirs]


def test_without_gpus_workers_are_spread_and_without_nodes_there_is_one(host: Tree, tmp_path: Path) -> None:
    spread = numa.bindings("exclusive", 8, [], ALL, host)
    one = numa.bindings("node", 2, [], {0, 1, 5}, Tree(str(tmp_path)))

    assert len({cpu for cpus in spread for cpu in cpus}) == len(ALL) == sum(map(len, spread))
    assert [ranges(cpus) for cpus in spread[:2]] == ["0-2,24-26", "3-5,27-29"]
    assert one == [frozenset({0, 1, 5})] * 2


def test_workers_of_gpus_on_an_unknown_node_are_spread_over_the_nodes_that_they_may_use(host: Tree) -> None:
    second = set(range(CORES, 2 * CORES))

    assert numa.bindings("node", 2, [None, None], second, host) == [frozenset(second)] * 2
    assert [min(cpus) for cpus in numa.bindings("node", 3, [None, 1, None], ALL, host)] == [0, CORES, 2 * CORES]


def test_a_worker_for_which_no_core_is_left_is_named(host: Tree) -> None:
    with pytest.raises(ValueError, match="local rank 6 has no CPU on NUMA node 1: 7 workers are there"):
        numa.bindings("exclusive", 7, [1] * 7, ALL, host)


@pytest.mark.parametrize("cpus", [[], [3], [0, 1, 2], [0, 2, 3, 4, 9]])
def test_lists_are_written_as_the_kernel_writes_them(cpus: list[int]) -> None:
    assert numa.numbers(ranges(cpus)) == cpus
