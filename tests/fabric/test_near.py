"""`--near-nics`: each worker is given the RDMA ports nearest to its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.agent.fabric import discovery, placement
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


def test_gpus_are_numbered_among_those_that_the_job_may_open(tmp_path: Path) -> None:
    host = hosts.dgx_h100(tmp_path)
    host.only_gpus(6, 7)

    assert placement.near_ports(2, ["0", "1"], {}, host.tree()) == [ports("mlx5_10:1"), ports("mlx5_11:1")]
    assert [gpu.pci for gpu in discovery.read(host.tree()).gpus] == ["0000:d1:00.0", "0000:df:00.0"]


def test_a_uuid_may_be_abbreviated_and_that_of_amd_is_known(tmp_path: Path) -> None:
    nvidia, amd = hosts.dgx_h100(tmp_path / "nvidia"), hosts.mi300x(tmp_path / "amd")
    amd.file("/sys/bus/pci/devices/0000:a6:00.0/unique_id", "5c88007d63e5ab39")
    for number, bus in ((0, "05"), (1, "a6")):
        amd.hca(f"mlx5_{number}", f"pci0000:{bus}/0000:{bus}:01.0", rate="400 Gb/sec (4X NDR)", numa=number)

    assert placement.near_ports(1, ["GPU-00000007"], {}, nvidia.tree()) == [ports("mlx5_11:1")]
    assert placement.near_ports(1, ["GPU-5C88007D63E5AB39"], {}, amd.tree()) == [ports("mlx5_1:1")]
    assert placement.near_ports(1, ["GPU-0"], {}, nvidia.tree()) == [{}], "it is that of all"


def test_two_rails_behind_one_switch_serve_both_gpus_there(tmp_path: Path) -> None:
    tree = hosts.a100_roce(tmp_path).tree()

    found = placement.near_ports(4, ["0", "1", "2", "7"], {}, tree)

    assert found == [ports("mlx5_0:1", "mlx5_1:1")] * 2 + [ports("mlx5_2:1", "mlx5_3:1"), ports("mlx5_6:1", "mlx5_7:1")]


def test_what_is_set_is_kept(tmp_path: Path) -> None:
    env = {"NCCL_IB_HCA": "mlx5_9"}

    assert placement.near_ports(1, ["0"], env, hosts.dgx_h100(tmp_path).tree()) == [{"UCX_NET_DEVICES": "mlx5_0:1"}]


def test_what_the_administrator_has_set_is_kept(tmp_path: Path) -> None:
    host = hosts.dgx_h100(tmp_path)
    host.file("/etc/nccl.conf", "NCCL_IB_HCA==mlx5_0:1,mlx5_3:1\n")

    assert placement.near_ports(1, ["0"], {}, host.tree()) == [{"UCX_NET_DEVICES": "mlx5_0:1"}]


def test_ports_that_are_not_used_are_not_named(tmp_path: Path) -> None:
    assert placement.near_ports(1, ["0"], {"NCCL_IB_DISABLE": "1"}, hosts.dgx_h100(tmp_path / "h100").tree()) == [{}]
    assert placement.near_ports(8, [*"01234567"], {}, hosts.aws_p5(tmp_path / "p5").tree()) == [{}] * 8


@pytest.mark.parametrize(
    ("host", "seen"),
    [(hosts.cpu_node, []), (hosts.laptop, ["0"]), (hosts.dgx_h100, ["MIG-1b2c"]), (hosts.dgx_h100, [])],
    ids=["no GPUs", "no ports", "a GPU that is not known", "none visible"],
)
def test_where_nothing_is_nearer_nothing_is_set(host: Callable[[Path], Host], seen: list[str], tmp_path: Path) -> None:
    assert placement.near_ports(2, seen, {}, host(tmp_path).tree()) == [{}, {}]
