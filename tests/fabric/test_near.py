"""`--near-nics`: each worker is given the RDMA ports nearest to its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.agent.fabric import placement
from tests.fabric import hosts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fabric.builder import Host


def ports(*names: str) -> dict[str, str]:
    return {"NCCL_IB_HCA": "=" + ",".join(names), "UCX_NET_DEVICES": ",".join(names)}


def test_each_worker_has_the_port_behind_the_switch_of_its_gpu(tmp_path: Path) -> None:
    tree = hosts.dgx_h100(tmp_path).tree()
    every = [f"mlx5_{number}:1" for number in hosts.DGX_COMPUTE]

    assert placement.near_ports(8, ["0", "1", "2", "3", "4", "5", "6", "7"], {}, tree) == [
        ports(name) for name in every
    ]
    assert placement.near_ports(2, ["6", "1"], {}, tree) == [ports(every[6]), ports(every[1])]


def test_two_rails_behind_one_switch_serve_both_gpus_there(tmp_path: Path) -> None:
    tree = hosts.a100_roce(tmp_path).tree()

    found = placement.near_ports(4, ["0", "1", "2", "7"], {}, tree)

    assert found == [ports("mlx5_0:1", "mlx5_1:1")] * 2 + [ports("mlx5_2:1", "mlx5_3:1"), ports("mlx5_6:1", "mlx5_7:1")]


def test_what_is_set_is_kept(tmp_path: Path) -> None:
    env = {"NCCL_IB_HCA": "mlx5_9"}

    assert placement.near_ports(1, ["0"], env, hosts.dgx_h100(tmp_path).tree()) == [{"UCX_NET_DEVICES": "mlx5_0:1"}]


@pytest.mark.parametrize(
    ("host", "seen"),
    [(hosts.cpu_node, []), (hosts.laptop, ["0"]), (hosts.dgx_h100, ["MIG-1b2c"]), (hosts.dgx_h100, [])],
    ids=["no GPUs", "no ports", "a GPU that is not known", "none visible"],
)
def test_where_nothing_is_nearer_nothing_is_set(host: Callable[[Path], Host], seen: list[str], tmp_path: Path) -> None:
    assert placement.near_ports(2, seen, {}, host(tmp_path).tree()) == [{}, {}]
